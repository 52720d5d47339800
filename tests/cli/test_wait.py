"""gpudeck wait and gpudeck free through a real hub, as processes: commands, other hosts, Ctrl-C, pipes, a dead hub."""

import getpass
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.hubs import HubProcess, environment, gpudeck, running_hub
from fakes.pushed import PushedHost, pushing
from fakes.terminals import in_a_terminal
from fakes.waiting import wait_until
from gpudeck.agent.lock_files import announcing
from gpudeck.client import Client
from gpudeck.collectors.host import host_name, machine_id

CONFIG = "demo: never\nlocal: never\nhistory: {kind: off}\nqueue: {claim: 30s}\n"


class Site:
    """A hub; this machine as a host with a GPU; and another host with two larger ones."""

    def __init__(self, hub: HubProcess, here: PushedHost, there: PushedHost) -> None:
        self.hub = hub
        self.here = here
        self.there = there

    def run(self, *arguments: str) -> tuple[int, str, str]:
        done = gpudeck(self.hub.data_dir, *arguments, "--hub", self.hub.url)
        return done.returncode, done.stdout, done.stderr

    def wait(self, *arguments: str) -> tuple[int, str, str]:
        done = gpudeck(self.hub.data_dir, "wait", "--hub", self.hub.url, *arguments)
        return done.returncode, done.stdout, done.stderr

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "wait", "--hub", self.hub.url, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(self.hub.data_dir),
            start_new_session=True,
        )

    def queue(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = json.loads(self.hub.get("/api/v1/queue"))["requests"]
        return requests

    def gpus(self) -> dict[str, dict[str, Any]]:
        hosts = json.loads(self.hub.get("/api/v1/fleet"))["hosts"]
        return {gpu["uuid"]: gpu for host in hosts for gpu in host["gpus"]}

    def states(self) -> set[str]:
        return {gpu["availability"] for gpu in self.gpus().values()}

    def be_free(self) -> None:
        """Nobody waits and nothing is claimed, as a test finds it."""
        for request in self.queue():
            Client(self.hub.url).delete(f"/api/v1/queue/{request['id']}")
        self.here.end(self.here.uuids)
        self.there.end(self.there.uuids)
        wait_until(lambda: len(self.gpus()) == 3 and self.states() == {"free"}, "three free GPUs")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "gpudeck.yaml").write_text(CONFIG)
    with (
        running_hub(folder) as hub,
        pushing(hub, host_name(), 1, machine_id()) as here,
        pushing(hub, "gpu07", 2) as there,
    ):
        yield Site(hub, here, there)


@pytest.fixture
def site(running: Site) -> Site:
    running.be_free()
    return running


def test_command_runs_here_with_the_gpus_by_uuid_and_its_exit_code_is_passed_on(site: Site) -> None:
    code, out, errors = site.wait("--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7")
    assert (code, out, errors) == (7, f"{site.here.uuids[0]}\n", "")
    assert site.queue() == []


def test_gpus_elsewhere_are_told_as_a_line_for_ssh_and_kept_for_whoever_waited(site: Site) -> None:
    code, out, errors = site.wait("--gpus", "2", "--any-host", "--", "python", "train.py", "--lr", "3")
    value = ",".join(site.there.uuids)
    line = f"ssh gpu07 'cd {site.hub.data_dir} && CUDA_VISIBLE_DEVICES={value} python train.py --lr 3'\n"
    assert (code, out) == (4, line)
    assert re.fullmatch(r"gpudeck: Claimed for \d+ s\. Not run: run the line above on gpu07 before that\.\n", errors)
    wait_until(lambda: site.gpus()[site.there.uuids[0]]["availability"] == "reserved", "the claim is shown")
    held = site.gpus()[site.there.uuids[0]]["reservation"]
    assert (held["kind"], held["user"]) == ("claim", site.queue()[0]["user"])
    assert f"taken by {held['user']}, starting" in site.run("show", "gpu07")[1]
    free = json.loads(site.run("free", "--json")[1])
    assert [gpu["uuid"] for gpu in free["gpus"]] == site.here.uuids
    # Its process appears there: from then on that says who is on it.
    site.there.begin(held["user"], site.there.uuids)
    wait_until(lambda: site.queue() == [], "the claim ends")
    wait_until(lambda: site.gpus()[site.there.uuids[0]]["reservation"] is None, "nothing is claimed")


