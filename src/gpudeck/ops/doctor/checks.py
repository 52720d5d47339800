"""The checks for this machine, with the hub and the files that they examine; and the checks of the connection from an
agent to its hub."""

import email.utils
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import urllib3
from msgspec import Struct

from gpudeck import __version__
from gpudeck.agent.push import read_token
from gpudeck.agent.settings import AgentSettings
from gpudeck.client import Client
from gpudeck.client.connection import diagnose
from gpudeck.collectors.host import host_name
from gpudeck.http_client import TRANSPORT_ERRORS, open_pool
from gpudeck.model.address import DEFAULT_HUB, mask_password, split_hubs
from gpudeck.model.errors import ConfigurationError, GpudeckError, UsageError
from gpudeck.model.report import Report
from gpudeck.model.text import clean
from gpudeck.model.view import Fleet
from gpudeck.ops.doctor import Area, Finding, guarded
from gpudeck.ops.doctor.bundle import find_secrets
from gpudeck.ops.doctor.hub import check_hub_files, check_messages, check_public, check_running
from gpudeck.ops.doctor.machine import check_machine, probe_nvml
from gpudeck.settings import ADMIN_FILE, VARIABLE, Settings, choose_data_dir, find_own_token, load_settings, own_address
from gpudeck.wire import VERSION as WIRE_VERSION
from gpudeck.wire import Envelope

_SETTINGS, _AGENT = Area("settings"), Area("agent")
_SECONDS = 5.0
_SKEW_WARN, _SKEW_FAIL = 5.0, 60.0
OF_THE_UNIT = Path("/etc/gpudeck/agent.token")
"""Named on the command line of gpudeck-agent.service, which the doctor cannot see."""


class DoctorContext(Struct, frozen=True):
    """What is examined. `settings` is None if the file has mistakes. `is_hub`: a hub was started here before, or its
    settings are here. `hub` is the URL that the agent reports to."""

    settings: Settings | None
    findings: list[Finding]
    is_hub: bool
    hub: str | None
    here: str = ""
    config: Path | None = None


def load_context(
    config: Path | None, hub: str | None, token_file: str | None, on: str, named: tuple[str, str] | None = None
) -> DoctorContext:
    """Read the settings and detect the role of this machine. `on` is `host`, `hub` or `auto`. `named` is the hub that
    all commands use, with its origin; None for the default."""
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
        yield _AGENT.skip("hub", "no hub is configured to which this machine reports", step)
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


def check_agent(settings: AgentSettings, hub: str) -> Iterator[Finding]:
    """The connection from an agent to each of its hubs: the token's file, the answer, version, clock, and the token."""
    token, finding = check_token_file(settings.token_file)
    yield finding
    try:
        pools = [(url, open_pool(url, settings.ca_file, settings.proxy)) for url in split_hubs(hub)]
    except UsageError as error:
        yield _AGENT.fail("hub", error.message, error.hint)
        return
    for url, pool in pools:
        yield from _check_hub(settings, url, pool, token)
        pool.clear()


def _check_hub(settings: AgentSettings, url: str, pool: urllib3.PoolManager, token: str | None) -> Iterator[Finding]:
    shown = mask_password(url)
    try:
        asked_at = time.time()
        answer = pool.request("GET", f"{url}/healthz", redirect=False, timeout=_SECONDS)
        version = _read_version(answer)
        if version is None:
            told = f"{shown} answers {answer.status}, which is not the answer of a hub"
            yield _AGENT.fail("http", told, find_step(answer.status))
            return
        yield _AGENT.ok("http", f"a hub answers at {shown}")
        yield compare_versions(__version__, version)
        yield compare_clocks((asked_at + time.time()) / 2, answer.headers.get("Date"))
        if token is not None:
            is_real = json.loads(answer.data).get("demo") is False
            yield _try_token(pool, url, token, _write_report(settings) if is_real else b"{}")
    except TRANSPORT_ERRORS as error:
        reason, step = diagnose(error, url, _SECONDS)
        yield _AGENT.fail("http", f"no hub answers at {shown}: {mask_password(reason)}", step)


