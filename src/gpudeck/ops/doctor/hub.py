"""The hub: its files and its port on this machine, whether it runs or not, and what it reports while it runs."""

import os
import re
import shutil
import socket
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct, field

from gpudeck.alerts.notifiers.routes import BOT
from gpudeck.alerts.notifiers.settings import NotifySettings, read_url
from gpudeck.client import Client, Forbidden
from gpudeck.history.settings import DEMO_FILE, FILE
from gpudeck.http_client import TRANSPORT_ERRORS, find_certificate_error
from gpudeck.model.address import open_socket
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.history import HistoryState
from gpudeck.model.settings import Address
from gpudeck.model.view import DatabaseState, Host
from gpudeck.ops.doctor import Area, Finding
from gpudeck.server.tls import make_context, validity_problem
from gpudeck.settings import Settings, choose_data_dir
from gpudeck.views.text import show_status

_AREA = Area("hub")
_DATABASE = "gpudeck.db"
_ROOM_WARN, _ROOM_FAIL = 2 * 1024**3, 200 * 1024**2
_CHECKED_WHOLE = 256 * 1024**2
"""Larger files are only opened: reading them completely may take minutes."""
_RESTORE = "Stop the hub, and restore a backup with gpudeck restore (docs/database.md)."


def check_hub_files(settings: Settings) -> Iterator[Finding]:
    folder = choose_data_dir(settings)
    yield check_port(settings.listen)
    finding = check_folder(folder)
    yield finding
    if finding.verdict != "fail":
        yield check_room(folder)
        yield from check_secrets(folder)
        yield check_database(settings, folder)
        yield check_history(settings, folder)
    if settings.tls is not None:
        yield check_certificate(Path(settings.tls.cert_file).expanduser(), Path(settings.tls.key_file).expanduser())


def check_port(listen: Address) -> Finding:
    """A port in use is fine if the hub itself listens there: the listener is asked."""
    try:
        open_socket(listen).close()
    except UsageError as error:
        if _answers(listen):
            return _AREA.ok("port", f"a program listens on {listen}")
        return _AREA.fail("port", error.message.rstrip("."), error.hint)
    return _AREA.warn("port", f"no hub listens on {listen}", "Start it with gpudeck up, or as a service.")


def _answers(listen: Address) -> bool:
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104
    try:
        socket.create_connection((host, listen.port), timeout=3).close()
    except OSError:
        return False
    return True


def check_folder(folder: Path) -> Finding:
    if not folder.is_dir():
        return _AREA.fail("data folder", f"{folder} does not exist", "Start the hub once, or correct data_dir.")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        step = f"Run this as the hub's user, or make that user the owner: chown -R USER {folder}"
        return _AREA.fail("data folder", f"this user cannot write to {folder}", step)
    return _AREA.ok("data folder", f"{folder} is writable")


def check_room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    told = f"{free / 1024**3:.1f} GiB are free on the disk of {folder}"
    step = "Free some space there, lower history.max_size, or move data_dir."
    if free < _ROOM_FAIL:
        return _AREA.fail("disk", told, step)
    return _AREA.warn("disk", told, step) if free < _ROOM_WARN else _AREA.ok("disk", told)


def check_secrets(folder: Path) -> Iterator[Finding]:
    for file in (folder / "agent.token", folder / "admin.token", folder / _DATABASE):
        if file.exists() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o007:
            told = f"every user of this machine can read {file} (mode {mode:04o})"
            yield _AREA.fail("secrets", told, f"chmod 600 {file}; if others use this machine, create new tokens.")


def check_database(settings: Settings, folder: Path) -> Finding:
    if settings.database is not None:
        return _AREA.skip("database", "it is on a PostgreSQL server, and is checked through the running hub")
    file = folder / _DATABASE
    if not file.exists():
        return _AREA.skip("database", f"there is none yet in {folder}", "The hub creates it at its start.")
    try:
        version = _inspect(file, "SELECT version_num FROM gpudeck_version")
    except sqlite3.Error as error:
        return _AREA.fail("database", f"{file} cannot be read: {error}", _RESTORE)
    return judge_version(file, version, _newest_version())


def judge_version(file: Path, found: str, newest: str | None) -> Finding:
    if newest is not None and found > newest:
        told = f"{file} is from a newer gpudeck: version {found}, this one knows {newest}"
        return _AREA.fail(
            "database", told, "Install that version again, or restore the backup from before the upgrade."
        )
    if newest is not None and found < newest:
        told = f"{file} has version {found}, this gpudeck has {newest}"
        return _AREA.warn("database", told, "The hub upgrades it at its next start, and keeps a copy.")
    return _AREA.ok("database", f"{file} is intact (version {found})")


def _newest_version() -> str | None:
    try:
        from gpudeck.database.migrations import NEWEST  # noqa: PLC0415 - a base install has no SQLAlchemy
    except ImportError:
        return None
    return NEWEST