def test_local_wait_goes_through_the_hub_of_this_machines_agent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDECK_LOCK_DIR", environment(site.hub.data_dir)["GPUDECK_LOCK_DIR"])
    script = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 1")
    with announcing(site.hub.url):
        first = site.start(*script)
        wait_until(lambda: site.queue() and site.queue()[0]["granted"], "the first has the GPU")
        second = gpudeck(site.hub.data_dir, "wait", "--local", "--timeout", "0.2s", *script)
        told = f"gpudeck: the agent of this machine names the hub {site.hub.url}: waiting in its queue.\n"
        assert (second.returncode, second.stdout, second.stderr.startswith(told)) == (1, "", True), second.stderr
        assert first.communicate(timeout=60)[0] == f"{site.here.uuids[0]}\n"


def test_without_a_hub_nobody_waits_on_this_machine_alone(tmp_path: Path) -> None:
    done = gpudeck(tmp_path, "wait", "--", "touch", "run", GPUDECK_HUB="127.0.0.1:9")
    assert (done.returncode, (tmp_path / "run").exists()) == (3, False)


def test_line_for_ssh_means_the_same_to_both_shells(site: Site) -> None:
    _, out, _ = site.wait("--host", "gpu07", "--", "sh", "-c", "echo 'a  b' $HOME")
    words = subprocess.run(
        ["sh", "-c", f"set -- {out.strip()}; printf '%s' \"$3\""], capture_output=True, text=True, check=True
    )
    remote = subprocess.run(["sh", "-c", words.stdout], capture_output=True, text=True, check=True, env={"HOME": "/h"})
    assert remote.stdout == "a  b /h\n"


def test_without_a_command_what_was_granted_is_printed(site: Site) -> None:
    assert site.wait("--host", "gpu07")[:2] == (0, f"gpu07 CUDA_VISIBLE_DEVICES={site.there.uuids[0]}\n")
    code, out, errors = site.wait("--host", "gpu07", "--json")
    told = json.loads(out)
    assert (code, errors, told["gpus"][0]["uuid"]) == (0, "", site.there.uuids[1])
    assert told["environment"] == {"gpu07": {"CUDA_VISIBLE_DEVICES": site.there.uuids[1]}}


def test_timeout_is_exit_code_1_and_leaves_the_line(site: Site) -> None:
    site.there.begin("zoe", site.there.uuids)
    wait_until(lambda: "busy" in site.states(), "zoe is seen")
    code, out, errors = site.wait("--gpus", "2", "--host", "gpu07", "--timeout", "1s")
    assert (code, out) == (1, "")
    assert errors.endswith("gpudeck: 2 GPUs on gpu07 did not become free in time.\n")
    assert site.queue() == []


def test_in_a_pipe_every_change_is_a_plain_line_and_a_signal_leaves_the_line(site: Site) -> None:
    site.here.begin("zoe", site.here.uuids)
    site.there.begin("zoe", site.there.uuids)
    wait_until(lambda: site.states() == {"busy"}, "all are busy")
    first, second = site.start("--", "true"), site.start("--", "true")
    wait_until(lambda: len(site.queue()) == 2, "two wait")
    assert first.stderr is not None
    told = first.stderr.readline()
    second.send_signal(signal.SIGTERM)
    assert second.communicate(timeout=30)[0] == ""
    wait_until(lambda: len(site.queue()) == 1, "one waits")
    first.send_signal(signal.SIGINT)
    out, errors = first.communicate(timeout=30)
    assert (first.returncode, second.returncode, out) == (130, 143, "")
    assert re.fullmatch(rf"gpudeck: queue position \d of \d for 1 GPU on {host_name()}\n", told)
    assert "\x1b" not in told + errors
    assert site.queue() == []


def test_ctrl_c_in_a_terminal_leaves_the_line_at_once(site: Site) -> None:
    site.there.begin("zoe", site.there.uuids)
    wait_until(lambda: "busy" in site.states(), "zoe is seen")
    command = ("gpudeck", "wait", "--hub", site.hub.url, "--gpus", "2", "--host", "gpu07")
    with in_a_terminal(site.hub.data_dir, *command, columns=70) as terminal:
        shown = terminal.read_until("queue position 1 of 1 for 2 GPUs on gpu07")
        terminal.press("\x03")
        code, _ = terminal.wait()
    assert (code, shown.count("\n")) == (130, 0)
    assert re.search(r"\x1b\[Kgpudeck: waiting for \d+s, queue position 1", shown)
    assert site.queue() == []


