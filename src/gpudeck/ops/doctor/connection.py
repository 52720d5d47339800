"""From this agent to its hub, step by step: the token's file, the name, the port, TLS, HTTP, the token, the clock."""

import email.utils
import json
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import urllib3

from gpudeck import __version__
from gpudeck.agent.lock_files import find_agent_hubs
from gpudeck.agent.push import read_token
from gpudeck.agent.settings import AgentSettings
from gpudeck.collectors.host import host_name
from gpudeck.http_client import explain, find_proxy, open_pool
from gpudeck.model.address import mask_password, split_hubs
from gpudeck.model.errors import UsageError
from gpudeck.model.report import Report
from gpudeck.model.text import clean
from gpudeck.ops.doctor import Area, Finding
from gpudeck.wire import VERSION, Envelope

_AREA = Area("agent")
_SECONDS = 5.0
_SKEW_WARN, _SKEW_FAIL = 5.0, 60.0
_SOON_DAYS = 14.0


def check_agent(settings: AgentSettings, hub: str) -> Iterator[Finding]:
    """Of each hub none follows one without which it makes no sense."""
    token, finding = check_token_file(settings.token_file)
    yield finding
    try:
        hubs = [(url, find_proxy(url, settings.proxy)) for url in split_hubs(hub)]
    except UsageError as error:
        yield _AREA.fail("hub", error.message, error.hint)
        return
    for url, proxy in hubs:
        yield from _check_hub(settings, url, proxy, token)
    for running in find_agent_hubs() if len(hubs) > 1 else []:
        used = mask_password(split_hubs(running.url)[0])
        yield _AREA.ok("running", f"the agent that runs here reports to {used}")


def _check_hub(settings: AgentSettings, url: str, proxy: str | None, token: str | None) -> Iterator[Finding]:
    for finding in _reach(url, proxy):
        yield finding
        if finding.verdict == "fail":
            return
    if url.startswith("https:") and proxy is None:
        finding = check_tls(url, settings.ca_file)
        yield finding
        if finding.verdict == "fail":
            return
    yield from _ask(url, settings, token)


def check_token_file(named: str | None) -> tuple[str | None, Finding]:
    if named is None:
        return None, _AREA.fail(
            "token file", "no token file is set", "Give --token-file, or set agent.token_file in gpudeck.yaml."
        )
    file = Path(named).expanduser()
    try:
        token = read_token(file)
        mode = stat.S_IMODE(file.stat().st_mode)
    except UsageError as error:
        if isinstance(error.__cause__, PermissionError):
            step = "Run this as root or as the agent's user to check the token."
            return None, _AREA.skip("token file", f"this user cannot read {file}", step)
        return None, _AREA.fail("token file", error.message, error.hint)
    if mode & 0o007:
        return token, _AREA.warn(
            "token file", f"every user of this machine can read {file} (mode {mode:04o})", f"chmod 600 {file}"
        )
    return token, _AREA.ok("token file", f"{file} contains a token, and other users cannot read it")


