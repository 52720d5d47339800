"""This machine without any hub: collectors → the same fleet that a hub would keep → its JSON, once or repeatedly."""

import secrets
import time

from gpudeck import __version__
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import read_once, watch_this_machine
from gpudeck.collectors.settings import CollectorSettings
from gpudeck.hub.fleet import Fleet
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.wire import VERSION, Envelope


def read_this_machine(settings: CollectorSettings) -> bytes:
    """One reading of this machine as a fleet of one host (see model.view.Fleet).

    Drivers are read in forks of this process, with a deadline: one that hangs costs its GPUs, and Ctrl-C ends it.
    """
    machine = read_once(settings)
    now = time.time()
    try:
        report = machine.collect(now)
    finally:
        machine.close()
    envelope = Envelope(
        version=VERSION,
        host=host_name(),
        host_id=machine_id(),
        boot_id=boot_id(),
        run_id=secrets.token_hex(8),
        sequence=1,
        collected_at=now,
        interval_seconds=60.0,
        report=report,
        agent_version=__version__,
    )
    fleet = Fleet(FleetSettings())
    fleet.apply(envelope, via="local", now=now, sent_at=now)
    return fleet.encoded(now, demo=False)


class LocalWatch:
    """Drivers are read in children, with a deadline: one that hangs costs its GPUs. `close` ends them."""

    def __init__(self, settings: CollectorSettings, interval: float = 1.0) -> None:
        self._machine = watch_this_machine(settings)
        self._interval = interval
        self._fleet = Fleet(FleetSettings())
        self._run_id = secrets.token_hex(8)
        self._sequence = 0

    def read(self) -> bytes:
        """This machine as a fleet of one host (see model.view.Fleet). Blocks while it is read."""
        now = time.time()
        report = self._machine.collect(now)
        self._sequence += 1
        envelope = Envelope(
            version=VERSION,
            host=host_name(),
            host_id=machine_id(),
            boot_id=boot_id(),
            run_id=self._run_id,
            sequence=self._sequence,
            collected_at=now,
            interval_seconds=self._interval,
            report=report,
            agent_version=__version__,
        )
        self._fleet.apply(envelope, via="local", now=now, sent_at=now)
        return self._fleet.encoded(now, demo=False)

    def close(self) -> None:
        self._machine.close()
