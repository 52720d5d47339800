"""This machine without any hub: collectors → the same fleet that a hub would keep → its JSON."""

import secrets
import time

from gpudeck import __version__
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import read_once
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
