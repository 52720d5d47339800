"""Which checks are asked on this machine, and the hub and the files that they are about."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.app.doctor.finding import Area, Finding, guarded
from gpudeck.app.doctor.machine import check_machine
from gpudeck.app.doctor.premises import check_premises
from gpudeck.app.doctor.probe import probe_nvml
from gpudeck.app.doctor.route import check_agent
from gpudeck.app.doctor.running import check_messages, check_public, check_running
from gpudeck.app.doctor.scrub import find_secrets
from gpudeck.app.own_token import ADMIN_FILE, VARIABLE, find_own_token
from gpudeck.app.settings import Settings, choose_data_dir, load_settings
from gpudeck.client import Client
from gpudeck.model.errors import ConfigurationError, GpudeckError, UsageError
from gpudeck.model.settings import Address
from gpudeck.model.view import Fleet

_SETTINGS = Area("settings")
OF_THE_UNIT = Path("/etc/gpudeck/agent.token")
"""Named on the command line of gpudeck-agent.service, which nobody sees who runs the doctor."""


class Patient(Struct, frozen=True):
    """What is examined. `settings` is None where the file has mistakes: `findings` then say which.

    `is_hub`: a hub was started here before, or its settings are here. `hub` is the address that the agent reports to;
    None where nothing says so.
    """

    settings: Settings | None
    findings: list[Finding]
    is_hub: bool
    hub: str | None
    here: str = ""
    config: Path | None = None


def admit(config: Path | None, hub: str | None, token_file: str | None, on: str) -> Patient:
    """Read the settings, and see what this machine is. `on` is `host`, `hub` or `auto`."""
    try:
        settings, file = load_settings(config)
    except (ConfigurationError, UsageError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        mistakes = [_SETTINGS.fail("file", line, _next_step(line)) for line in lines]
        return Patient(None, mistakes, False, hub)
    agent = settings.agent
    agent = msgspec.structs.replace(agent, token_file=token_file or agent.token_file or _token_file_of_the_unit())
    settings = msgspec.structs.replace(settings, agent=agent)
    told = "there is no gpudeck.yaml: every setting has its default" if file is None else f"{file} has no mistakes"
    is_hub = on == "hub" or (on == "auto" and hub is None and _has_hub_files(settings))
    wants_agent = on == "host" or agent.hub is not None or agent.token_file is not None
    asked = hub or agent.hub or (Client("http://127.0.0.1:8042").url if wants_agent else None)
    return Patient(
        settings, [_SETTINGS.ok("file", told)], is_hub, None if on == "hub" else asked, _own_address(settings), file
    )


def _next_step(mistake: str) -> str:
    if mistake.endswith("cannot be read: permission denied"):
        return "Run this as the user that the hub or the agent runs as, or as root."
    return "Mend these lines; gpudeck check says whether all is well."


def _token_file_of_the_unit() -> str | None:
    return str(OF_THE_UNIT) if OF_THE_UNIT.exists() else None


def _has_hub_files(settings: Settings) -> bool:
    try:
        folder = choose_data_dir(settings)
    except UsageError:
        return False
    return any((folder / name).exists() for name in ("gpudeck.db", ADMIN_FILE))


def _own_address(settings: Settings) -> str:
    scheme = "http" if settings.tls is None else "https"
    listen = settings.listen
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104
    return f"{scheme}://{Address(host, listen.port)}"


def examine(patient: Patient) -> Iterator[Finding]:
    """All findings, each area as soon as it is asked."""
    yield from patient.findings
    yield from guarded("machine", "machine", lambda: check_machine(probe_nvml))
    settings = patient.settings
    if settings is None:
        return
    if patient.hub is not None:
        hub = patient.hub
        yield from guarded("agent", "agent", lambda: check_agent(settings.agent, hub))
    elif not patient.is_hub:
        step = "Give --hub URL and --token-file FILE, or a gpudeck.yaml with them."
        yield Area("agent").skip("hub", "nothing here says to which hub this machine reports", step)
    if patient.is_hub:
        yield from guarded("hub", "files", lambda: check_premises(settings))
        yield from guarded("hub", "running", lambda: _ask_hub(patient, settings))


def _ask_hub(patient: Patient, settings: Settings) -> Iterator[Finding]:
    client = _client(patient)
    findings = list(check_running(client))
    yield from findings
    is_running = findings[0].verdict == "ok"
    yield from check_messages(settings.notify, client.metrics().decode() if is_running else "")
    if settings.notify.page is not None:
        yield from check_public(settings.notify.page, find_own_token(patient.here, patient.config))


def _client(patient: Patient) -> Client:
    return Client(patient.here, token=find_own_token(patient.here, patient.config))


def ask_fleet(patient: Patient) -> Fleet | None:
    """What this machine's hub shows now, for the archive; None where there is none that answers."""
    if not patient.is_hub:
        return None
    client = _client(patient)
    try:
        return client.read(client.fleet(), Fleet)
    except GpudeckError:
        return None


def list_secrets(patient: Patient) -> set[str]:
    """Everything that must not be in an archive."""
    settings = patient.settings or Settings()
    try:
        folder = choose_data_dir(settings)
        files = sorted({*folder.glob("*.token"), *(Path(name) for name in [settings.token_file] if name)})
    except UsageError:
        files = []
    return find_secrets(settings, files) | {os.environ.get(VARIABLE, "")} - {""}