def check_history(settings: Settings, folder: Path) -> Finding:
    if settings.history.kind != "embedded":
        return _AREA.skip("history", f"its kind is {settings.history.kind}, which is checked through the running hub")
    file, what = folder / FILE, ""
    if not file.exists():
        demos = sorted(folder.glob(DEMO_FILE.format("*")), key=lambda demo: demo.stat().st_mtime)
        if not demos:
            return _AREA.skip("history", f"there is none yet in {folder}", "The hub creates it at its start.")
        file, what = demos[-1], f": the simulated history of a demo; {FILE} is created with the first real host"
    try:
        _inspect(file, "SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        step = f"Stop the hub, and run gpudeck history verify --file {file}, or move the file away for a new history."
        return _AREA.fail("history", f"{file} cannot be read: {error}", step)
    return _AREA.ok("history", f"{file} is intact, {file.stat().st_size / 1024**2:.1f} MiB{what}")


def _inspect(file: Path, question: str) -> str:
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        if file.stat().st_size <= _CHECKED_WHOLE:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(" ".join(said.split()))
        found = connection.execute(question).fetchone()
        return str(found[0]) if found else ""


def check_certificate(cert_file: Path, key_file: Path) -> Finding:
    try:
        make_context(cert_file, key_file)
    except UsageError as error:
        return _AREA.fail("certificate", error.message, error.hint or "Name other files in the section tls.")
    problem = validity_problem(cert_file, key_file)
    if problem is None:
        return _AREA.ok("certificate", f"{cert_file} is valid, and does not expire soon")
    judge = _AREA.warn if "expires in" in problem else _AREA.fail
    return judge("certificate", problem, "Renew it. The hub reads the new file without a restart.")


ANSWER_SECONDS = 10.0
_MOST = 20
"""The most hosts that are named for one kind of problem."""
_COUNTED = re.compile(
    r'^gpudeck_messages_(failed_total|waiting|given_up_total)\{channel="([^"]*)"\} ([\d.e+]+)$', re.MULTILINE
)


class HubSummary(Struct, frozen=True):
    """The part of a hub's self-description that is examined (see api.about.About)."""

    version: str
    demo: bool
    tick_age_seconds: float
    database: DatabaseState
    history: HistoryState
    problems: list[str] = field(default_factory=list)


def check_running(client: Client) -> Iterator[Finding]:
    """What the hub says about itself. `client` has the token of an admin, if there is one."""
    try:
        about = client.read(client.get("/api/v1/about"), HubSummary)
    except GpudeckError as error:
        # Its certificate is for the name that others use, and not for this machine's own address.
        judge = _AREA.skip if find_certificate_error(error.__cause__) else _AREA.fail
        yield judge("running", error.message.rstrip("."), error.hint or "Start it, and check its log.")
        return
    yield _AREA.ok("running", f"{client.shown} is gpudeck {about.version}{', a demo' if about.demo else ''}")
    yield from judge_about(about)
    try:
        yield from judge_hosts(client.hosts())
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
    """The channels by name, because their addresses contain secrets; and the bot, if there is one. `metrics` is the
    hub's exposition; empty if there is none."""
    if not settings.channels:
        yield _AREA.skip(
            "messages", "no channel is configured, so alerts are not sent", "Add notify.channels to gpudeck.yaml."
        )
    counts = {(name, what): float(number) for what, name, number in _COUNTED.findall(metrics)}
    for name, channel in settings.channels.items():
        try:
            read_url(name, channel)
        except UsageError as error:
            yield _AREA.fail("messages", error.message.rstrip("."), "Check url_file and its permissions.")
        else:
            yield _judge_channel(name, counts)
    if (BOT, "failed_total") in counts:
        yield _judge_channel(BOT, counts)


def _judge_channel(name: str, counts: dict[tuple[str, str], float]) -> Finding:
    failed, waiting, given_up = (
        counts.get((name, word), 0.0) for word in ("failed_total", "waiting", "given_up_total")
    )
    if given_up:
        told = f"{given_up:.0f} messages to {name} could not be sent, and were dropped"
    elif waiting and failed:
        told = f"{waiting:.0f} messages to {name} wait, after {failed:.0f} failed attempts"
    elif failed:
        told = f"{failed:.0f} attempts to send to {name} failed; no message is waiting now"
    else:
        return _AREA.ok("messages", f"all messages to {name} were sent")
    judge = _AREA.fail if given_up or waiting else _AREA.warn
    option = " --user NAME" if name == BOT else ""
    return judge("messages", told, f"gpudeck notify test {name}{option} shows what its service answers.")


def check_public(page: str, token: str | None) -> Iterator[Finding]:
    client = Client(page.rstrip("/"), ANSWER_SECONDS, token=token, retries=0)
    try:
        client.get("/healthz")
    except GpudeckError as error:
        step = (
            "Check that the proxy runs, its path and path_prefix; the examples in deploy/nginx and deploy/caddy work."
        )
        yield _AREA.fail("proxy", error.message.rstrip("."), step)
        return
    yield _AREA.ok("proxy", f"a hub answers at {client.shown}")
    try:
        with closing(client.stream_events()) as events:
            next(events, None)
    except Forbidden:
        step = "Set $GPUDECK_TOKEN to a token with the role viewer."
        yield _AREA.skip("stream", "the live stream needs a login", step)
    except (GpudeckError, *TRANSPORT_ERRORS) as error:
        reason = error.message if isinstance(error, GpudeckError) else f"it sent nothing within {ANSWER_SECONDS:g} s"
        step = "Turn buffering off for the hub (nginx: proxy_buffering off; see deploy/nginx)."
        yield _AREA.fail("stream", f"the live stream does not work: {reason.rstrip('.')}", step)
    else:
        yield _AREA.ok("stream", "the live stream works")
