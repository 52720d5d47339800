"""Start an agent: collectors → report loop → outbox → sender, or the HTTP server that hubs ask, until it is stopped.

One agent usually reports one host; a simulated fleet is many hosts in one loop, each with its own time.
"""

import contextlib
import heapq
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct, field

from gpudeck import __version__
from gpudeck.agent.lock_files import announcing
from gpudeck.agent.outbox import EncodedReport, Outbox, ReportTime, Spool
from gpudeck.agent.push import Sender
from gpudeck.agent.settings import AgentSettings
from gpudeck.agent.signals import AgentSignals, SystemdNotifier
from gpudeck.collectors.base import Collector
from gpudeck.collectors.child import fork_child
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import MachineCollector, read_once, watch_this_machine
from gpudeck.model import clock
from gpudeck.model.address import DEFAULT_HUB, mask_password, split_hubs
from gpudeck.model.errors import GpudeckError, PluginError, UsageError
from gpudeck.model.report import JobCgroup, Report
from gpudeck.model.settings import Address, is_loopback
from gpudeck.wire import SHORT_VERSION, VERSION, Envelope, ShortReport, decode_own, describe, encode, pack_numbers

if TYPE_CHECKING:
    from gpudeck.agent.listen import ListenToken, Post


class Reporter(Struct, eq=False):
    """Makes the envelopes of one host. `boot_id` is asked for every report: a simulated host may be rebooted."""

    host: str
    host_id: str
    boot_id: Callable[[float], str]
    collector: Collector
    simulated: bool = False
    boottime: clock.Clock = clock.boottime
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _sequence: int = 0
    _failing: str | None = None
    _cgroups: list[JobCgroup] = field(default_factory=list)

    def report(self, now: float, interval: float) -> EncodedReport | None:
        """The host's report at this moment, encoded; None for a simulated host that is off. A bug in a collector costs
        the GPUs' values, never the agent."""
        made = ReportTime(now, self.boottime())
        try:
            report = self.collector.collect(now)
        except PluginError as error:
            self._note_failure(str(error))
            return None
        except Exception:  # noqa: BLE001 - the agent never dies because something else did
            self._note_failure("a bug in its collector", trace=True)
            report = Report(gpus_reason="the agent failed while reading them; its log has the details")
        else:
            if self._failing is not None and not self.simulated:
                log.info("%s can be read again", self.host)
            self._failing = None
        return self._seal(report, made, now, interval)

    def _seal(self, report: Report, made: ReportTime, now: float, interval: float) -> EncodedReport:
        self._sequence += 1
        numbers = pack_numbers(report)
        description = "" if numbers is None else describe(report)
        head: dict[str, Any] = {
            "host": self.host,
            "host_id": self.host_id,
            "boot_id": self.boot_id(now),
            "run_id": self.run_id,
            "sequence": self._sequence,
            "collected_at": now,
            "interval_seconds": interval,
            "agent_version": __version__,
            "simulated": self.simulated,
        }
        whole = encode(Envelope(version=VERSION, report=report, description=description, **head))
        if numbers is None:
            return EncodedReport(self.host, whole, made)
        # The collector makes a new list when it has read them.
        cgroups, self._cgroups = self._cgroups, report.job_cgroups
        head["job_cgroups"] = [] if cgroups is self._cgroups else self._cgroups
        short = encode(ShortReport(version=SHORT_VERSION, description=description, numbers=numbers, **head))
        return EncodedReport(self.host, whole, made, description, short)

    def _note_failure(self, failure: str, *, trace: bool = False) -> None:
        if failure != self._failing:
            level = logging.DEBUG if self.simulated else logging.WARNING
            log.log(level, "%s cannot be read: %s", self.host, failure, exc_info=trace)
        self._failing = failure


class ReportReceiver(Protocol):
    """Where reports go. `put` never blocks: the report loop waits for it."""

    def put(self, report: EncodedReport) -> None: ...


