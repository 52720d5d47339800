"""gpudeck doctor as a person runs it: on a hub, on a host, on a machine with a broken file."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.waiting import wait_until


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    with running_hub(folder, "--demo", "2") as hub:
        wait_until(lambda: b'"gpu01"' in hub.get("/api/v1/hosts"), "the first report")
        (folder / "gpudeck.yaml").write_text(
            f"listen: {hub.url.removeprefix('http://')}\n"
            f"notify: {{page: {hub.url}, channels: {{ops: {{url: 'slack://T0HIDDEN/B0HIDDEN/XHIDDEN'}}}}}}\n"
        )
        yield hub


def examine(folder: Path, *arguments: str, code: int) -> dict[tuple[str, str], Any]:
    run = gpudeck(folder, "doctor", "--json", *arguments)
    assert (run.returncode, run.stderr.count("Traceback")) == (code, 0), run.stdout + run.stderr
    return {(finding["area"], finding["name"]): finding["verdict"] for finding in json.loads(run.stdout)["findings"]}


def test_a_hub_that_is_well_is_well(hub: HubProcess) -> None:
    found = examine(hub.data_dir, code=0)
    names = ("port", "data folder", "disk", "database", "running", "sources", "messages", "proxy", "stream")
    assert {name: found["hub", name] for name in names} == dict.fromkeys(names, "ok")


def test_an_agent_that_reaches_its_hub_is_well(hub: HubProcess) -> None:
    found = examine(hub.data_dir, "--hub", hub.url, "--token-file", str(hub.token_file), code=0)
    names = ("token file", "http", "version", "clock", "token")
    assert {name: found["agent", name] for name in names} == dict.fromkeys(names, "ok")
    assert not [name for area, name in found if area == "hub"]


def test_a_wrong_token_fails(hub: HubProcess, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("gd_agent_wrong\n")
    found = examine(tmp_path, "--hub", hub.url, "--token-file", str(wrong), code=1)
    assert found["agent", "token"] == "fail"


def test_a_token_for_another_host_fails_and_the_fleet_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    config = ("--config", str(tmp_path / "gpudeck.yaml"))
    made = gpudeck(tmp_path, "token", "create", "other", "--role", "agent", "--host", "gpu77", *config)
    (tmp_path / "other.token").write_text(made.stdout)
    with running_hub(tmp_path, *config) as hub:
        ways = ("--on", "host", "--hub", hub.url, "--token-file")
        refused = gpudeck(tmp_path, "doctor", *ways, str(tmp_path / "other.token"))
        assert refused.returncode == 1
        assert "✗ fail agent    token        this token is for gpu77, and the report is of " in refused.stdout
        assert "If this machine is gpu77, set `agent.name: gpu77`" in refused.stdout
        assert examine(tmp_path, *ways, str(hub.token_file), code=0)["agent", "token"] == "ok"
        assert json.loads(hub.get("/api/v1/fleet"))["hosts"] == []


def test_looking_leaves_no_trace_in_the_fleet(hub: HubProcess) -> None:
    before = {host["name"] for host in json.loads(hub.get("/api/v1/hosts"))["hosts"]}
    examine(hub.data_dir, "--hub", hub.url, "--token-file", str(hub.token_file), code=0)
    assert {host["name"] for host in json.loads(hub.get("/api/v1/hosts"))["hosts"]} == before


def test_each_line_of_text_has_its_next_step(tmp_path: Path) -> None:
    run = gpudeck(tmp_path, "doctor", "--hub", "http://127.0.0.1:9", "--token-file", "none.token")
    assert run.returncode == 1
    assert "✗ fail agent    http" in run.stdout
    assert run.stdout.count("✗ fail") == 2
    assert run.stdout.count("→") >= 2


def test_every_mistake_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("listne: 1\nfleet: {down_after: soon}\n")
    run = gpudeck(tmp_path, "doctor", "--json")
    mistakes = [one for one in json.loads(run.stdout)["findings"] if one["area"] == "settings"]
    assert (run.returncode, [one["verdict"] for one in mistakes]) == (1, ["fail", "fail"])


def test_a_hub_that_is_not_running_fails(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("listen: 127.0.0.1:9\n")
    found = examine(tmp_path, "--on", "hub", code=1)
    assert found["hub", "running"] == "fail"


def unpack(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]


@pytest.mark.parametrize("others", [{}, {"GPUDECK_TOKEN": "gd_admin_of-the-environment"}], ids=["file", "environment"])
def test_the_archive_has_no_token_of_this_machine(hub: HubProcess, tmp_path: Path, others: dict[str, str]) -> None:
    file = tmp_path / "bundle.tar.gz"
    run = gpudeck(hub.data_dir, "doctor", "--bundle", str(file), **others)
    assert "Check it before you send it" in run.stderr
    tokens = [file.read_text().strip() for file in hub.data_dir.glob("*.token")]
    text = "".join(unpack(file).values())
    assert len(tokens) == 2
    assert [secret for secret in [*tokens, "HIDDEN", "of-the-environment"] if secret in text] == []


def test_the_archive_tells_the_fleet_in_numbers(hub: HubProcess, tmp_path: Path) -> None:
    gpudeck(hub.data_dir, "doctor", "--bundle", str(tmp_path / "bundle.tar.gz"))
    fleet = json.loads(unpack(tmp_path / "bundle.tar.gz")["gpudeck-doctor/fleet.json"])
    assert (fleet["demo"], fleet["totals"]["hosts"], "hosts" in fleet) == (True, 2, False)
