"""The example packages, installed as a user installs them, in a real hub and agent; beside plugins that fail."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.hubs import HubProcess, environment, gpudeck, start
from fakes.reports import make_busy_gpu, make_gpu
from fakes.waiting import wait_until
from gpudeck.model.report import Report

EXAMPLES = Path(__file__).parents[2] / "examples"
BROKEN = """
import sys
from gpudeck.history.verdict_rules import VerdictRule
from gpudeck.sources.base import SourcePlugin

class Failing:
    pause = 1.0
    name = origin = "failing"
    problems = ()
    def __init__(self, *_): pass
    async def find(self): raise KeyError("rack")
    async def read(self, *_): raise KeyError("node")
    async def close(self): pass
    def collect(self, now): raise KeyError("card")

def fail(request): raise KeyError("the-secret")

source = SourcePlugin(make=Failing, interval=1.0)
rule = VerdictRule("failing", "", "", "", "", lambda facts: 1 / 0)
"""
POINTS = """
[gpudeck.collectors]
failing = broken:Failing
absent = no_such_module:make
[gpudeck.sources]
failing-source = broken:source
absent-source = no_such_module:source
[gpudeck.discovery]
failing = broken:Failing
[gpudeck.schedulers]
failing = broken:Failing
[gpudeck.notifiers]
failing = broken:fail
[gpudeck.verdict_rules]
absent = no_such_module:rule
failing = broken:rule
"""
SETTINGS = """
demo: never
local: never
hosts:
  - {name: gpu01, via: spool, path: %(folder)s}
  - {name: gpu02, via: failing-source}
  - {name: gpu03, via: absent-source}
discovery:
  plugins:
    - {plugin: failing}
    - {plugin: not-installed}
    - {plugin: inventory, options: {file: %(folder)s/inventory.csv, via: spool, path: %(folder)s}}
schedulers:
  plugins:
    - {plugin: failing}
    - {plugin: allocations, options: {file: %(folder)s/allocations.json}}
notify:
  channels: {log: "logfile://%(folder)s/messages.log", failing: "failing://the-secret"}
"""
BY = "(gpudeck-broken 3.1)"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all packages of examples/, and one whose plugins fail."""
    target = tmp_path_factory.mktemp("plugins")
    packages = sorted(str(folder.parent) for folder in EXAMPLES.glob("*/pyproject.toml"))
    assert len(packages) == 6
    flags = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", target, *packages], check=True)
    (target / "broken.py").write_text(BROKEN)
    about = target / "gpudeck_broken-3.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gpudeck-broken\nVersion: 3.1\n")
    (about / "entry_points.txt").write_text(POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(target))
        patch.setenv("ACME_ACCELERATORS", str(target / "accelerators.json"))
        yield target


@pytest.fixture(scope="module")
def hub(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    for name in ("gpu01", "gpu04"):
        gpus = [make_gpu(0, uuid=f"GPU-{name}-0"), make_busy_gpu(1, "anna", uuid=f"GPU-{name}-1")]
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(Report(gpus=gpus)))
    (folder / "inventory.csv").write_text("name,rack\ngpu04,r7\n,r8\n")
    jobs = {"gpu01": {"count": 2, "jobs": [{"id": "17", "user": "anna", "gpus": [0], "start": time.time() - 600}]}}
    (folder / "allocations.json").write_text(json.dumps(jobs))
    (folder / "gpudeck.yaml").write_text(SETTINGS % {"folder": folder})
    started = HubProcess(folder, ["--listen", "127.0.0.1:0", "--config", str(folder / "gpudeck.yaml")], is_forked=False)
    yield started
    started.stop()


def hosts_of(hub: HubProcess) -> dict[str, Any]:
    return {host["name"]: host for host in json.loads(hub.get("/api/v1/fleet"))["hosts"]}


def touch(hub: HubProcess) -> None:
    for file in hub.data_dir.glob("gpu0*.json"):
        os.utime(file)


def test_source_discovery_and_scheduler_beside_plugins_that_fail(hub: HubProcess) -> None:
    def is_complete() -> bool:
        touch(hub)
        found = hosts_of(hub)
        return all(name in found and found[name]["gpus"] for name in ("gpu01", "gpu04")) and (
            found["gpu01"]["gpus"][0]["allocation"] is not None
        )

    wait_until(is_complete, "the hosts of the plugins", 40)
    found = hosts_of(hub)
    assert found["gpu01"]["via"] == "spool"
    assert [gpu["availability"] for gpu in found["gpu01"]["gpus"]] == ["allocated", "busy"]
    assert found["gpu01"]["gpus"][0]["allocation"]["job"] == "17"
    assert found["gpu04"]["labels"] == {"rack": "r7"}

    def told() -> str:
        fleet = json.loads(hub.get("/api/v1/fleet"))
        return " ".join([*fleet["problems"], *(text for host in fleet["hosts"] for text in host["problems"])])

    wanted = (
        f"the plugin failing-source {BY} failed: KeyError",
        f"the plugin absent-source {BY} failed: ModuleNotFoundError",
        f"the plugin failing {BY} failed: KeyError",
        "no plugin for discovery is called",
        "inventory.csv, line 3: it has no name",
    )
    wait_until(lambda: all(text in told() for text in wanted), "what the failing plugins did", 40)


