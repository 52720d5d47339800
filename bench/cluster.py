"""Left out: TLS, networks, replicas of PostgreSQL, NATS and the store, viewers, message channels.

1, 2 and 3 hubs of one cluster with a real PostgreSQL, NATS and VictoriaMetrics, and N hosts of eight GPUs that report
every 5 s, spread over the hubs; all on this machine's cores. CPU is of all threads of each hub, by the reports of the
whole fleet: every hub takes part in each. The reference is one hub without a cluster on the same database and store,
measured in the same run. A change is seen when a report that one hub took is in the fleet of another; the time between
two looks, 5 ms, is part of it. A takeover is from kill -9 of the owner until another hub has the duty.

    python -m bench cluster --hosts 300 --seconds 30 --hubs 1,2,3
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.hostile import percentile
from bench.processes import HubUnderTest, all_cpu_seconds, rss_mib
from bench.reports import make_reading
from bench.scale import WARM_UP, Seen, collect, running_senders, start_all
from gpudeck.cluster.service import DUTIES
from gpudeck.model.report import Report
from gpudeck.wire import Envelope, encode

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.append(str(TESTS))

if TYPE_CHECKING:
    from fakes.nats_server import NatsServer  # type: ignore[import-not-found]
    from fakes.prometheus import StoreProcess  # type: ignore[import-not-found]

_CHECK_SECONDS = 0.005
_CHANGES = 60
_reference: dict[str, float] = {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench cluster")
    parser.add_argument("--hosts", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long is measured, after a warm-up")
    parser.add_argument("--hubs", default="1,2,3", help="how many, one measurement each")
    parser.add_argument("--senders", type=int, default=max(1, min(8, (os.cpu_count() or 2) - 2)), help="processes")
    asked = parser.parse_args(sys.argv[sys.argv.index("cluster") + 1 :] if "cluster" in sys.argv else [])
    asked.wire = 2
    print((__doc__ or "").strip())
    print(f"\n{os.cpu_count()} cores, {asked.hosts} hosts, {8 * asked.hosts} GPUs", flush=True)
    columns = [_measure(0, asked), *(_measure(hubs, asked) for hubs in map(int, asked.hubs.split(",")))]
    names = [name for name in columns[-1] if name != "hubs"]
    rows = [("", *(column["hubs"] for column in columns))]
    rows += [(name, *(column.get(name, "") for column in columns)) for name in names]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _measure(hubs: int, asked: argparse.Namespace) -> dict[str, str]:
    """Without hubs: the reference, one hub without a cluster."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = list(_start_hubs(max(1, hubs), stack, folder, is_cluster=hubs > 0))
        token = (folder / "agents.token").read_text().strip()
        seen, costs, memory = _load(running, token, asked)
        cost = sum(costs) / max(1, len(seen.reports))
        one_cost = _reference.setdefault("cost", cost)
        found = {
            "hubs": "one, no cluster" if not hubs else str(hubs),
            "reports a second": f"{len(seen.reports) / asked.seconds:,.0f} of {asked.hosts / 5:,.0f}",
            "answer to a report, p50 / p99, ms": _spread(seen.reports),
            "errors": str(sum(seen.errors.values())),
            "CPU a report, each hub, µs": ", ".join(f"{1e6 * one / max(1, len(seen.reports)):.0f}" for one in costs),
            "CPU a report, all hubs, µs": f"{1e6 * cost:.0f}",
            "  ratio to one hub without a cluster": f"{cost / one_cost:.2f}",
            "hosts that a core of each hub carries": f"{_carried(costs, asked):,.0f}",
            "memory of each hub, MiB": ", ".join(f"{one:.0f}" for one in memory),
        }
        if hubs > 1:
            found["a change seen on another hub, p50 / p99, ms"] = _spread(_time_changes(running, token))
            found |= _time_takeovers(running)
        return found


def _carried(costs: list[float], asked: argparse.Namespace) -> float:
    """How many hosts keep one core of the busiest hub busy, at 5 s."""
    return float(asked.hosts / max(1e-9, max(costs) / asked.seconds))


def _start_hubs(count: int, stack: contextlib.ExitStack, folder: Path, *, is_cluster: bool) -> Iterator[HubUnderTest]:
    from fakes.nats_server import running_nats  # noqa: PLC0415 - the tests' own, found only now
    from fakes.postgres import running_postgres  # type: ignore[import-not-found]  # noqa: PLC0415
    from fakes.prometheus import running_store  # noqa: PLC0415

    nats: NatsServer = stack.enter_context(running_nats())
    store: StoreProcess = stack.enter_context(running_store("victoria-metrics"))
    address = stack.enter_context(running_postgres()).make_database()
    token = folder / "agents.token"
    token.write_text("bench-" + "0123456789abcdef" * 3 + "\n")
    token.chmod(0o600)
    for number in range(count):
        own = folder / f"hub{number}"
        own.mkdir()
        cluster = f"cluster: {{bus: '{nats.url}', name: hub{number}}}\n" if is_cluster else ""
        config = (
            "demo: never\nlocal: never\nlimits: {unlimited: [127.0.0.0/8]}\n"
            "fleet: {max_hosts: 100000, max_hosts_per_token: 100000}\n"
            f"history: {{kind: prometheus, write_url: '{store.write_url}', read_url: '{store.read_url}'}}\n"
            f"database: {address}\ntoken_file: {token}\n{cluster}"
        )
        hub = stack.enter_context(HubUnderTest(own, config))
        _wait_ready(hub)
        yield hub


