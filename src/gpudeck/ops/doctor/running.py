"""What the running hub says of itself, and whether people reach it at the address that they were given."""

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import urllib3
from msgspec import Struct, field

from gpudeck.agent.route import explain, open_pool
from gpudeck.alerts.notifiers.routes import BOT
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.client import Client
from gpudeck.model.errors import GpudeckError
from gpudeck.model.hub_url import mask_password
from gpudeck.model.view import Host, HostList
from gpudeck.ops.doctor.finding import Area, Finding

_AREA = Area("hub")
_SECONDS = 10.0
_MOST = 20
"""Of hosts with one kind of trouble so many are named."""
_COUNTED = re.compile(
    r'^gpudeck_messages_(failed_total|waiting|given_up_total)\{channel="([^"]*)"\} ([\d.e+]+)$', re.MULTILINE
)


class DatabaseAbout(Struct, frozen=True):
    """`reason` is why its figures are not known."""

    reason: str | None = None
    problem: str | None = None


class History(Struct, frozen=True):
    """`reason` is why its figures are not known."""

    kind: str
    samples_dropped: int | None = None
    behind_seconds: float | None = None
    problem: str | None = None
    reason: str | None = None


class HubState(Struct, frozen=True):
    """What is looked at here of what a hub says about itself (see api.about.HubState)."""

    version: str
    demo: bool
    tick_age_seconds: float
    database: DatabaseAbout
    history: History
    problems: list[str] = field(default_factory=list)


def check_running(client: Client) -> Iterator[Finding]:
    """By its own words. `client` brings the token of an admin, where there is one."""
    try:
        about = client.read(client.about(), HubState)
    except GpudeckError as error:
        # Its certificate is for the name that others use, and not for this machine's own address.
        judge = _AREA.skip if isinstance(error.__cause__, ssl.SSLCertVerificationError) else _AREA.fail
        yield judge("running", error.message.rstrip("."), error.hint or "Start it, and look at its log.")
        return
    yield _AREA.ok("running", f"{client.shown} is gpudeck {about.version}{', a demo' if about.demo else ''}")
    yield from judge_about(about)
    try:
        yield from judge_hosts(client.read(client.hosts(), HostList).hosts)
    except GpudeckError as error:
        yield _AREA.fail("sources", error.message, error.hint)


def judge_about(about: HubState) -> Iterator[Finding]:
    for problem in about.problems:
        yield _AREA.warn("problem", problem.rstrip("."), "It is on the page too; the hub's log has more.")
    if about.tick_age_seconds > 10:
        told = f"the fleet was last published {about.tick_age_seconds:.0f} s ago"
        yield _AREA.fail(
            "running", told, "The hub hangs: look at its log and at the load of its machine, then restart it."
        )
    database, history = about.database, about.history
    trouble = database.problem or database.reason
    if trouble:
        yield _AREA.fail("database", trouble, "Look at its disk or its server, and at the hub's log.")
    if history.problem or history.kind == "unknown":
        told = history.problem or history.reason or "its figures are not known"
        # What waits for a store elsewhere is not lost.
        is_late = history.kind == "prometheus" and history.behind_seconds and not history.samples_dropped
        judge = _AREA.warn if is_late else _AREA.fail
        yield judge("history", told, "Look at the disk, or at the store that history names.")
    elif history.samples_dropped:
        told = f"{history.samples_dropped} samples were dropped since the start"
        yield _AREA.warn("history", told, "The disk or the store is too slow: the hub's log says when.")


def judge_hosts(hosts: list[Host]) -> Iterator[Finding]:
    """Each host that is not up, or has something to say."""
    if not hosts:
        yield _AREA.warn("sources", "the hub knows no host", "gpudeck hosts add NAME prints what to run there.")
        return
    troubled = [host for host in hosts if host.status != "up" or host.problems]
    yield _AREA.ok("sources", f"{len(hosts) - len(troubled)} of {len(hosts)} hosts report without trouble")
    for host in troubled[:_MOST]:
        told = f"{host.name} (via {host.via}) is {host.status}: {'; '.join(host.problems) or 'no reason told'}"
        step = f"gpudeck hosts test {host.name}"
        yield (
            _AREA.fail("source", told, step) if host.status in {"down", "never"} else _AREA.warn("source", told, step)
        )
    if len(troubled) > _MOST:
        yield _AREA.warn("source", f"{len(troubled) - _MOST} more hosts have trouble", "gpudeck hosts list")


