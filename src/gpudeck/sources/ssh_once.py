"""Hosts over SSH without any hub: sources → the same fleet that a hub would keep."""

import asyncio
import getpass
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from gpudeck.fleet.state import FleetState
from gpudeck.model.availability import FleetSettings
from gpudeck.model.errors import GpudeckError
from gpudeck.model.target import Target
from gpudeck.model.view import Fleet
from gpudeck.sources.base import FetchedReport, MakeSource, SshLoginRefused, SshSettings
from gpudeck.sources.registry import import_ssh

# Logins take turns: where there are many hosts, the last may need longer.
_SECONDS_A_HOST = 0.05

Ask = Callable[[Sequence[str]], str | None]
"""Asks a person for the password of these hosts; None without a terminal."""

_Result = tuple[FetchedReport, float] | GpudeckError
"""What was read and when it had come, or why it was not."""


class SshScan(Struct, frozen=True):
    """What was seen: the fleet, and why hosts are missing in it, by name."""

    fleet: Fleet
    failures: dict[str, str]


def read_over_ssh(targets: Sequence[Target], settings: SshSettings, ask: Ask) -> SshScan:
    """Read every host once, all at the same time. Blocks. Where keys are refused, a person is asked once.

    Raises UsageError where no SSH library is installed, or a target cannot be meant.
    """
    return asyncio.run(_read(targets, settings, ask))


def ask_password(hosts: Sequence[str]) -> str | None:
    """A password from the terminal, not shown while it is typed; None without a terminal or an answer."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return None
    named = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    try:
        return getpass.getpass(f"No key is accepted by {named}. Password: ", stream=sys.stderr) or None
    except EOFError:
        return None


async def _read(targets: Sequence[Target], settings: SshSettings, ask: Ask) -> SshScan:
    make = import_ssh().make
    deadline = settings.deadline + _SECONDS_A_HOST * len(targets)
    settings_for_all = msgspec.structs.replace(settings, deadline=deadline)
    results = await _read_all(make(settings_for_all), targets, deadline)
    refused = [target for target in targets if isinstance(results[target.name], SshLoginRefused)]
    password = ask([target.name for target in refused]) if refused and not settings.password_file else None
    if password is not None:
        results |= await _read_all(make(settings_for_all, password), refused, deadline)
    return _show(targets, results)


async def _read_all(make: MakeSource, targets: Sequence[Target], deadline: float) -> dict[str, _Result]:
    readings = await asyncio.gather(*(_read_one(make, target, deadline) for target in targets))
    return {target.name: reading for target, reading in zip(targets, readings, strict=True)}


async def _read_one(make: MakeSource, target: Target, deadline: float) -> _Result:
    source = make(target)
    try:
        async with asyncio.timeout(deadline):
            fetched = await source.read(time.time())
    except GpudeckError as error:
        return error
    except TimeoutError:
        return GpudeckError(f"It did not answer within {deadline:g} s.")
    else:
        return fetched, time.time()
    finally:
        await source.close()


def _show(targets: Sequence[Target], results: dict[str, _Result]) -> SshScan:
    fleet = FleetState(FleetSettings())
    fleet.expect(targets)
    failures = {}
    for target in targets:
        result = results[target.name]
        try:
            if isinstance(result, GpudeckError):
                raise result
            fetched, at = result
            fleet.apply(fetched.envelope, via="ssh", now=at, sent_at=fetched.sent_at, target=target.name)
        except GpudeckError as error:
            failures[target.name] = str(error)
            fleet.note_failure(target.name, str(error))
    return SshScan(fleet.view(time.time(), demo=False), failures)
