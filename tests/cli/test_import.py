"""gpudeck import against a real hub that watches real, small nodes of the monitors that came before."""

import json
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, NamedTuple

import pytest

from compat.nodes import CAPTURES, GPU_STATS, file_node, xmlrpc_node
from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.waiting import wait_until

STATS = re.search(r"<string>(.*)</string>", GPU_STATS.decode(), re.DOTALL)


class Admin:
    """Somebody at the hub's machine, with the files of the monitor before."""

    def __init__(self, hub: HubProcess, node: int) -> None:
        self.hub = hub
        self.node = node

    def type(self, *arguments: str) -> CompletedProcess[str]:
        return gpudeck(self.hub.data_dir, *arguments, GPUDECK_HUB=self.hub.url, TZ="Europe/Berlin")

    def write(self, name: str, text: str) -> str:
        (self.hub.data_dir / name).write_text(text)
        return name

    def take(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self.type("import", *arguments, "--json").stdout))

    def outcomes(self, *arguments: str) -> list[str]:
        return [step["outcome"] for step in self.take(*arguments)["steps"]]

    def hosts(self) -> dict[str, dict[str, Any]]:
        return {host["name"]: host for host in json.loads(self.hub.get("/api/v1/hosts"))["hosts"]}

    def knows(self, name: str) -> bool:
        host = self.hosts().get(name)
        return host is not None and host["status"] == "up" and len(host["gpus"]) == 2


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("hub")
    assert STATS is not None
    told = STATS[1]
    (folder / "gpudeck.yaml").write_text("local: never\ndemo: never\ndiscovery: {allow_addresses: [127.0.0.0/8]}\n")
    with xmlrpc_node(lambda: told) as node, running_hub(folder, "--config", "gpudeck.yaml") as hub:
        yield Admin(hub, node)


class Watched(NamedTuple):
    """The node, imported twice from a file of gpumonitor: what each command said."""

    dry: CompletedProcess[str]
    hosts_after_dry_run: Collection[str]
    done: CompletedProcess[str]
    again: CompletedProcess[str]


@pytest.fixture(scope="module")
def watched(admin: Admin) -> Watched:
    file = admin.write("config.yml", f"rpc_port: {admin.node}\nrpc_timeout: 2\nhosts:\n  - 127.0.0.1\n  - ../x\n")
    dry = admin.type("import", "gpumonitor", file, "--dry-run")
    hosts = admin.hosts().keys()
    done = admin.type("import", "gpumonitor", file)
    wait_until(lambda: admin.knows("127.0.0.1"), "the node's report")
    return Watched(dry, hosts, done, admin.type("import", "gpumonitor", file))


def test_hosts_of_gpumonitor_are_watched_and_a_second_import_does_nothing(admin: Admin, watched: Watched) -> None:
    assert watched.dry.returncode == 1
    assert f"+ watch 127.0.0.1 via gpumonitor (port {admin.node})" in watched.dry.stdout
    assert "! line 5: '../x' is no name of a host" in watched.dry.stdout
    assert "1 would be done, 0 already present, 1 not imported." in watched.dry.stdout
    assert "127.0.0.1" not in watched.hosts_after_dry_run
    assert "1 done, 0 already present, 1 not imported." in watched.done.stdout
    assert "0 done, 1 already present, 1 not imported." in watched.again.stdout


@pytest.mark.usefixtures("watched")
def test_reservations_are_made_once_and_written_again_as_they_were(admin: Admin) -> None:
    until = time.strftime("%Y-%m-%d 12:30", time.localtime(time.time() + 40 * 86_400))
    entry = {"name": "pnoël", "date": until, "comment": "<b>hi</b> // x"}
    past = {"name": "x", "date": "2018-07-01 00:00"}
    content = json.dumps({"127.0.0.1": {"0": past, "1": entry}, "nobody": [entry], "../x": [entry]})
    file = admin.write("comments.json", content)
    assert admin.outcomes("gpu-monitor", file, "--dry-run") == ["new", "failed"]
    told = admin.take("gpu-monitor", file)
    assert [step["outcome"] for step in told["steps"]] == ["new", "failed"]
    assert "knows no host nobody" in told["steps"][1]["detail"]
    assert [left["reason"] for left in told["left"]] == ["'../x' is no name of a host"]
    assert [left["reason"] for left in told["over"]] == ["ended 2018-07-01 00:00 UTC"]
    assert admin.outcomes("gpu-monitor", file) == ["there", "failed"]
    written = admin.type("reservations", "--format", "comments-json")
    escaped = entry | {"comment": "&lt;b&gt;hi&lt;/b&gt; // x"}
    assert json.loads(written.stdout) == {"127.0.0.1": {"1": escaped}}
    assert admin.outcomes("gpu-monitor", admin.write("out.json", written.stdout)) == ["there"]