def check_messages(settings: NotifySettings, metrics: str) -> Iterator[Finding]:
    """The channels by name: their addresses hold secrets; and the bot, where the hub has one. `metrics` is the hub's
    page; empty where there is none."""
    if not settings.channels:
        yield _AREA.skip(
            "messages", "no channel is configured: nobody is told of alerts", "See notify in gpudeck.yaml."
        )
    counts = {(name, what): float(number) for what, name, number in _COUNTED.findall(metrics)}
    for name, channel in settings.channels.items():
        if channel.url_file is not None and (reason := _why_unreadable(channel.url_file)):
            yield _AREA.fail(
                "messages", f"the file of the channel {name} {reason}", "Check url_file, and who may read it."
            )
            continue
        yield _judge(name, counts)
    if (BOT, "failed_total") in counts:
        yield _judge(BOT, counts)


def _judge(name: str, counts: dict[tuple[str, str], float]) -> Finding:
    return judge_channel(
        name, *(counts.get((name, word), 0.0) for word in ("failed_total", "waiting", "given_up_total"))
    )


def judge_channel(name: str, failed: float, waiting: float, given_up: float) -> Finding:
    person = " --person NAME" if name == BOT else ""
    step = f"gpudeck notify test {name}{person} says what its service answers."
    if given_up:
        return _AREA.fail("messages", f"{given_up:.0f} messages to {name} were given up", step)
    if waiting and failed:
        return _AREA.fail("messages", f"{waiting:.0f} messages to {name} wait, after {failed:.0f} failed tries", step)
    if failed:
        return _AREA.warn("messages", f"{failed:.0f} tries to send to {name} failed, and none waits now", step)
    return _AREA.ok("messages", f"the channel {name} has had no failure")


def _why_unreadable(named: str) -> str | None:
    try:
        return None if Path(named).expanduser().read_text().strip() else "is empty"
    except (OSError, UnicodeError, RuntimeError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def check_public(page: str, token: str | None) -> Iterator[Finding]:
    """The address that people open, as a browser would: the path, and that the live stream is not held back."""
    shown, base = mask_password(page), page.rstrip("/")
    try:
        pool = open_pool(base, None, "environment")
        answer = pool.request("GET", f"{base}/healthz", redirect=False, timeout=_SECONDS)
        if answer.status != 200 or b'"version"' not in answer.data:
            step = "Check the proxy's path and path_prefix; the examples in deploy/nginx and deploy/caddy work."
            yield _AREA.fail("proxy", f"{shown} answers {answer.status}, and not as a hub does", step)
            return
        yield _AREA.ok("proxy", f"{shown} leads to a hub")
        yield _try_stream(pool, base, token)
    except (urllib3.exceptions.HTTPError, OSError, GpudeckError) as error:
        reason = error.message if isinstance(error, GpudeckError) else mask_password(explain(error))
        yield _AREA.fail("proxy", f"{shown} does not answer: {reason}", "Is the proxy running, and the name right?")


def _try_stream(pool: urllib3.PoolManager, base: str, token: str | None) -> Finding:
    headers = {"Accept": "text/event-stream"} | ({"Authorization": f"Bearer {token}"} if token else {})
    answer = pool.request(
        "GET", f"{base}/api/v1/stream", headers=headers, redirect=False, timeout=_SECONDS, preload_content=False
    )
    try:
        if answer.status in {401, 403}:
            return _AREA.skip("stream", "the live stream needs a log-in", "Put a viewer's token into $GPUDECK_TOKEN.")
        if answer.status != 200:
            return _AREA.fail("stream", f"the live stream answers {answer.status}", "Check the proxy's settings.")
        answer.read(1)
    except urllib3.exceptions.ReadTimeoutError:
        step = "Turn buffering off for the hub (nginx: proxy_buffering off; see deploy/nginx)."
        return _AREA.fail("stream", f"nothing of the live stream came within {_SECONDS:g} s", step)
    finally:
        answer.close()
    return _AREA.ok("stream", "the live stream comes at once")
