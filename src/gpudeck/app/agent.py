"""Start an agent: collectors → beat → outbox → sender, or the desk that others ask, until it is told to stop."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from gpudeck.agent.beat import Beat, Reporter, Taker
from gpudeck.agent.outbox import Outbox
from gpudeck.agent.push import Sender
from gpudeck.agent.settings import AgentSettings
from gpudeck.agent.spool import Spool
from gpudeck.app.signals import AgentReload, AgentSignals
from gpudeck.app.systemd import SystemdNotifier
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import read_once, watch_this_machine
from gpudeck.compat.gpu_cluster_status.settings import GpuClusterStatusSettings
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.hub_url import DEFAULT_HUB, mask_password
from gpudeck.model.settings import Address, is_loopback
from gpudeck.wire import decode

if TYPE_CHECKING:
    from gpudeck.agent.desk import Desk
    from gpudeck.agent.listen import Post

log = logging.getLogger(__name__)
EVERY = 60.0
"""How often a crontab can call, at most."""
_LOOK_SECONDS = 1.0


def run_agent(
    settings: AgentSettings,
    *,
    simulate: int | None,
    seed: int,
    until_stdin_closes: bool,
    as_node: GpuClusterStatusSettings | None = None,
    reload: Callable[[], AgentSettings] | None = None,
) -> None:
    """Run until SIGTERM, SIGINT, or (as a child of the hub) until the hub is gone. Raises UsageError at the start.

    With `as_node` an agent that listens answers a main of GPU Cluster Status Monitor too. `reload` reads the settings
    again when SIGHUP comes, and raises UsageError where they make no sense.
    """
    complete = partial(_complete, is_child=until_stdin_closes)
    settings = complete(settings)
    check_settings(settings, simulate)
    supervisor, orders = SystemdNotifier.of_this_process(), AgentSignals()
    if until_stdin_closes:
        threading.Thread(target=_wait_for_parent, args=(orders.end,), daemon=True).start()
    renewal = AgentReload(
        supervisor,
        read=lambda: settings if reload is None else complete(reload()),
        rehearse=partial(_rehearse, simulate=simulate),
    )
    outbox: Outbox | None = None
    wanted: AgentSettings | None = settings
    try:
        while wanted is not None:
            settings = wanted
            reporters = [_this_machine(settings)] if simulate is None else _simulated(simulate, seed)
            with contextlib.ExitStack() as parts:
                for reporter in reporters:
                    parts.callback(reporter.close)
                outbox = _open_outbox(settings, outbox, reporters[0].host, simulate)
                ways = _open_ways_out(settings, parts, reporters, outbox, as_node=as_node)
                supervisor.ready(f"{_names(reporters)}, read every {settings.interval:g} s")
                pulse = partial(_pulse, supervisor, ways.threads)
                beat = Beat(reporters, ways.takers, settings.interval, pulse=pulse, pulse_pause=supervisor.pause)
                wanted = _beat_until_told(beat, orders, partial(renewal.look, settings))
                if wanted is None:
                    supervisor.stopping()
    finally:
        if outbox is not None:
            outbox.close()


def _open_outbox(settings: AgentSettings, before: Outbox | None, host: str, simulate: int | None) -> Outbox | None:
    """Where reports wait; None where nothing is pushed. `before` is that of the settings until now: what waits in it
    stays, unless it is of a host of another name. The hub might refuse that, and all that comes after."""
    if before is not None and before.host != host:
        before.discard()
        before = None
    if settings.hub is None:
        if before is not None:
            before.close()
        return None
    is_kept = simulate is None and settings.outbox_dir not in {None, "none"}
    spool = Spool(Path(settings.outbox_dir or "") / host, boot_id()) if is_kept else None
    if before is not None:
        before.change(settings.outbox_size, settings.outbox_age, spool)
        return before
    # A simulated fleet has no past worth keeping: where the machine is too slow for it, one report a host may wait.
    return Outbox(simulate, settings.outbox_size, host=host, max_age=settings.outbox_age, spool=spool)


def _complete(settings: AgentSettings, *, is_child: bool) -> AgentSettings:
    if is_child:
        # The hub's own agent: the hub is on this machine, nobody else asks, and it ends with the hub.
        settings = msgspec.structs.replace(settings, listen=None, proxy="none", outbox_dir="none")
    if settings.hub is None and settings.listen is None:
        settings = msgspec.structs.replace(settings, hub=DEFAULT_HUB)
    return settings


def _beat_until_told(
    beat: Beat, orders: AgentSignals, read_again: Callable[[], AgentSettings | None]
) -> AgentSettings | None:
    """Until other settings count, which are returned; None: until it is over."""
    while True:
        beat.run(orders.told)
        orders.told.clear()
        if orders.is_over:
            return None
        if (wanted := read_again()) is not None:
            return wanted


def _pulse(supervisor: SystemdNotifier, threads: Sequence[threading.Thread]) -> None:
    """An agent whose reports go nowhere, as the thread that sends them has died, is not alive."""
    if all(thread.is_alive() for thread in threads):
        supervisor.alive()


def _rehearse(settings: AgentSettings, before: AgentSettings, *, simulate: int | None) -> None:
    """Try what may be refused, as long as the agent still runs as before. Raises UsageError."""
    check_settings(settings, simulate)
    if settings.hub is not None:
        make_sender(settings, settings.hub, Outbox(1, 1), 1)
    if settings.tls is not None:
        from gpudeck.server.tls import Tls  # noqa: PLC0415 - an agent that only pushes needs no server

        Tls(settings.tls)
    if settings.listen is not None and settings.listen != before.listen:
        from gpudeck.model.listening import open_socket  # noqa: PLC0415 - the same

        open_socket(settings.listen).close()


def check_settings(settings: AgentSettings, simulate: int | None) -> None:
    """Raises UsageError for what can be said before anything is opened."""
    if settings.hub is not None and settings.token_file is None:
        raise UsageError("the agent needs the hub's token.", "Give --token-file with a copy of the hub's token file.")
    if settings.listen is None:
        return
    if simulate is not None and simulate > 1:
        raise UsageError("an agent that listens answers for one host.", "Give --simulate 1, or leave out --listen.")
    if settings.token_file is None and not is_loopback(settings.listen.host):
        raise UsageError(
            f"listening on {settings.listen} lets others reach this agent, and nothing says who may ask it; add "
            "`--token-file FILE`, or the line `token_file: FILE` below `agent:` in gpudeck.yaml (the file is made if "
            "it is not there), or listen on 127.0.0.1."
        )


class _Ways(Struct, frozen=True):
    """Where reports go, and the threads that see to it."""

    takers: list[Taker]
    threads: list[threading.Thread]


def _open_ways_out(
    settings: AgentSettings,
    parts: contextlib.ExitStack,
    reporters: Sequence[Reporter],
    outbox: Outbox | None,
    *,
    as_node: GpuClusterStatusSettings | None,
) -> _Ways:
    """Everything that may be refused is opened first, then started; each is stopped when `parts` are closed."""
    takers: list[Taker] = []
    threads: list[threading.Thread] = []
    names = _names(reporters)
    if settings.hub is not None and outbox is not None:
        sender = make_sender(settings, settings.hub, outbox, len(reporters))
        takers.append(outbox)
    if settings.listen is not None:
        desk, thread = parts.enter_context(_listening(settings, settings.listen, names, as_node))
        takers.append(desk)
        threads.append(thread)
    if settings.hub is not None and outbox is not None:
        threads.append(parts.enter_context(_sending(sender, outbox)))
        log.info("reporting %s to %s every %g s", names, mask_password(settings.hub), settings.interval)
    return _Ways(takers, threads)


def make_sender(settings: AgentSettings, hub: str, outbox: Outbox, hosts: int) -> Sender:
    # A backlog is sent fifty times as fast as it grows: an hour of it in little more than a minute. A busy hub slows
    # its senders down by itself, as each waits for its answer.
    pace = settings.interval / (50 * hosts)
    token_file = Path(settings.token_file or "").expanduser()
    return Sender(outbox, hub, token_file, pace, ca_file=settings.ca_file, proxy=settings.proxy)


@contextlib.contextmanager
def _sending(sender: Sender, outbox: Outbox) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,), name="sender")
    keeper = threading.Thread(target=outbox.run, args=(stop,), name="outbox")
    thread.start()
    keeper.start()
    try:
        yield thread
    finally:
        stop.set()
        # A hub that hangs may keep the sender for longer than a service manager waits.
        outbox.save()
        for ended in (thread, keeper):
            ended.join(timeout=20)


@contextlib.contextmanager
def _listening(
    settings: AgentSettings, address: Address, names: str, as_node: GpuClusterStatusSettings | None
) -> Iterator[tuple[Taker, threading.Thread]]:
    """A desk that others can ask on that address. Raises UsageError."""
    from gpudeck.agent.desk import Desk  # noqa: PLC0415 - an agent that only pushes needs no server
    from gpudeck.agent.listen import Listener, ListenToken  # noqa: PLC0415 - the same
    from gpudeck.model.listening import open_socket  # noqa: PLC0415 - the same
    from gpudeck.server.tls import Tls  # noqa: PLC0415 - the same

    token = None if settings.token_file is None else ListenToken(_find_token(settings, settings.token_file))
    desk = Desk()
    certificate = None if settings.tls is None else Tls(settings.tls)
    listener = Listener(open_socket(address), desk, token, certificate, _make_posts(desk, as_node))
    thread = threading.Thread(target=listener.run, name="listener")
    thread.start()
    shown = Address(address.host, listener.port)
    whom = "this machine, without a token" if token is None else f"whoever brings the token of {settings.token_file}"
    log.info("listening on %s: answering for %s, read every %g s, to %s", shown, names, settings.interval, whom)
    try:
        yield desk, thread
    finally:
        listener.stop()
        thread.join(timeout=20)


def _make_posts(desk: "Desk", as_node: GpuClusterStatusSettings | None) -> "dict[str, Post]":
    if as_node is None:
        return {}
    from gpudeck.compat.gpu_cluster_status.node import PATH, NodeDesk  # noqa: PLC0415 - few agents are asked so

    return {PATH: NodeDesk(as_node.password, lambda: desk.newest).answer}


def report_once(settings: AgentSettings, *, simulate: int | None, seed: int) -> bytes:
    """One report of this machine, as JSON for people. What needs two looks, such as rates, is unknown in it."""
    reporter = _this_machine(settings) if simulate is None else _simulated(simulate, seed)[0]
    with contextlib.closing(reporter):
        parcel = reporter.report(time.time(), settings.interval)
    if parcel is None:
        raise UsageError(f"{reporter.host} cannot be read.", "The lines above say why.")
    return msgspec.json.format(msgspec.json.encode(decode(parcel.body, encoding="zstd")), indent=2)


def _find_token(settings: AgentSettings, named: str) -> Path:
    """The token file, made where there is none. One that a hub has to know as well can only be a copy of the hub's."""
    from gpudeck.agent.token_file import ensure_token  # noqa: PLC0415 - an agent that only pushes makes none

    file = Path(named).expanduser()
    if settings.hub is None and not file.exists():
        ensure_token(file)
        log.info("made the token file %s: copy it to the hub, which has to bring the token", file)
    return file