def test_hosts_of_web_gpu_monitor_are_read_over_ssh(admin: Admin) -> None:
    file = admin.write(
        "config.ini", "[common]\nuser = monitor\nhosts = nohost1.invalid, nohost2.invalid\nkey_filename=k\n"
    )
    assert admin.outcomes("web-gpu-monitor", file) == ["new", "new"]
    wait_until(lambda: "nohost1.invalid" in admin.hosts(), "the host's line")
    assert admin.hosts()["nohost1.invalid"]["via"] == "ssh"
    told = admin.take("web-gpu-monitor", file)
    assert [step["outcome"] for step in told["steps"]] == ["there", "there"]
    assert told["settings"] == f"ssh:\n  key_files:\n  - {admin.hub.data_dir}/k\n"


@pytest.mark.usefixtures("watched")
def test_users_have_memory_processes_and_places(admin: Admin) -> None:
    assert admin.type("show", "--users").stdout.split() == [
        "USER",
        "GiB",
        "PROCESSES",
        "GPUs",
        "root",
        "7.8",
        "2",
        "127.0.0.1-0",
    ]
    (person,) = json.loads(admin.hub.get("/api/v1/users"))["users"]
    assert (person["user"], person["processes"], person["gpus"]) == ("root", 2, ["127.0.0.1-0"])
    assert person["memory_used_bytes"] == 8000 * 2**20
    columns = admin.type("show", "--csv", "--columns", "web-gpu-monitor").stdout
    assert '0,92,,0, GeForce GTX 1080 Ti, gpumonitor/127.0.0.1/0,127.0.0.1,"root, root"' in columns


@pytest.mark.parametrize("kind", ["gpumonitor", "web-gpu-monitor", "gpu-monitor"])
@pytest.mark.parametrize("text", ["", "just words", "\x00\x01"], ids=["empty", "words", "binary"])
def test_file_of_another_kind_is_wrong_use(tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / "file").write_text(text)
    answer = gpudeck(tmp_path, "import", kind, "file", "--dry-run")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("gpudeck: file")


def test_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    answer = gpudeck(tmp_path, "import", "gpumonitor", "nowhere.yml")
    assert (answer.returncode, answer.stderr) == (
        2,
        "gpudeck: nowhere.yml cannot be read: no such file or directory.\n",
    )


def test_without_a_hub_a_dry_run_tells_the_plan_and_an_import_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("hosts: [gpu01]\n")
    arguments = ("import", "gpumonitor", "config.yml", "--hub", "http://127.0.0.1:9")
    dry = gpudeck(tmp_path, *arguments, "--dry-run")
    assert (dry.returncode, dry.stdout.splitlines()[0]) == (0, "+ watch gpu01 via gpumonitor")
    assert "No hub answers" in dry.stdout
    assert gpudeck(tmp_path, *arguments).returncode == 3


def test_folder_of_gpu_monitor_and_hosts_that_serve_it_are_watched_by_one_hub(tmp_path: Path) -> None:
    folder, served = tmp_path / "data", tmp_path / "served"
    for place, name in ((folder, "copied"), (served, "serving")):
        place.mkdir()
        for file in (CAPTURES / "gpu-monitor-data").iterdir():
            (place / file.name.replace("gputest001", name)).write_bytes(file.read_bytes())
    with file_node(served) as port:
        settings = {
            "local": "never",
            "hosts": [{"name": "serving", "via": "gpu-monitor", "address": "127.0.0.1", "port": port}],
            "names": {"hosts": {"copied": "Big one"}},
            "compat": {"gpu_monitor": {"folder": str(folder)}},
        }
        (tmp_path / "gpudeck.yaml").write_text(json.dumps(settings))
        with running_hub(tmp_path, "--config", "gpudeck.yaml") as hub:
            admin = Admin(hub, port)
            wait_until(lambda: admin.knows("copied") and admin.knows("serving"), "both reports")
            hosts = admin.hosts()
    assert {name: host["via"] for name, host in hosts.items()} == {
        "copied": "gpu-monitor-files",
        "serving": "gpu-monitor",
    }
    assert hosts["copied"]["display_name"] == "Big one"
    assert hosts["serving"]["memory_total_bytes"] == 24103 * 2**20