def _wait_ready(hub: HubUnderTest) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if _get(hub, "/readyz")["status"] in {"ready", "degraded"}:
                return
        time.sleep(0.2)
    sys.exit("a hub was not ready within a minute")


def _load(hubs: list[HubUnderTest], token: str, asked: argparse.Namespace) -> tuple[Seen, list[float], list[float]]:
    """What senders saw, CPU seconds and MiB of each hub."""
    seen = Seen()
    begin = time.time() + 1.0
    since = begin + max(WARM_UP, asked.hosts / 200)
    until = since + asked.seconds
    with contextlib.ExitStack() as stack:
        groups, first = [], 0
        for number, hub in enumerate(hubs):
            end = asked.hosts * (number + 1) // len(hubs)
            name = stack.enter_context(tempfile.TemporaryDirectory())
            groups.append(stack.enter_context(running_senders(end - first, asked, hub.port, token, name, first=first)))
            first = end
        for group in groups:
            start_all(group, begin, since, until)
        time.sleep(max(0.0, since - time.time()))
        before = [all_cpu_seconds(hub.process.pid) for hub in hubs]
        time.sleep(max(0.0, until - time.time()))
        costs = [all_cpu_seconds(hub.process.pid) - cpu for hub, cpu in zip(hubs, before, strict=True)]
        memory = [rss_mib(hub.process.pid) for hub in hubs]
        for group in groups:
            collect(group, seen)
    return seen, costs, memory


def _time_changes(hubs: list[HubUnderTest], token: str) -> list[float]:
    """From the answer to a report until another hub shows it."""
    chance, found = random.Random(1), []
    senders = [http.client.HTTPConnection("127.0.0.1", hub.port, timeout=10) for hub in hubs]
    for sequence in range(1, _CHANGES + 1):
        one, other = chance.sample(range(len(hubs)), 2)
        load = 1 + sequence % 99
        reading = make_reading(99_999, 0, chance)
        report = Report(gpus=[reading], metrics={"cpu_percent": float(load)})
        envelope = Envelope(
            version=1,
            host="changing",
            host_id="machine-changing",
            boot_id="boot",
            run_id="run",
            sequence=sequence,
            collected_at=time.time(),
            interval_seconds=5.0,
            report=report,
        )
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"}
        headers |= {"Content-Encoding": "zstd", "Gpudeck-Sent-At": repr(time.time())}
        senders[one].request("POST", "/api/v1/reports", encode(envelope), headers)
        senders[one].getresponse().read()
        begun = time.perf_counter()
        while time.perf_counter() - begun < 10:
            with contextlib.suppress(KeyError):
                if _get(hubs[other], "/api/v1/hosts/changing")["cpu_percent"] == load:
                    break
            time.sleep(_CHECK_SECONDS)
        found.append(time.perf_counter() - begun)
    for sender in senders:
        sender.close()
    return found


def _time_takeovers(hubs: list[HubUnderTest]) -> dict[str, str]:
    """The owner of the alerts is killed: which other duties it had, is seen then."""
    owners = _owners(hubs[0])
    victim = next((hub for hub in hubs if hub.process.pid and owners.get("alerts") == _name_of(hub)), hubs[0])
    lost = [duty for duty, owner in owners.items() if owner == _name_of(victim)]
    others = [hub for hub in hubs if hub is not victim]
    victim.process.kill()
    begun, taken = time.perf_counter(), dict[str, float]()
    while len(taken) < len(lost) and time.perf_counter() - begun < 40:
        now = _owners(others[0])
        for duty in lost:
            if duty not in taken and now.get(duty) not in {None, _name_of(victim)}:
                taken[duty] = time.perf_counter() - begun
        time.sleep(0.1)
    named = {duty: f"{seconds:.1f} s" for duty, seconds in taken.items() if duty in DUTIES}
    shards = [seconds for duty, seconds in taken.items() if duty not in DUTIES]
    shown = {"takeover: polling, slowest shard": f"{max(shards):.1f} s"} if shards else {}
    return {f"takeover: {duty}": told for duty, told in sorted(named.items())} | shown


def _name_of(hub: HubUnderTest) -> str:
    return hub.folder.name


def _owners(hub: HubUnderTest) -> dict[str, str | None]:
    return {duty["name"]: duty["owner"] for duty in _get(hub, "/api/v1/about")["cluster"]["duties"]}


def _get(hub: HubUnderTest, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=10)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def _spread(seconds: list[float]) -> str:
    return " / ".join(f"{1e3 * percentile(seconds, percent):.1f}" for percent in (50, 99)) if seconds else ""
