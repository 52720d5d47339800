"""The whole thing in processes of its own: hub, agent, outage and return, as a person would start and stop them."""

import contextlib
import gzip
import json
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.certificates import Authority
from fakes.hubs import HubProcess, environment, gpudeck, running_hub, start
from fakes.ports import free_port
from fakes.reports import make_envelope
from fakes.waiting import wait_until
from gpudeck.wire import encode


def fleet_of(hub: HubProcess) -> dict[str, Any]:
    fleet: dict[str, Any] = json.loads(hub.get("/api/v1/fleet"))
    return fleet


@contextlib.contextmanager
def running_agent(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with start(folder, "agent.log", "agent", *arguments) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def read_events(hub: HubProcess, count: int, query: str = "", **headers: str) -> list[tuple[str, dict[str, Any]]]:
    """The first events of the stream."""
    request = urllib.request.Request(f"{hub.url}/api/v1/stream{query}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        lines: Any = gzip.GzipFile(fileobj=answer) if answer.headers["Content-Encoding"] == "gzip" else answer
        events, kind = [], ""
        for line in lines:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            kind = value if name == "event" else kind
            if name == "data":
                events.append((kind, json.loads(value)))
            if len(events) == count:
                break
        return events


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    # Of so few none is dead now and then.
    with running_hub(tmp_path_factory.mktemp("demo"), "--demo", "5") as hub:
        wait_until(lambda: fleet_of(hub)["totals"]["hosts"] == 5, "the simulated fleet")
        yield hub


def test_the_demo_is_labelled_everywhere(demo: HubProcess) -> None:
    assert "demo data" in demo.greeting
    assert fleet_of(demo)["demo"] is True
    assert gpudeck(demo.data_dir, "show", "--hub", demo.url).stdout.startswith("DEMO DATA")
    assert {host["via"] for host in fleet_of(demo)["hosts"]} == {"simulated"}


def test_a_viewer_gets_the_hosts_that_it_names_and_totals_of_all(demo: HubProcess) -> None:
    chosen = sorted(host["id"] for host in fleet_of(demo)["hosts"])[:2]
    events = read_events(demo, 3, f"?hosts={','.join(chosen)},nobody", Accept_Encoding="gzip")
    assert [kind for kind, _ in events] == ["snapshot", "delta", "delta"]
    assert sorted(host["id"] for host in events[0][1]["hosts"]) == chosen
    assert all(said["totals"]["hosts"] == 5 for _, said in events)


def test_the_demo_moves(demo: HubProcess) -> None:
    first = fleet_of(demo)
    wait_until(lambda: fleet_of(demo)["hosts"] != first["hosts"], "a change in the fleet")
    assert fleet_of(demo)["time"] > first["time"]


@pytest.mark.parametrize("accept", ["identity", "gzip"])
def test_the_stream_begins_with_a_snapshot_and_goes_on(demo: HubProcess, accept: str) -> None:
    events = read_events(demo, 4, **{"Accept-Encoding": accept})
    assert [kind for kind, _ in events] == ["snapshot", "delta", "delta", "delta"]
    assert events[0][1]["demo"] is True
    assert events[3][1]["time"] > events[1][1]["time"]


def test_show_agrees_with_the_api(demo: HubProcess) -> None:
    answer = gpudeck(demo.data_dir, "show", "--json", "--hub", demo.url)
    shown = json.loads(answer.stdout)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert [host["name"] for host in shown["hosts"]] == [host["name"] for host in fleet_of(demo)["hosts"]]


def test_show_of_one_host_and_of_a_wrong_one(demo: HubProcess) -> None:
    name = fleet_of(demo)["hosts"][0]["name"]
    one = gpudeck(demo.data_dir, "show", name, "--hub", demo.url)
    wrong = gpudeck(demo.data_dir, "show", "gpu99999", "--hub", demo.url)
    assert (one.returncode, {line.split()[0] for line in one.stdout.split("\n\n")[1].splitlines()}) == (
        0,
        {"HOST", name},
    )
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "gpu99999" in wrong.stderr


def test_a_demo_that_was_asked_for_takes_no_real_reports(demo: HubProcess) -> None:
    headers = {
        "Authorization": f"Bearer {demo.token_file.read_text().strip()}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    request = urllib.request.Request(f"{demo.url}/api/v1/reports", encode(make_envelope()), headers)
    with pytest.raises(urllib.request.HTTPError) as caught:  # type: ignore[attr-defined]
        urllib.request.urlopen(request, timeout=10)
    assert caught.value.code == 409
    caught.value.close()


@pytest.mark.parametrize("stop", [HubProcess.press_ctrl_c, HubProcess.stop], ids=["Ctrl-C", "SIGTERM"])
def test_a_hub_stops_cleanly_while_somebody_watches(tmp_path: Path, stop: Callable[[HubProcess], int]) -> None:
    hub = HubProcess(tmp_path, ["--demo", "3", "--listen", "127.0.0.1:0"])
    with urllib.request.urlopen(f"{hub.url}/api/v1/stream", timeout=10) as stream:
        stream.readline()
        wait_until(lambda: fleet_of(hub)["hosts"], "a simulated host")
        code = stop(hub)
    log = (tmp_path / "log").read_text().splitlines()
    assert code == 0
    assert [line for line in log if "reporting 3 simulated hosts" not in line] == []
    with contextlib.closing(sqlite3.connect(tmp_path / "gpudeck.db")) as database:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM events ORDER BY at")]
    assert kinds[-1] == "hub_stopped"


def test_the_simulated_agent_ends_with_a_killed_hub(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path, ["--demo", "3", "--listen", "127.0.0.1:0"])
    wait_until(lambda: fleet_of(hub)["hosts"], "a simulated host")
    child = Path(f"/proc/{hub.process.pid}/task/{hub.process.pid}/children").read_text().split()[0]
    hub.stop(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{child}/cmdline").exists(), "the child's end")
    assert not Path(f"/proc/{child}/cmdline").exists()


def test_a_real_agent_ends_the_demo_that_nobody_asked_for(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        wait_until(lambda: fleet_of(hub)["totals"]["hosts"] > 5, "the simulated fleet")
        arguments = ("--hub", hub.url, "--token-file", str(hub.token_file), "--name", "real01", "--interval", "0.2s")
        with running_agent(tmp_path, *arguments):
            wait_until(lambda: not fleet_of(hub)["demo"], "the end of the demo")
            wait_until(lambda: fleet_of(hub)["totals"]["hosts_up"], "the real host")
            hosts = fleet_of(hub)["hosts"]
            events = json.loads(hub.get("/api/v1/events"))["events"]
    assert [(host["name"], host["via"], host["status"]) for host in hosts] == [("real01", "push", "up")]
    assert hosts[0]["memory_total_bytes"] > 0
    assert {event["host"] for event in events} == {None, "real01"}


def test_the_link_of_the_first_admin_still_works_after_the_demo(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("read: login\nlocal: never\n")
    with running_hub(tmp_path) as hub:
        added = gpudeck(tmp_path, "hosts", "add", "gpu07", "--via", "ssh", "--hub", hub.url)
        assert added.returncode == 0, added.stderr
        again = hub.read_greeting()
        secret = hub.greeting.partition("#first-admin=")[2].split()[0]
        body = {"secret": secret, "name": "ada", "password": "correct horse battery"}
        request = urllib.request.Request(
            f"{hub.url}/api/v1/first-admin", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.loads(answer.read())["role"] == "admin"
    assert f"#first-admin={secret}" in again


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.4, 0.8])
def test_a_hub_that_is_stopped_while_its_demo_ends_stops(tmp_path: Path, pause: float) -> None:
    hub = HubProcess(tmp_path, ["--listen", "127.0.0.1:0"])
    headers = {
        "Authorization": f"Bearer {hub.token_file.read_text().strip()}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    request = urllib.request.Request(f"{hub.url}/api/v1/reports", encode(make_envelope("real01")), headers)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(request, timeout=10)
    time.sleep(pause)
    assert hub.stop() == 0


def test_a_hub_that_had_real_hosts_never_shows_the_demo_again(tmp_path: Path) -> None:
    with running_hub(tmp_path) as hub:
        arguments = ("--hub", hub.url, "--token-file", str(hub.token_file), "--name", "real01", "--interval", "0.2s")
        with running_agent(tmp_path, *arguments):
            wait_until(lambda: not fleet_of(hub)["demo"], "the end of the demo")
    with running_hub(tmp_path) as hub:
        assert (fleet_of(hub)["demo"], "demo" in hub.greeting) == (False, False)


def test_an_agent_survives_the_hubs_absence_and_delivers_what_it_kept(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    listen = f"127.0.0.1:{free_port()}"
    first = HubProcess(tmp_path, ["--listen", listen])
    arguments = ("--hub", first.url, "--token-file", str(first.token_file), "--name", "real01", "--interval", "0.1s")
    with running_agent(tmp_path, *arguments) as agent:
        wait_until(lambda: fleet_of(first)["hosts"], "the first report")
        first.stop(signal.SIGKILL)
        wait_until(lambda: "does not answer" in (tmp_path / "agent.log").read_text(), "the agent's notice")
        agent.terminate()
        assert agent.wait(10) == 0
    with running_agent(tmp_path, *arguments) as agent:
        wait_until(lambda: (tmp_path / "agent.log").read_text().count("does not answer") == 2, "the next one's notice")
        with running_hub(tmp_path, "--listen", listen) as second:
            wait_until(lambda: [h["status"] for h in fleet_of(second)["hosts"]] == ["up"], "the return", seconds=40)
            wait_until(lambda: not list(tmp_path.glob("outbox/real01/*.segment")), "the end of the backlog")
            assert b"gpudeck_reports_outdated_total 0" in second.get("/metrics")
            assert agent.poll() is None
            agent.terminate()
            assert agent.wait(10) == 0
    notes = (tmp_path / "agent.log").read_text()
    assert f"undelivered reports are in {tmp_path}/outbox/real01" in notes
    assert "accepts reports again" in notes


def test_a_silent_agent_is_late_then_down_and_never_free(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\nfleet: {down_after: 2s}\n")
    with running_hub(tmp_path) as hub:
        arguments = ("--hub", hub.url, "--token-file", str(hub.token_file), "--name", "real01", "--interval", "0.3s")
        with running_agent(tmp_path, *arguments) as agent:
            wait_until(lambda: [h["status"] for h in fleet_of(hub)["hosts"]] == ["up"], "up")
            agent.send_signal(signal.SIGSTOP)
            wait_until(lambda: [h["status"] for h in fleet_of(hub)["hosts"]] == ["late"], "late")
            wait_until(lambda: [h["status"] for h in fleet_of(hub)["hosts"]] == ["down"], "down")
            agent.send_signal(signal.SIGCONT)
            wait_until(lambda: [h["status"] for h in fleet_of(hub)["hosts"]] == ["up"], "up again")
            assert fleet_of(hub)["totals"]["hosts_up"] == 1


def test_the_hubs_own_agent_reads_the_same_configuration(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("rubbish: here\n")
    (tmp_path / "good.yaml").write_text("fleet: {down_after: 90s}\n")
    with running_hub(tmp_path, "--demo", "2", "--config", "good.yaml") as hub:
        wait_until(lambda: fleet_of(hub)["hosts"], "a simulated host")
        assert fleet_of(hub)["demo"] is True


def test_the_token_is_readable_by_its_owner_alone_and_stays(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "1") as hub:
        first = hub.token_file.read_text()
        mode = hub.token_file.stat().st_mode & 0o777
    with running_hub(tmp_path, "--demo", "1") as hub:
        assert (hub.token_file.read_text(), mode) == (first, 0o600)


def test_a_taken_port_gets_one_line(tmp_path: Path, demo: HubProcess) -> None:
    address = demo.url.removeprefix("http://")
    answer = gpudeck(tmp_path, "up", "--listen", address)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        f"gpudeck: cannot listen on {address}: address already in use. "
        "Stop what uses it, or choose another with --listen HOST:PORT.\n"
    )


def test_a_second_hub_on_the_same_folder_is_refused(demo: HubProcess) -> None:
    second = gpudeck(demo.data_dir, "up", "--demo", "5", "--listen", "127.0.0.1:0")
    assert second.returncode == 2
    assert f"another hub runs on {demo.data_dir} (process " in second.stderr
    assert "GPUDECK_DATA_DIR" in second.stderr
    with running_hub(demo.data_dir, "--demo", "2") as other_fleet:
        assert fleet_of(other_fleet)["demo"] is True


def test_a_broken_pipe_is_no_error(demo: HubProcess) -> None:
    command = f"{sys.executable} -m gpudeck show --hub {demo.url} | head -1; exit ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["/bin/bash", "-c", command], capture_output=True, env=environment(demo.data_dir), timeout=30, check=False
    )
    assert (answer.returncode in {0, -signal.SIGPIPE}, answer.stderr) == (True, b"")


def test_a_data_folder_that_cannot_be_written_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = gpudeck(tmp_path, "up", GPUDECK_DATA_DIR=os.fspath(tmp_path / "file" / "below"))
    assert answer.returncode == 2
    assert answer.stderr.startswith("gpudeck: the data folder ")
    assert answer.stderr.count("\n") == 1


def test_a_hub_with_a_certificate_speaks_tls_and_its_own_agent_still_reaches_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.server_context("localhost")
    (tmp_path / "gpudeck.yaml").write_text("tls: {cert_file: localhost.pem, key_file: localhost.pem}\n")
    trust = ssl.create_default_context(cafile=str(authority.ca_file))
    with running_hub(tmp_path, "--demo", "2") as hub:
        assert hub.url.startswith("https://")
        address = f"https://localhost:{hub.url.rpartition(':')[2]}/api/v1/fleet"

        def hosts() -> int:
            with urllib.request.urlopen(address, timeout=10, context=trust) as answer:
                return int(json.load(answer)["totals"]["hosts"])

        wait_until(lambda: hosts() == 2, "the simulated hosts")