def test_check_shows_plugins_that_are_missing_or_refuse_their_options(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "gpudeck.yaml"
    file.write_text(
        "discovery: {plugins: [{plugin: inventory, options: {fil: a}}, {plugin: rack}]}\n"
        "schedulers: {plugins: [{plugin: allocations, options: {}}]}\n"
    )
    done = gpudeck(tmp_path, "check", "--config", str(file), PYTHONPATH=str(installed))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert "the plugin inventory (gpudeck-example-discovery 0.1.0): the options are `file`" in lines[0]
    assert "no plugin for discovery is called 'rack'. There are" in lines[1]
    assert "the plugin allocations" in lines[2]
    file.write_text("discovery: {plugins: [{plugin: inventory, options: {file: a}}]}")
    assert gpudeck(tmp_path, "check", "--config", str(file), PYTHONPATH=str(installed)).returncode == 0


def test_a_report_that_is_not_written_any_more_is_late_and_not_free(hub: HubProcess) -> None:
    wait_until(lambda: "gpu04" in hosts_of(hub), "the host of the inventory", 40)
    hour_ago = time.time() - 3600
    os.utime(hub.data_dir / "gpu04.json", (hour_ago, hour_ago))
    wait_until(lambda: hosts_of(hub)["gpu04"]["status"] in {"late", "down"}, "the host is late", 60)
    assert {gpu["availability"] for gpu in hosts_of(hub)["gpu04"]["gpus"]} <= {"unknown"}


def notify(hub: HubProcess, channel: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    return gpudeck(hub.data_dir, "notify", "test", channel, "--config", str(hub.data_dir / "gpudeck.yaml"), **own)


def test_notifiers_send_or_say_whose_fault_it_is(hub: HubProcess) -> None:
    sent = notify(hub, "log")
    assert sent.returncode == 0, sent.stderr
    assert "test" in (hub.data_dir / "messages.log").read_text().lower()
    failed = notify(hub, "failing")
    assert failed.returncode == 1
    told = failed.stdout + failed.stderr
    assert f"the plugin failing {BY} failed with KeyError" in told
    assert "the-secret" not in told


def test_collector_in_an_agent_beside_one_that_fails(hub: HubProcess, installed: Path, tmp_path: Path) -> None:
    card = {"serial": "A-17", "model": "Acme T1", "load": 40, "memory_used": 1024}
    (installed / "accelerators.json").write_text(json.dumps([card]))
    agent = start(
        *(tmp_path, "log", "agent", "--hub", hub.url, "--token-file", str(hub.token_file)),
        *("--interval", "1", "--name", "acme"),
    )
    try:
        wait_until(lambda: bool(hosts_of(hub).get("acme", {}).get("gpus")), "the agent's report", 60)
    finally:
        agent.terminate()
        agent.communicate()
    host = hosts_of(hub)["acme"]
    (gpu,) = host["gpus"]
    assert (gpu["uuid"], gpu["utilization_percent"], gpu["memory_total_bytes"]) == ("ACME-A-17", 40.0, None)
    assert gpu["availability"] in {"unknown", "busy"}
    assert any("failing" in text and "KeyError" in text for text in host["problems"]), host["problems"]
    assert any(f"the plugin absent {BY}" in text for text in host["problems"]), host["problems"]


VERDICT = """
import sys
from gpudeck.history.base import VerdictQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, GpuSample, HOST_NAMES, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings
from pathlib import Path

START, values = 1_700_002_800.0, dict(utilization_percent=95.0, power_watts=200.0, power_limit_watts=700.0)
values |= dict(memory_used_bytes=7e10, memory_total_bytes=8e10)
store = EmbeddedStore(Path(sys.argv[1]), HistorySettings(min_free=0), lambda: START + 3600)
process = ProcessSample(7, START - 60, "alice", "python train.py", None, None, 70_000_000_000, None)
gpu = GpuSample("GPU-1", "0", "H200", 3, tuple(values.get(name) for name in GPU_NAMES), (process,))
for number in range(180):
    store.take([HostSample("id", "gpu01", START + number * 10, 10.0, (1.0,) * len(HOST_NAMES), (gpu,))])
store.flush()
(run,) = store.runs(__import__("gpudeck.history.base").history.base.RunsQuery()).runs
query = VerdictQuery(("GPU-1",), START, START + 1800, run=run.id)
(verdict,), (_,) = store.verdicts([query]), store.verdicts([query])
print([one.rule for one in verdict.suggestions], verdict.suggestions[-1].evidence)
store.close()
"""


def test_verdict_rule_beside_rules_that_fail(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VERDICT, str(tmp_path / "history.db")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'low_power'] mean utilization 95 % at 29 % of the power limit" in done.stdout
    assert f"the plugin absent {BY} failed: ModuleNotFoundError" in done.stderr
    assert f"the rule failing: the plugin failing {BY} failed: ZeroDivisionError" in done.stderr
