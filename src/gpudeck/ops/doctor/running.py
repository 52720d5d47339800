"""Checks the running hub: its own status, and whether its public address reaches it."""

import re
from collections.abc import Iterator
from pathlib import Path

import urllib3
from msgspec import Struct, field

from gpudeck.alerts.notifiers.routes import BOT
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.client import Client
from gpudeck.http_client import explain, find_distrust, open_pool
from gpudeck.model.address import mask_password
from gpudeck.model.errors import GpudeckError
from gpudeck.model.view import DatabaseState, HistoryState, Host, HostList
from gpudeck.ops.doctor import Area, Finding
from gpudeck.views.text import show_status

_AREA = Area("hub")
ANSWER_SECONDS = 10.0
_MOST = 20
"""Of hosts with one kind of trouble so many are named."""
_COUNTED = re.compile(
    r'^gpudeck_messages_(failed_total|waiting|given_up_total)\{channel="([^"]*)"\} ([\d.e+]+)$', re.MULTILINE
)


class HubSummary(Struct, frozen=True):
    """What is looked at here of what a hub says about itself (see api.about.About)."""

    version: str
    demo: bool
    tick_age_seconds: float
    database: DatabaseState
    history: HistoryState
    problems: list[str] = field(default_factory=list)


def check_running(client: Client) -> Iterator[Finding]:
    """By its own words. `client` brings the token of an admin, where there is one."""
    try:
        about = client.read(client.get("/api/v1/about"), HubSummary)
    except GpudeckError as error:
        # Its certificate is for the name that others use, and not for this machine's own address.
        judge = _AREA.skip if find_distrust(error.__cause__) else _AREA.fail
        yield judge("running", error.message.rstrip("."), error.hint or "Start it, and check its log.")
        return
    yield _AREA.ok("running", f"{client.shown} is gpudeck {about.version}{', a demo' if about.demo else ''}")
    yield from judge_about(about)
    try:
        yield from judge_hosts(client.read(client.hosts(), HostList).hosts)
    except GpudeckError as error:
        yield _AREA.fail("sources", error.message, error.hint)


def judge_about(about: HubSummary) -> Iterator[Finding]:
    for problem in about.problems:
        yield _AREA.warn("problem", problem.rstrip("."), "The hub's log has the details.")
    if about.tick_age_seconds > 10:
        told = f"the fleet was last published {about.tick_age_seconds:.0f} s ago"
        yield _AREA.fail("running", told, "The hub hangs: check its log and the load of its machine, then restart it.")
    database, history = about.database, about.history
    trouble = database.problem or database.reason
    if trouble:
        yield _AREA.fail("database", trouble, "Check its disk or its server, and the hub's log.")
    if history.problem or history.kind == "unknown":
        told = history.problem or history.reason or "its state is unknown"
        # What waits for a store elsewhere is not lost.
        is_late = history.kind == "prometheus" and history.behind_seconds and not history.samples_dropped
        judge = _AREA.warn if is_late else _AREA.fail
        yield judge("history", told, "Check the disk, or the store that the section history names.")
    elif history.samples_dropped:
        told = f"{history.samples_dropped} samples were dropped since the hub's start"
        yield _AREA.warn("history", told, "The disk or the store is too slow: see the hub's log.")


def judge_hosts(hosts: list[Host]) -> Iterator[Finding]:
    """Each host that is not up, or has something to say."""
    if not hosts:
        yield _AREA.warn(
            "sources", "the hub has no hosts", "Add one: gpudeck hosts add NAME prints the line to run there."
        )
        return
    troubled = [host for host in hosts if host.status != "up" or host.problems]
    counted = f"{len(hosts) - len(troubled)} of {len(hosts)} hosts report without a problem"
    yield (
        _AREA.ok("sources", counted)
        if len(troubled) < len(hosts)
        else _AREA.warn("sources", counted, "See the next lines.")
    )
    for host in troubled[:_MOST]:
        reason = "; ".join(host.problems) or "the host does not report"
        told = f"{host.name} (via {host.via}) is {show_status(host)}: {reason}"
        step = "This host is simulated, and so is its problem." if host.via == "simulated" else _test_of(host)
        yield (
            _AREA.fail("source", told, step)
            if host.status in {"down", "never_seen"}
            else _AREA.warn("source", told, step)
        )
    if len(troubled) > _MOST:
        yield _AREA.warn("source", f"{len(troubled) - _MOST} more hosts have problems", "gpudeck hosts list")