def _reach(url: str, proxy: str | None) -> Iterator[Finding]:
    parts = urlsplit(proxy or url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    what = "the proxy" if proxy else "the hub"
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        step = "Check the name, /etc/hosts and /etc/resolv.conf, or use an IP address."
        yield _AREA.fail("name", f"the name of {what}, {host}, does not resolve: {reason.lower()}", step)
        return
    yield _AREA.ok("name", f"{what} {host} has the address {', '.join(addresses[:4])}")
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        yield _AREA.fail("port", f"port {port} of {host}: {_say(error)}", _no_port(error, what))
        return
    yield _AREA.ok("port", f"port {port} of {host} answers within {(time.monotonic() - began) * 1000:.0f} ms")


def _no_port(error: OSError, what: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"Check that {what} runs, and that it listens for other machines (listen)."
    return "Check the address, and firewalls on the way."


def check_tls(url: str, ca_file: str | None) -> Finding:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(Path(ca_file).expanduser()))
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            ends_at = ssl.cert_time_to_seconds(str((connection.getpeercert() or {})["notAfter"]))
    except (OSError, ValueError) as error:
        step = "Set agent.ca_file to your CA's certificate, use the name that the certificate is for, or renew it."
        return _AREA.fail("tls", f"no TLS connection to {host}: {_say(error)}", step)
    days = (ends_at - time.time()) / 86_400
    if days < _SOON_DAYS:
        return _AREA.warn(
            "tls", f"the certificate of {host} expires in {days:.0f} days", "Renew it on the hub or its proxy."
        )
    return _AREA.ok("tls", f"the certificate of {host} is trusted, and valid for {days:.0f} more days")


def _ask(url: str, settings: AgentSettings, token: str | None) -> Iterator[Finding]:
    shown = mask_password(url)
    try:
        pool = open_pool(url, settings.ca_file, settings.proxy)
    except UsageError as error:
        yield _AREA.fail("http", error.message, error.hint)
        return
    try:
        asked_at = time.time()
        answer = pool.request("GET", f"{url}/healthz", redirect=False, timeout=_SECONDS)
        version = _read_version(answer)
        if version is None:
            yield _AREA.fail(
                "http", f"{shown} answers {answer.status}, which is not the answer of a hub", find_step(answer.status)
            )
            return
        yield _AREA.ok("http", f"a hub answers at {shown}")
        yield compare_versions(__version__, version)
        yield compare_clocks((asked_at + time.time()) / 2, answer.headers.get("Date"))
        if token is not None:
            is_real = json.loads(answer.data).get("demo") is False
            yield _try_token(pool, url, token, _write_report(settings) if is_real else b"{}")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        step = "Check the hub's log, and proxies and firewalls on the way."
        yield _AREA.fail("http", f"{shown} does not answer: {mask_password(explain(error))}", step)
    finally:
        pool.clear()


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
    """Neighbouring minor versions understand each other."""
    if own == other:
        return _AREA.ok("version", f"gpudeck {own} here and on the hub")
    ours, theirs = own.split(".")[:2], other.split(".")[:2]
    told = f"gpudeck is {own} here, and {other} on the hub"
    if ours[0] != theirs[0] or not (ours[-1] + theirs[-1]).isdigit() or abs(int(ours[-1]) - int(theirs[-1])) > 1:
        return _AREA.fail("version", told, "Upgrade the older one: only neighbouring minor versions work together.")
    return _AREA.warn("version", told, "Upgrade the older one.")


def compare_clocks(now: float, date: str | None) -> Finding:
    """`date` is the header of an answer: of whole seconds, which is enough."""
    parsed = email.utils.parsedate_to_datetime(date) if date else None
    if parsed is None:
        return _AREA.skip("clock", "the hub's answer contains no time")
    skew = now - parsed.timestamp() - 0.5
    told = f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the hub's"
    step = "Check the time service of both machines (timedatectl, chronyc tracking)."
    if abs(skew) >= _SKEW_FAIL:
        return _AREA.fail("clock", told, step)
    return (
        _AREA.warn("clock", told, step)
        if abs(skew) >= _SKEW_WARN
        else _AREA.ok("clock", "this machine's clock and the hub's agree")
    )


def _write_report(settings: AgentSettings) -> bytes:
    """A report that every hub of real hosts refuses; a token for another name is refused first."""
    return msgspec.json.encode(
        Envelope(
            version=VERSION,
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
        return _AREA.fail("token", *refusal)
    if answer.status in {401, 403}:
        step = "Copy agent.token from the hub again, or run there: gpudeck token create NAME --role agent."
        return _AREA.fail("token", "the hub does not accept this token", step)
    if answer.status in {400, 409, 415, 422}:
        return _AREA.ok("token", "the hub accepts this token")
    return _AREA.warn("token", f"the hub answers {answer.status} to a report", "Check the hub's log, and its proxy.")


def _read_refusal(answer: urllib3.BaseHTTPResponse) -> tuple[str, str] | None:
    """What the hub says of a token that is good, for another host; None where it is not that."""
    try:
        error = json.loads(answer.data)["error"]
        return (clean(error["message"]), clean(error["hint"])) if error["code"] == "other_host" else None
    except (ValueError, KeyError, TypeError):
        return None


def _say(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.lower()
    if isinstance(error, ssl.SSLError):
        return "it does not accept TLS; if it has none, its address begins with http://"
    return (getattr(error, "strerror", None) or str(error)).lower()
