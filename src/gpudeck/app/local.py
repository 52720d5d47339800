"""This machine without any hub: collectors → the same fleet that a hub would keep, once or again and again."""

import secrets
import time

from gpudeck import __version__
from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import MachineCollector, read_once, watch_this_machine
from gpudeck.hub.fleet import Fleet
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.view import Fleet as FleetView
from gpudeck.wire import VERSION, Envelope


def read_this_machine(settings: CollectorSettings) -> FleetView:
    """One reading of this machine as a fleet of one host.

    Drivers are read in forks of this process, with a deadline: one that hangs costs its GPUs, and Ctrl-C ends it.
    """
    watch = LocalWatch(read_once(settings), interval=60.0)
    try:
        return watch.read()
    finally:
        watch.close()


def watch_locally(settings: CollectorSettings, interval: float = 1.0) -> "LocalWatch":
    """This machine for a live view. Drivers are read in children, with a deadline: one that hangs costs its GPUs."""
    return LocalWatch(watch_this_machine(settings), interval)


class LocalWatch:
    """A fleet of this machine alone that remembers its last reading. `close` ends what reads drivers."""

    def __init__(self, machine: MachineCollector, interval: float) -> None:
        self._machine = machine
        self._interval = interval
        self._fleet = Fleet(FleetSettings())
        self._run_id = secrets.token_hex(8)
        self._sequence = 0

    def read(self) -> FleetView:
        """This machine as a fleet of one host. Blocks while it is read."""
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
        return self._fleet.view(now, demo=False)

    def close(self) -> None:
        self._machine.close()
