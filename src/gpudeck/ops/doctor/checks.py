"""Which checks are run on this machine, and the hub and the files that they are about."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.client import Client
from gpudeck.model.address import DEFAULT_HUB, mask_password
from gpudeck.model.errors import ConfigurationError, GpudeckError, UsageError
from gpudeck.model.view import Fleet
from gpudeck.ops.doctor import Area, Finding, guarded
from gpudeck.ops.doctor.bundle import find_secrets
from gpudeck.ops.doctor.connection import check_agent
from gpudeck.ops.doctor.hub import check_hub_files, check_messages, check_public, check_running
from gpudeck.ops.doctor.machine import check_machine, probe_nvml
from gpudeck.settings import ADMIN_FILE, VARIABLE, Settings, choose_data_dir, find_own_token, load_settings, own_address

_SETTINGS = Area("settings")
OF_THE_UNIT = Path("/etc/gpudeck/agent.token")
"""Named on the command line of gpudeck-agent.service, which the doctor cannot see."""


class DoctorContext(Struct, frozen=True):
    """What is examined. `settings` is None where the file has mistakes. `is_hub`: a hub was started here before, or its
    settings are here. `hub` is the address that the agent reports to."""

    settings: Settings | None
    findings: list[Finding]
    is_hub: bool
    hub: str | None
    here: str = ""
    config: Path | None = None


def load_context(
    config: Path | None, hub: str | None, token_file: str | None, on: str, named: tuple[str, str] | None = None
) -> DoctorContext:
    """Read the settings, and see what this machine is. `on` is `host`, `hub` or `auto`. `named` is the hub that all
    commands use, and what names it; None for the default."""
    try:
        settings, file = load_settings(config)
    except (ConfigurationError, UsageError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        mistakes = [_SETTINGS.fail("file", line, next_step(line)) for line in lines]
        return DoctorContext(None, mistakes, False, hub)
    agent = settings.agent
    agent = msgspec.structs.replace(agent, token_file=token_file or agent.token_file or _token_file_of_the_unit())
    settings = msgspec.structs.replace(settings, agent=agent)
    told = "no gpudeck.yaml was found, so every setting has its default" if file is None else f"{file} has no mistakes"
    is_hub = on == "hub" or (on == "auto" and hub is None and _has_hub_files(settings))
    wants_agent = on == "host" or agent.hub is not None or agent.token_file is not None
    asked = hub or agent.hubs or (DEFAULT_HUB if wants_agent else None)
    url, why = named or (DEFAULT_HUB, "the default")
    used = _SETTINGS.ok("hub", f"commands here use {mask_password(url)} ({why})")
    return DoctorContext(
        settings,
        [_SETTINGS.ok("file", told), used],
        is_hub,
        None if on == "hub" else asked,
        own_address(settings),
        file,
    )


def next_step(mistake: str) -> str:
    if mistake.endswith("cannot be read: permission denied"):
        return "Run this as root, or as the user of the hub or the agent."
    return "Correct this, then run gpudeck check."


def _token_file_of_the_unit() -> str | None:
    return str(OF_THE_UNIT) if OF_THE_UNIT.exists() else None


def _has_hub_files(settings: Settings) -> bool:
    try:
        folder = choose_data_dir(settings)
    except UsageError:
        return False
    return any((folder / name).exists() for name in ("gpudeck.db", ADMIN_FILE))


def run_checks(context: DoctorContext) -> Iterator[Finding]:
    yield from context.findings
    yield from guarded("machine", "machine", lambda: check_machine(probe_nvml))
    settings = context.settings
    if settings is None:
        return
    if context.hub is not None:
        hub = context.hub
        yield from guarded("agent", "agent", lambda: check_agent(settings.agent, hub))
    elif not context.is_hub:
        step = "If it has an agent, give --hub URL and --token-file FILE, or set agent.hub and agent.token_file."
        yield Area("agent").skip("hub", "no hub is configured to which this machine reports", step)
    if context.is_hub:
        yield from guarded("hub", "files", lambda: check_hub_files(settings))
        yield from guarded("hub", "running", lambda: _ask_hub(context, settings))


def _ask_hub(context: DoctorContext, settings: Settings) -> Iterator[Finding]:
    client = _client(context)
    findings = list(check_running(client))
    yield from findings
    is_running = findings[0].verdict == "ok"
    yield from check_messages(settings.notify, client.metrics().decode() if is_running else "")
    if settings.notify.page is not None:
        yield from check_public(settings.notify.page, find_own_token(context.here, context.config))


def _client(context: DoctorContext) -> Client:
    return Client(context.here, token=find_own_token(context.here, context.config))


def ask_fleet(context: DoctorContext) -> Fleet | None:
    if not context.is_hub:
        return None
    client = _client(context)
    try:
        return client.read(client.get("/api/v1/fleet"), Fleet)
    except GpudeckError:
        return None


def list_secrets(context: DoctorContext) -> set[str]:
    settings = context.settings or Settings()
    try:
        folder = choose_data_dir(settings)
        files = sorted({*folder.glob("*.token"), *(Path(name) for name in [settings.token_file] if name)})
    except UsageError:
        files = []
    return find_secrets(settings, files) | {os.environ.get(VARIABLE, "")} - {""}
