"""Hosts that are added while a hub runs."""

from pathlib import Path

from fakes.hubs import gpudeck, running_hub
from fakes.waiting import wait_until


def test_hub_with_a_demo_that_was_asked_for_takes_no_hosts_and_says_why(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "1") as hub:
        added = gpudeck(tmp_path, "hosts", "add", "gpu01", GPUDECK_HUB=hub.url)
        removed = gpudeck(tmp_path, "hosts", "remove", "gpu01", GPUDECK_HUB=hub.url)
    for done in (added, removed):
        assert done.returncode != 0
        assert "this hub was started with --demo and watches no real hosts. Start it without --demo." in done.stderr
    assert not (tmp_path / "hosts.yaml").exists()


def test_host_that_was_removed_can_be_added_again_at_once_on_another_way(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    with running_hub(tmp_path) as hub:
        commands = [("add", "gpu01"), ("remove", "gpu01"), ("add", "gpu01", "--via", "scrape"), ("list",)]
        done = [gpudeck(tmp_path, "hosts", *command, GPUDECK_HUB=hub.url) for command in commands]
        assert [one.returncode for one in done] == [0] * 4
        assert "Run this on gpu01" in done[0].stderr
        assert [one.stderr for one in done[1:]] == [""] * 3
        wait_until(lambda: b'"via":"scrape"' in hub.get("/api/v1/hosts"), "the host that was added again")
