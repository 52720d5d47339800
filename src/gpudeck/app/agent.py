"""Start an agent: collectors → beat → outbox → sender, until it is told to stop."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpudeck.agent.beat import Beat, Reporter
from gpudeck.agent.outbox import Outbox
from gpudeck.agent.push import Sender
from gpudeck.agent.settings import AgentSettings
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import watch_this_machine
from gpudeck.model.errors import UsageError

log = logging.getLogger(__name__)


def run_agent(settings: AgentSettings, *, simulate: int | None, seed: int, until_stdin_closes: bool) -> None:
    """Run until SIGTERM, SIGINT, or (as a child of the hub) until the hub is gone. Raises UsageError at the start."""
    if settings.token_file is None:
        raise UsageError("the agent needs the hub's token.", "Give --token-file with a copy of the hub's token file.")
    reporters = [_this_machine(settings)] if simulate is None else _simulated(simulate, seed)
    # A simulated fleet has no past worth keeping: where the machine is too slow for it, one report a host may wait.
    outbox = Outbox(settings.outbox_reports if simulate is None else len(reporters), settings.outbox_size)
    # A backlog is sent fifty times as fast as it grows: an hour of it in little more than a minute. A busy hub slows
    # its senders down by itself, as each waits for its answer.
    pace = settings.interval / (50 * len(reporters))
    sender = Sender(outbox, settings.hub, Path(settings.token_file).expanduser(), pace)
    stop = threading.Event()
    _stop_on_signals(stop.set)
    if until_stdin_closes:
        threading.Thread(target=_wait_for_parent, args=(stop.set,), daemon=True).start()
    sending = threading.Thread(target=sender.run, args=(stop,), name="sender")
    sending.start()
    log.info("reporting %s to %s every %g s", _names(reporters), settings.hub, settings.interval)
    try:
        Beat(reporters, outbox, settings.interval).run(stop)
    finally:
        stop.set()
        sending.join(timeout=20)
        for reporter in reporters:
            reporter.close()


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


def _names(reporters: list[Reporter]) -> str:
    return reporters[0].host if len(reporters) == 1 else f"{len(reporters)} simulated hosts"


def _stop_on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _wait_for_parent(stop: Callable[[], None]) -> None:
    # Not through sys.stdin: a thread that waits inside its lock makes the interpreter's own end a crash.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop()