def check_token_file(named: str | None) -> tuple[str | None, Finding]:
    if named is None:
        return None, _AGENT.fail(
            "token file", "no token file is set", "Give --token-file, or set agent.token_file in gpudeck.yaml."
        )
    file = Path(named).expanduser()
    try:
        token = read_token(file)
        mode = stat.S_IMODE(file.stat().st_mode)
    except UsageError as error:
        if isinstance(error.__cause__, PermissionError):
            step = "Run this as root or as the agent's user to check the token."
            return None, _AGENT.skip("token file", f"this user cannot read {file}", step)
        return None, _AGENT.fail("token file", error.message, error.hint)
    if mode & 0o007:
        return token, _AGENT.warn(
            "token file", f"every user of this machine can read {file} (mode {mode:04o})", f"chmod 600 {file}"
        )
    return token, _AGENT.ok("token file", f"{file} contains a token, and other users cannot read it")


def find_step(status: int) -> str:
    if status in {502, 503, 504}:
        return "A proxy answers, but the hub behind it does not: start the hub, and check its log."
    return "Check the address; it includes the path, if there is one (https://host/gpus)."


def _read_version(answer: urllib3.BaseHTTPResponse) -> str | None:
    try:
        body = json.loads(answer.data)
        return str(body["version"]) if answer.status == 200 and body["status"] == "ok" else None
    except (ValueError, KeyError, TypeError):
        return None


def compare_versions(own: str, other: str) -> Finding:
    """Adjacent minor versions are compatible."""
    if own == other:
        return _AGENT.ok("version", f"gpudeck {own} here and on the hub")
    ours, theirs = own.split(".")[:2], other.split(".")[:2]
    told = f"gpudeck is {own} here, and {other} on the hub"
    if ours[0] != theirs[0] or not (ours[-1] + theirs[-1]).isdigit() or abs(int(ours[-1]) - int(theirs[-1])) > 1:
        return _AGENT.fail("version", told, "Upgrade the older one: only neighbouring minor versions work together.")
    return _AGENT.warn("version", told, "Upgrade the older one.")


def compare_clocks(now: float, date: str | None) -> Finding:
    """`date` is the header of an answer, in whole seconds, which is enough."""
    parsed = email.utils.parsedate_to_datetime(date) if date else None
    if parsed is None:
        return _AGENT.skip("clock", "the hub's answer contains no time")
    skew = now - parsed.timestamp() - 0.5
    told = f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the hub's"
    step = "Check the time service of both machines (timedatectl, chronyc tracking)."
    if abs(skew) >= _SKEW_FAIL:
        return _AGENT.fail("clock", told, step)
    return (
        _AGENT.warn("clock", told, step)
        if abs(skew) >= _SKEW_WARN
        else _AGENT.ok("clock", "this machine's clock and the hub's agree")
    )


def _write_report(settings: AgentSettings) -> bytes:
    """A report that every hub of real hosts refuses; a token for another name is refused first."""
    return msgspec.json.encode(
        Envelope(
            version=WIRE_VERSION,
            host=settings.name or host_name(),
            boot_id="doctor",
            sequence=0,
            collected_at=time.time(),
            interval_seconds=settings.interval,
            report=Report(),
            simulated=True,
        )
    )


def _try_token(pool: urllib3.PoolManager, url: str, token: str, report: bytes) -> Finding:
    """With a report that the hub refuses: the reason of the refusal shows whether the token is valid."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = pool.request(
        "POST", f"{url}/api/v1/reports", body=report, headers=headers, redirect=False, timeout=_SECONDS
    )
    if answer.status == 403 and (refusal := _read_refusal(answer)):
        return _AGENT.fail("token", *refusal)
    if answer.status in {401, 403}:
        step = "Copy agent.token from the hub again, or run there: gpudeck token create NAME --role agent."
        return _AGENT.fail("token", "the hub does not accept this token", step)
    if answer.status in {400, 409, 415, 422}:
        return _AGENT.ok("token", "the hub accepts this token")
    return _AGENT.warn("token", f"the hub answers {answer.status} to a report", "Check the hub's log, and its proxy.")


def _read_refusal(answer: urllib3.BaseHTTPResponse) -> tuple[str, str] | None:
    """The hub's refusal of a valid token that is for another host; None for another refusal."""
    try:
        error = json.loads(answer.data)["error"]
        return (clean(error["message"]), clean(error["hint"])) if error["code"] == "other_host" else None
    except (ValueError, KeyError, TypeError):
        return None
