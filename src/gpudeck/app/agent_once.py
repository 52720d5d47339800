"""One report of this machine, pushed, and the end: for hosts on which nothing may stay running, and a crontab calls."""

import contextlib
import time

import msgspec

from gpudeck.agent.beat import Reporter
from gpudeck.agent.outbox import Outbox
from gpudeck.agent.settings import AgentSettings
from gpudeck.app.agent import check_settings, make_sender
from gpudeck.collectors.host import boot_id, host_name, machine_id
from gpudeck.collectors.machine import read_once
from gpudeck.model.errors import GpudeckError
from gpudeck.model.hub_url import DEFAULT_HUB, mask_password

EVERY = 60.0
"""How often a crontab can call, at most."""
_LOOK_SECONDS = 1.0


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
