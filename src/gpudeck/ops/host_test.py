"""`gpudeck hosts test`: reads one host as the hub would, and reports each step."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping

from msgspec import Struct

from gpudeck.client import Client
from gpudeck.compat.service import make_providers as make_compat_providers
from gpudeck.discovery.inputs import Provider
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.discovery.registry import make_providers
from gpudeck.fetch import explain
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.target import SOURCES, Target
from gpudeck.model.view import Host
from gpudeck.settings import Settings, choose_data_dir, find_own_token
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.poller import PollMethod

_LIST_SECONDS = 5.0


class Step(Struct, frozen=True):
    """One step. `told` is the result, or the problem and what to do."""

    name: str
    is_good: bool
    told: str


def find_target(
    settings: Settings, name: str, hub: str, *, via: str | None = None, port: int | None = None, user: str | None = None
) -> Target:
    """The host as configured, discovered or added under that name; one that only reports to the hub, as such; any other
    as given by the arguments. Queries discovery and the hub."""
    known = next((target for target in asyncio.run(_list_targets(settings)) if target.name == name), None)
    if known is None:
        source = _source_at(hub, name)
        if source == "simulated":
            raise UsageError(f"{name} is a simulated host.", "Test a real one: `gpudeck hosts test NAME`.")
        way = via or (source if source in SOURCES else "ssh")
        return Target(name=name, via=way, port=port, user=user, origin="this command", is_operators=True)
    if via is not None and via != known.via:
        raise UsageError(f"{name} is configured via {known.via}.", "Leave --via out.")
    return known


async def _list_targets(settings: Settings) -> list[Target]:
    """In order of precedence. A list that cannot be read contributes no host."""
    providers = [*make_providers(settings.hosts, settings.discovery), *make_compat_providers(settings.compat)]
    lists = await asyncio.gather(*(_inspect_list(provider) for provider in providers))
    managed = ManagedHosts(choose_data_dir(settings) / "hosts.yaml").targets()
    return [target for targets in (*lists, managed) for target in targets]


async def _inspect_list(provider: Provider) -> list[Target]:
    try:
        async with asyncio.timeout(_LIST_SECONDS):
            return await provider.find()
    except (GpudeckError, TimeoutError):
        return []
    finally:
        await provider.close()


def _ask_hosts(hub: str) -> list[Host]:
    return Client(hub, token=find_own_token(hub)).hosts()


def _source_at(hub: str, name: str) -> str | None:
    try:
        hosts = _ask_hosts(hub)
    except GpudeckError:
        return None
    return next((host.via for host in hosts if host.name == name), None)


def try_host(target: Target, ways: Mapping[str, PollMethod], hub: str) -> Iterator[Step]:
    """The steps, each as soon as it is done; a failed step is the last. `hub` is asked about a host that pushes."""
    if target.via == "push":
        yield from _ask_hub(target, hub)
        return
    steps = _try(target, ways[target.via])
    with asyncio.Runner() as runner:
        while (step := runner.run(anext(steps, None))) is not None:
            yield step
            if not step.is_good:
                return


async def _try(target: Target, way: PollMethod) -> AsyncIterator[Step]:
    port = target.port or way.port
    if port is not None and not _is_found_by_ssh(target):
        yield await _try_name(target)
        yield await _try_port(target, port)
    arrival, step = await _try_reading(target, way)
    yield step
    if arrival is not None:
        for following in _inspect(arrival.envelope.report, target.via):
            yield following


def _is_found_by_ssh(target: Target) -> bool:
    """Whether ssh_config or a jump host decides where the host is: then its name may be unknown here."""
    return target.via == "ssh" and (target.jump is not None or not _resolves(target.host))


def _resolves(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


async def _try_name(target: Target) -> Step:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(target.host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        told = f"the name {target.host} does not resolve: {reason}. Check it, or set address."
        return Step("name", False, told)
    addresses = sorted({str(entry[4][0]) for entry in found})
    return Step("name", True, f"{target.host} has the address {', '.join(addresses[:4])}")


async def _try_port(target: Target, port: int) -> Step:
    began = time.monotonic()
    try:
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection(target.host, port)
    except (TimeoutError, OSError) as error:
        why = "no answer within 5 s" if isinstance(error, TimeoutError) else explain(error)
        return Step(
            "port", False, f"port {port} of {target.host}: {why}. Check that it listens, and firewalls on the way."
        )
    writer.close()
    return Step("port", True, f"port {port} answers within {(time.monotonic() - began) * 1000:.0f} ms")


async def _try_reading(target: Target, way: PollMethod) -> tuple[FetchedReport | None, Step]:
    name = SOURCES[target.via].step
    began = time.monotonic()
    try:
        source = way.make(target)
        try:
            async with asyncio.timeout(way.deadline):
                arrival = await source.read(time.time())
        finally:
            await source.close()
    except TimeoutError:
        return None, Step(name, False, f"no answer within {way.deadline:g} s.")
    except GpudeckError as error:
        return None, Step(name, False, str(error))
    return arrival, Step(name, True, f"answered within {(time.monotonic() - began) * 1000:.0f} ms")


def _inspect(report: Report, via: str) -> Iterator[Step]:
    gpus = report.gpus
    if not gpus:
        yield Step("driver", False, report.gpus_reason or "it has no GPUs.")
        return
    models = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    missing = [gpu for gpu in gpus if gpu.missing]
    version = f"driver {report.driver_version}: " if report.driver_version else ""
    yield Step("driver", not missing, f"{version}{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} ({models})")
    for gpu in missing:
        yield Step("driver", False, f"GPU {gpu.index} cannot be read: {gpu.missing}")
    yield _inspect_processes(gpus, via)


def _inspect_processes(gpus: list[GpuReading], via: str) -> Step:
    """Most exporters list no processes, which is not a problem."""
    unlisted = next((gpu for gpu in gpus if gpu.processes is None and not gpu.missing), None)
    if unlisted is not None:
        told = f"they are not listed: {unlisted.processes_reason or 'no reason is given'}"
        return Step("processes", not SOURCES[via].lists_processes, told)
    processes = [process for gpu in gpus for process in gpu.processes or ()]
    nameless = next((process for process in processes if process.user is None), None)
    if nameless is not None:
        return Step("processes", False, f"pid {nameless.pid}: {nameless.reasons.get('user', 'its user is unknown')}")
    users = {process.user for process in processes}
    return Step("processes", True, f"{len(processes)} of {len(users)} user{'s' if len(users) != 1 else ''}")


def _ask_hub(target: Target, hub: str) -> Iterator[Step]:
    try:
        hosts = _ask_hosts(hub)
    except GpudeckError as error:
        yield Step("hub", False, str(error))
        return
    yield Step("hub", True, f"{hub} answers")
    found = next((host for host in hosts if host.name == target.name), None)
    if found is None or found.status == "never_seen":
        asked = f"no report yet. On {target.name}, run the line that gpudeck hosts add printed, or gpudeck doctor."
        yield Step("report", False, "; ".join(found.problems if found else ()) or asked)
        return
    is_up = found.status == "up"
    seen = found.last_report_at
    age = "" if seen is None else f", last report {time.time() - seen:.0f} s ago"
    yield Step("report", is_up, f"{found.status}{age}")
    for problem in found.problems:
        yield Step("problem", False, problem)
    unreadable = found.reasons.get("gpus")
    yield Step("driver", unreadable is None, unreadable or f"{len(found.gpus)} GPUs")
