"""Hosts that are added while a hub runs."""

from pathlib import Path

from fakes.hubs import gpudeck, running_hub


def test_hub_with_a_demo_that_was_asked_for_takes_no_hosts_and_says_why(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "1") as hub:
        added = gpudeck(tmp_path, "hosts", "add", "gpu01", GPUDECK_HUB=hub.url)
        removed = gpudeck(tmp_path, "hosts", "remove", "gpu01", GPUDECK_HUB=hub.url)
    for done in (added, removed):
        assert done.returncode != 0
        assert "this hub was started with --demo and watches no real hosts. Start it without --demo." in done.stderr
    assert not (tmp_path / "hosts.yaml").exists()