def _test_of(host: Host) -> str:
    if host.via == "push" and host.status == "never_seen":
        return f"Run the line that gpudeck hosts add printed on {host.name}. If it was run: gpudeck doctor there."
    return f"gpudeck hosts test {host.name}"


def check_messages(settings: NotifySettings, metrics: str) -> Iterator[Finding]:
    """The channels by name: their addresses hold secrets; and the bot, where the hub has one. `metrics` is the hub's
    page; empty where there is none."""
    if not settings.channels:
        yield _AREA.skip(
            "messages", "no channel is configured, so alerts are not sent", "Add notify.channels to gpudeck.yaml."
        )
    counts = {(name, what): float(number) for what, name, number in _COUNTED.findall(metrics)}
    for name, channel in settings.channels.items():
        if channel.url_file is not None and (reason := _why_unreadable(channel.url_file)):
            yield _AREA.fail(
                "messages", f"the file of the channel {name} {reason}", "Check url_file and its permissions."
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
    option = " --user NAME" if name == BOT else ""
    step = f"gpudeck notify test {name}{option} shows what its service answers."
    if given_up:
        return _AREA.fail("messages", f"{given_up:.0f} messages to {name} could not be sent, and were dropped", step)
    if waiting and failed:
        return _AREA.fail(
            "messages", f"{waiting:.0f} messages to {name} wait, after {failed:.0f} failed attempts", step
        )
    if failed:
        return _AREA.warn(
            "messages", f"{failed:.0f} attempts to send to {name} failed; no message is waiting now", step
        )
    return _AREA.ok("messages", f"all messages to {name} were sent")


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
        answer = pool.request("GET", f"{base}/healthz", redirect=False, timeout=ANSWER_SECONDS)
        if answer.status != 200 or b'"version"' not in answer.data:
            step = "Check the proxy's path and path_prefix; the examples in deploy/nginx and deploy/caddy work."
            yield _AREA.fail("proxy", f"{shown} answers {answer.status}, which is not the answer of a hub", step)
            return
        yield _AREA.ok("proxy", f"a hub answers at {shown}")
        yield _try_stream(pool, base, token)
    except (urllib3.exceptions.HTTPError, OSError, GpudeckError) as error:
        reason = error.message if isinstance(error, GpudeckError) else mask_password(explain(error))
        yield _AREA.fail("proxy", f"{shown} does not answer: {reason}", "Is the proxy running, and the name right?")


def _try_stream(pool: urllib3.PoolManager, base: str, token: str | None) -> Finding:
    headers = {"Accept": "text/event-stream"} | ({"Authorization": f"Bearer {token}"} if token else {})
    answer = pool.request(
        "GET", f"{base}/api/v1/stream", headers=headers, redirect=False, timeout=ANSWER_SECONDS, preload_content=False
    )
    try:
        if answer.status in {401, 403}:
            return _AREA.skip(
                "stream", "the live stream needs a login", "Set $GPUDECK_TOKEN to a token with the role viewer."
            )
        if answer.status != 200:
            return _AREA.fail("stream", f"the live stream answers {answer.status}", "Check the proxy's settings.")
        answer.read(1)
    except urllib3.exceptions.ReadTimeoutError:
        step = "Turn buffering off for the hub (nginx: proxy_buffering off; see deploy/nginx)."
        return _AREA.fail("stream", f"the live stream sent nothing within {ANSWER_SECONDS:g} s", step)
    finally:
        answer.close()
    return _AREA.ok("stream", "the live stream works")