class ReportLoop(Struct, eq=False):
    """Runs the reporters in the calling thread until `stop` is set. `timer`, which is never set, says when the next is
    due. `pulse` is called after every report, and every `pulse_pause` seconds."""

    reporters: Sequence[Reporter]
    takers: Sequence[ReportReceiver]
    interval: float
    now: clock.Clock = clock.wall
    timer: clock.Clock = clock.boottime
    pulse: Callable[[], None] = lambda: None
    pulse_pause: float | None = None

    def run(self, stop: threading.Event) -> None:
        """All reporters at once first, so that the hub shows something; then each at its own time."""
        for reporter in self.reporters:
            self._send(reporter)
            if stop.is_set():
                return
        start, step = self.timer(), self.interval / len(self.reporters)
        due = [(start + (at + 1) * step, at) for at in range(len(self.reporters))]
        while not self._wait(stop, due[0][0]):
            moment, at = due[0]
            self._send(self.reporters[at])
            heapq.heapreplace(due, (self.next_due(moment), at))

    def _wait(self, stop: threading.Event, moment: float) -> bool:
        """Until the moment. True: until `stop` was set."""
        while self.pulse_pause is not None and moment - self.timer() > self.pulse_pause:
            if stop.wait(self.pulse_pause):
                return True
            self.pulse()
        return stop.wait(max(0.0, moment - self.timer()))

    def _send(self, reporter: Reporter) -> None:
        report = reporter.report(self.now(), self.interval)
        if report is not None:
            for taker in self.takers:
                taker.put(report)
        self.pulse()

    def next_due(self, moment: float) -> float:
        now, following = self.timer(), moment + self.interval
        return following if now - self.interval <= following else now + self.interval


log = logging.getLogger(__name__)
EVERY = 60.0
"""How often a crontab can call, at most."""
_CHECK_SECONDS = 1.0

MakePosts = Callable[[Callable[[], "Envelope | None"]], "dict[str, Post]"]
"""Makes paths that an agent serves in addition to its own, of the newest report."""


def run_agent(
    settings: AgentSettings,
    *,
    simulate: int | None = None,
    seed: int = 1,
    until_stdin_closes: bool,
    make_posts: MakePosts | None = None,
    reload: Callable[[], AgentSettings] | None = None,
    machine: MachineCollector | None = None,
) -> None:
    """Run until SIGTERM, SIGINT, or (as a child of the hub) until the hub is gone. Raises UsageError at the start.

    `reload` reads the settings again when SIGHUP comes. `machine` has been read once with these settings.
    """
    settings = _complete(settings, is_child=until_stdin_closes)
    check_settings(settings, simulate)
    supervisor, signals = SystemdNotifier.of_this_process(), AgentSignals()
    parent: threading.Thread | None = None
    while True:
        reporters = [_this_machine(settings, machine)] if simulate is None else _simulated(simulate, seed)
        with contextlib.ExitStack() as parts:
            for reporter in reporters:
                parts.callback(reporter.collector.close)
            if simulate is None and machine is None:
                # Before any thread starts, so that the collectors' children are forks. Rates need two readings, too.
                reporters[0].collector.collect(time.time())
            machine = None
            if until_stdin_closes and parent is None:
                parent = threading.Thread(target=_wait_for_parent, args=(signals.end,), daemon=True)
                parent.start()
            takers, threads = _open_outputs(settings, parts, reporters, simulate, make_posts=make_posts)
            supervisor.ready(f"{_names(reporters)}, read every {settings.interval:g} s")
            pulse = partial(_pulse, supervisor, threads)
            loop = ReportLoop(reporters, takers, settings.interval, pulse=pulse, pulse_pause=supervisor.pause)
            wanted: AgentSettings | None = None
            while wanted is None:
                loop.run(signals.received)
                signals.received.clear()
                if signals.is_over:
                    supervisor.stopping()
                    return
                supervisor.reloading()
                wanted = _reload(settings, reload, supervisor, simulate, is_child=until_stdin_closes)
            settings = wanted


def _reload(
    before: AgentSettings,
    read: Callable[[], AgentSettings] | None,
    supervisor: SystemdNotifier,
    simulate: int | None,
    *,
    is_child: bool,
) -> AgentSettings | None:
    """The new settings; None if they have not changed, or have a mistake."""
    try:
        wanted = before if read is None else _complete(read(), is_child=is_child)
        if wanted != before:
            _rehearse(wanted, before, simulate=simulate)
            log.info("the settings have changed: restarting with the new ones")
            return wanted
    except UsageError as error:
        log.error("the new settings cannot be used, the previous ones stay in effect: %s", error)  # noqa: TRY400
        supervisor.ready("running with the previous settings: those in the file cannot be used")
        return None
    log.info("the settings have not changed")
    supervisor.ready()
    return None