def test_ctrl_c_in_a_terminal_reaches_the_command_once(site: Site) -> None:
    trap = "trap 'echo interrupted' INT; echo ready; sleep 1; sleep 1; exit 9"
    command = ("gpudeck", "wait", "--hub", site.hub.url, "--", "sh", "-c", trap)
    with in_a_terminal(site.hub.data_dir, *command) as terminal:
        terminal.read_until("ready")
        terminal.press("\x03")
        code, text = terminal.wait()
    assert (code, text.count("interrupted")) == (9, 1)


def test_free_lists_best_fit_first_and_exports_what_is_on_one_host(site: Site) -> None:
    gpus = json.loads(site.run("free", "--json", "--memory", "40G")[1])["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == [*site.here.uuids, *site.there.uuids]
    assert site.run("free", "--gpus", "2", "--same-host", "--export") == (
        0,
        f"GPUDECK_HOST=gpu07 CUDA_VISIBLE_DEVICES={','.join(site.there.uuids)}\n",
        "",
    )
    code, out, errors = site.run("free", "--export")
    assert (code, out) == (2, "")
    assert "these 3 GPUs are on 2 hosts" in errors


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["h900"], 1),
        (["--gpus", "4"], 1),
        (["--gpus", "3", "--same-host"], 1),
        (["--memory", "1T"], 1),
        (["gpu07", "a100"], 0),
        (["--gpus", "0"], 2),
        (["--memory", "lots"], 2),
        ([">lots"], 2),
        (["--json", "--export"], 2),
    ],
)
def test_free_says_whether_there_is_any(site: Site, arguments: list[str], code: int) -> None:
    found = site.run("free", *arguments)
    assert found[0] == code
    assert bool(found[1]) == (code == 0)


def test_free_sends_nobody_to_wait_for_what_is_not_there_at_all(site: Site) -> None:
    site.there.begin("zoe", site.there.uuids)
    wait_until(lambda: "busy" in site.states(), "zoe is seen")
    assert site.run("free", "--host", "gpu07")[2] == (
        "gpudeck: not free now: 1 GPU on gpu07. `gpudeck wait` waits for it.\n"
    )
    told = "so this request can never be met. `gpudeck show` has all hosts and GPUs.\n"
    assert site.run("free", "--host", "gpu70")[2] == f"gpudeck: there is no host gpu70 with GPUs, {told}"
    assert site.run("free", "--gpus", "3", "--same-host")[2] == f"gpudeck: no host has more than 2 GPUs, {told}"
    assert site.run("free", "h900")[2] == "gpudeck: no GPU fits h900. `gpudeck show` has all hosts and GPUs.\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "nosuch"], "there is no host nosuch with GPUs"),
        (["--host", "gpu07", "--gpus", "3"], "gpu07 has only 2 GPUs"),
        (["--gpus", "2"], f"{host_name()} has only 1 GPU"),
        (["--any-host", "--gpus", "9"], "the fleet has only 3 GPUs"),
        (["--any-host", "--gpus", "3", "--same-host"], "no host has more than 2 GPUs"),
        (["--any-host", "--memory", "4T"], "no GPU of the fleet has 4096 GiB (the largest has 80 GiB)"),
        (["--any-host", "--model", "H900"], "no GPU of the fleet is called H900"),
        (["--any-host", "--mig"], "the fleet has no MIG slices"),
    ],
)
def test_request_that_can_never_be_met_fails_at_once(site: Site, arguments: list[str], told: str) -> None:
    code, out, errors = site.wait(*arguments)
    assert (code, out) == (1, "")
    assert errors == f"gpudeck: {told}, so this request can never be met. `gpudeck show` lists all hosts and GPUs.\n"
    assert site.queue() == []


def test_free_as_json_is_an_empty_list_where_there_is_none(site: Site) -> None:
    assert site.run("free", "--model", "H900", "--json") == (1, '{"gpus":[]}\n', "")