def _this_machine(settings: AgentSettings) -> Reporter:
    this_boot = boot_id()
    return Reporter(settings.name or host_name(), machine_id(), lambda _: this_boot, watch_this_machine(settings))


def _simulated(hosts: int, seed: int) -> list[Reporter]:
    from gpudeck.collectors.simulated import SimulatedFleet, SimulatedHost  # noqa: PLC0415 - not on real machines

    fleet = SimulatedFleet(hosts=hosts, seed=seed)
    return [
        Reporter(name, fleet.host_id(at), partial(fleet.boot_id, at), SimulatedHost(fleet, at), simulated=True)
        for at, name in enumerate(fleet.names)
    ]


def _names(reporters: Sequence[Reporter]) -> str:
    return reporters[0].host if len(reporters) == 1 else f"{len(reporters)} simulated hosts"


def _wait_for_parent(stop: Callable[[], None]) -> None:
    # Not through sys.stdin: a thread that waits inside its lock makes the interpreter's own end a crash.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop()


def push_once(settings: AgentSettings, *, every: float | None = None) -> str:
    """What was done, in a line. `every` is after how many seconds the next report comes: with it the hub knows when
    this host is late. Raises UsageError, Unreachable, and GpudeckError when the hub refuses the report."""
    hub = settings.hub or DEFAULT_HUB
    settings = msgspec.structs.replace(settings, hub=hub, listen=None, interval=every or EVERY)
    check_settings(settings, None)
    sender = make_sender(settings, hub, Outbox(1, 1), 1)
    machine = read_once(settings)
    reporter = Reporter(settings.name or host_name(), machine_id(), lambda _: boot_id(), machine)
    with contextlib.closing(reporter):
        # Rates, such as how busy the CPU is, lie between two looks.
        machine.collect(time.time())
        time.sleep(_LOOK_SECONDS)
        parcel = reporter.report(time.time(), settings.interval)
    if parcel is None:
        raise GpudeckError(f"{reporter.host} cannot be read: the line above says why.")
    sender.send_now(parcel)
    return f"{mask_password(hub)} has a report of {reporter.host}."