def open_outbox(settings: AgentSettings, host: str, simulate: int | None) -> Outbox:
    """The queue of unsent reports. With a folder they are kept on disk across a restart and a reload of the
    settings."""
    is_kept = simulate is None and settings.outbox_dir not in {None, "none"}
    spool = Spool(Path(settings.outbox_dir or "") / f"{host}.db", boot_id()) if is_kept else None
    # A simulated fleet has no past worth keeping: where the machine is too slow for it, one report a host may wait.
    return Outbox(simulate, settings.outbox_size, max_age=settings.outbox_age, spool=spool)


def _complete(settings: AgentSettings, *, is_child: bool) -> AgentSettings:
    if is_child:
        # The hub's own agent: only the hub on this machine asks, and it ends with the hub.
        settings = msgspec.structs.replace(settings, listen=None, proxy="none", outbox_dir="none")
    if settings.hub is None and settings.listen is None:
        settings = msgspec.structs.replace(settings, hub=DEFAULT_HUB)
    return settings


def _pulse(supervisor: SystemdNotifier, threads: Sequence[threading.Thread]) -> None:
    if all(thread.is_alive() for thread in threads):
        supervisor.alive()


def check_start(settings: AgentSettings, *, is_child: bool) -> None:
    _rehearse(_complete(settings, is_child=is_child), None, simulate=None)


def _rehearse(settings: AgentSettings, before: AgentSettings | None, *, simulate: int | None) -> None:
    check_settings(settings, simulate)
    if settings.hub is not None:
        make_sender(settings, settings.hubs, Outbox(1, 1), 1)
    if settings.tls is not None:
        from gpudeck.server.tls import Tls  # noqa: PLC0415 - an agent that only pushes needs no server

        Tls(settings.tls)
    if settings.listen is not None and (before is None or settings.listen != before.listen):
        from gpudeck.model.address import open_socket  # noqa: PLC0415 - the same

        _open_listen_token(settings)
        open_socket(settings.listen).close()


def check_settings(settings: AgentSettings, simulate: int | None) -> None:
    if settings.hub is not None and settings.token_file is None:
        raise UsageError(
            "the agent needs a token.",
            "Run the line that `gpudeck hosts add NAME` prints on the hub, or give --token-file.",
        )
    if settings.listen is None:
        return
    if simulate is not None and simulate > 1:
        raise UsageError("an agent that listens answers for one host.", "Give --simulate 1, or leave out --listen.")
    if settings.token_file is None and not is_loopback(settings.listen.host):
        raise UsageError(
            f"listening on {settings.listen} lets other machines read this agent, and no token protects it; add "
            "`--token-file FILE`, or the line `token_file: FILE` below `agent:` in gpudeck.yaml (the file is created "
            "if it does not exist), or listen on 127.0.0.1."
        )


def _open_outputs(
    settings: AgentSettings,
    parts: contextlib.ExitStack,
    reporters: Sequence[Reporter],
    simulate: int | None,
    *,
    make_posts: MakePosts | None,
) -> tuple[list[ReportReceiver], list[threading.Thread]]:
    """The receivers of reports, and their threads, which end when `parts` are closed. Raises UsageError."""
    takers: list[ReportReceiver] = []
    threads: list[threading.Thread] = []
    names = _names(reporters)
    if settings.listen is not None:
        latest, thread = parts.enter_context(_listening(settings, settings.listen, names, make_posts))
        takers.append(latest)
        threads.append(thread)
    if settings.hub is not None:
        outbox = open_outbox(settings, reporters[0].host, simulate)
        parts.callback(outbox.close)
        takers.append(outbox)
        hub = rank_hubs(settings.hubs, reporters[0].host_id or reporters[0].host)
        if not reporters[0].simulated:
            parts.enter_context(announcing(hub))
        threads.append(parts.enter_context(_sending(make_sender(settings, hub, outbox, len(reporters)), outbox)))
        used, *others = mask_password(hub).split(",")
        instead = f"; if that fails, to {' or '.join(others)}" if others else ""
        log.info("reporting %s to %s every %g s%s", names, used, settings.interval, instead)
    return takers, threads