def test_no_hub_is_exit_code_3_for_free(tmp_path: Path) -> None:
    assert gpudeck(tmp_path, "free", "--hub", "http://127.0.0.1:9").returncode == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", "0"],
        ["--memory", "lots"],
        ["--timeout", "soon"],
        ["--json", "--", "true"],
        ["--local", "--hub", "http://127.0.0.1:9"],
        ["--gpu", "2"],
        ["--memory", "40"],
        ["--allow-mig"],
        ["--mig", "--allow-mig", "--memory", "10G"],
        ["--any-host", "--host", "gpu07"],
        ["--any-host", "--local"],
        ["--ssh", "--", "true"],
        ["--ssh", "--any-host"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    assert gpudeck(tmp_path, "wait", *arguments).returncode == 2


def test_waiter_outlives_its_hub_keeps_its_place_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG)
    with running_hub(tmp_path) as hub:
        port = hub.url.rpartition(":")[2]
        waiter = subprocess.Popen(
            [sys.executable, "-m", "gpudeck", "wait", "--any-host", "--hub", hub.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
        )
        assert waiter.stderr is not None
        lines = iter(waiter.stderr.readline, "")
        # The place is known to the hub before it is known to the waiter.
        assert "position 1 of 1" in next(lines)
        hub.stop(signal.SIGKILL)
        assert next(line for line in lines if "your position in the queue is kept" in line)
    with running_hub(tmp_path, "--listen", f"127.0.0.1:{port}") as hub, pushing(hub, "gpu07", 1):
        assert next(line for line in lines if "the hub answers again" in line)
        out, _ = waiter.communicate(timeout=60)
    assert (waiter.returncode, out) == (0, "gpu07 CUDA_VISIBLE_DEVICES=GPU-gpu07-0\n")


@pytest.mark.slow
def test_gpus_stay_kept_while_the_command_runs_and_is_not_on_them_yet(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG.replace("30s", "2s"))
    with running_hub(tmp_path) as hub, pushing(hub, host_name(), 1, machine_id()) as here:
        site = Site(hub, here, here)
        wait_until(lambda: site.states() == {"free"}, "a free GPU")
        waiter = site.start("--", "sleep", "60")
        wait_until(lambda: site.states() == {"reserved"}, "it is granted")
        first = site.queue()[0]["granted"]["until"]
        wait_until(lambda: site.queue()[0]["granted"]["until"] > first + 4, "it is kept for longer, and again")
        assert (site.states(), waiter.poll()) == ({"reserved"}, None)
        here.begin(getpass.getuser(), here.uuids)
        wait_until(lambda: site.queue() == [], "the hub sees it on its GPU")
        waiter.send_signal(signal.SIGTERM)
        assert waiter.communicate(timeout=30) == ("", "")
        assert waiter.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
def test_free_has_what_i_reserved_with_the_token_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(f"{CONFIG}read: login\n")
    with running_hub(tmp_path) as hub, pushing(hub, "gpu07", 2) as there:
        site = Site(hub, there, there)
        wait_until(lambda: len(json.loads(site.run("free", "--json")[1])["gpus"]) == 2, "two free GPUs")
        assert site.run("reserve", "gpu07:0", "--for", "1h")[0] == 0
        wait_until(lambda: '"availability":"reserved"' in site.run("show", "--json")[1], "the fleet of the next second")
        mine = json.loads(site.run("free", "--json")[1])["gpus"]
        assert [gpu["uuid"] for gpu in mine] == there.uuids


@pytest.mark.slow
def test_on_a_hub_that_anybody_may_look_at_what_is_mine_is_told_to_those_it_knows(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(f"{CONFIG}read: open\n")
    assert gpudeck(tmp_path, "account", "add", "ada", "--no-password").returncode == 0
    with running_hub(tmp_path) as hub, pushing(hub, "gpu07", 2) as there:
        site = Site(hub, there, there)
        wait_until(lambda: len(json.loads(site.run("free", "--json")[1])["gpus"]) == 2, "two free GPUs")
        assert site.run("reserve", "gpu07:0", "--for", "1h")[0] == 0
        assert "gpu07:0" in site.run("reservations", "--mine")[1]
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        told = gpudeck(stranger, "reservations", "--mine", "--hub", hub.url)
        assert (told.returncode, told.stdout) == (2, "")
        assert "the hub does not know who asks. Log in with `gpudeck login`, or set $GPUDECK_TOKEN." in told.stderr