def rank_hubs(hubs: str, host: str) -> str:
    """The addresses in the order in which this host uses them: another for each host, so that hosts spread over the
    hubs, and those of a hub that is gone over the others."""
    addresses = split_hubs(hubs)
    return ",".join(sorted(addresses, key=lambda one: blake2b(f"{host} {one}".encode()).digest()))


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
    settings: AgentSettings, address: Address, names: str, make_posts: MakePosts | None
) -> Iterator[tuple[ReportReceiver, threading.Thread]]:
    """The newest report, served on that address. Raises UsageError."""
    from gpudeck.agent.listen import LatestReport, Listener  # noqa: PLC0415 - an agent that only pushes needs no server
    from gpudeck.model.address import open_socket  # noqa: PLC0415 - the same
    from gpudeck.server.tls import Tls  # noqa: PLC0415 - the same

    token = _open_listen_token(settings)
    latest = LatestReport()
    certificate = None if settings.tls is None else Tls(settings.tls)
    posts = None if make_posts is None else make_posts(lambda: latest.newest)
    listener = Listener(open_socket(address), latest, token, certificate, posts)
    thread = threading.Thread(target=listener.run, name="listener")
    thread.start()
    shown = Address(address.host, listener.port)
    whom = "this machine, without a token" if token is None else f"callers with the token of {settings.token_file}"
    log.info("listening on %s: answering for %s, read every %g s, to %s", shown, names, settings.interval, whom)
    try:
        yield latest, thread
    finally:
        listener.stop()
        thread.join(timeout=20)


def report_once(settings: AgentSettings, *, simulate: int | None, seed: int) -> bytes:
    """One report of this machine, as JSON for people. Rates, which need two readings, are unknown in it."""
    reporter = _this_machine(settings) if simulate is None else _simulated(simulate, seed)[0]
    with contextlib.closing(reporter.collector):
        report = reporter.report(time.time(), settings.interval)
    if report is None:
        raise UsageError(f"{reporter.host} cannot be read.", "The lines above give the reason.")
    return msgspec.json.format(msgspec.json.encode(decode_own(report.body)), indent=2)


def _open_listen_token(settings: AgentSettings) -> "ListenToken | None":
    """The token that callers have to bring; None without a token file. A file that is not there is made, unless a hub
    has to know the token as well: then it can only be a copy of the hub's. Raises UsageError."""
    if settings.token_file is None:
        return None
    from gpudeck.agent.listen import ListenToken  # noqa: PLC0415 - an agent that only pushes needs no server
    from gpudeck.agent.token_file import ensure_token  # noqa: PLC0415 - the same

    file = Path(settings.token_file).expanduser()
    if settings.hub is None and not file.exists():
        ensure_token(file)
        log.info("created the token file %s: copy it to the hub, which needs it to poll this agent", file)
    return ListenToken(file)


def _this_machine(settings: AgentSettings, machine: MachineCollector | None = None) -> Reporter:
    this_boot = boot_id()
    machine = machine or watch_this_machine(settings, fork_child)
    return Reporter(settings.name or host_name(), machine_id(), lambda _: this_boot, machine)


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
    """A line with the result. `every` is the time in seconds until the next report, from which the hub knows when this
    host is late. Raises UsageError, Unreachable, and GpudeckError when the hub refuses the report."""
    hub = rank_hubs(settings.hubs or DEFAULT_HUB, machine_id() or host_name())
    settings = msgspec.structs.replace(settings, hub=hub, listen=None, interval=every or EVERY)
    check_settings(settings, None)
    sender = make_sender(settings, hub, Outbox(1, 1), 1)
    machine = read_once(settings)
    reporter = Reporter(settings.name or host_name(), machine_id(), lambda _: boot_id(), machine)
    with contextlib.closing(reporter.collector):
        # Rates, such as the CPU's utilization, need two readings.
        machine.collect(time.time())
        time.sleep(_CHECK_SECONDS)
        report = reporter.report(time.time(), settings.interval)
    if report is None:
        raise GpudeckError(f"{reporter.host} cannot be read; the line above gives the reason.")
    return f"{sender.send_now(report)} accepted a report of {reporter.host}."
