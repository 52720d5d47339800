"""The hub's ASGI application without a server, with tokens and accounts that tests know."""

import contextlib
import functools
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fakes.offers import FakeClaims
from fakes.passwords import quick_hasher
from fakes.tables import open_file, put_tables, run
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.alerts.notifiers.store import PersonalMuteStore
from gpudeck.alerts.service import AlertManager
from gpudeck.alerts.settings import AlertSettings
from gpudeck.alerts.store import AlertStore
from gpudeck.alerts.watches import Watches
from gpudeck.api.access import Authenticator, Commands, Policy
from gpudeck.api.app import ApiApp, ForeignRoutes
from gpudeck.api.hosts import HostAdmin, NewHost
from gpudeck.api.install import Installer
from gpudeck.api.services import ApiServices, HubPlace, PreviewDigest
from gpudeck.auth.accounts import Passwords, hash_secret
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Role
from gpudeck.auth.settings import AuthSettings
from gpudeck.database import sqlite
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import Store
from gpudeck.idle_policy.service import IdlePolicyService
from gpudeck.idle_policy.settings import IdlePolicySettings
from gpudeck.maintenance.service import HostNotes, MaintenanceWindows
from gpudeck.model.event import Event
from gpudeck.model.target import AddedHosts, Target
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore
from gpudeck.schedulers.job_report import JobReporter
from gpudeck.schedulers.job_store import JobStore
from gpudeck.schedulers.jobs import JobService
from gpudeck.server.asgi import SafeApp

AGENT_TOKEN = "agent-token"
ADMIN_TOKEN = "admin-token"
TOKENS: dict[str, Role] = {AGENT_TOKEN: "agent", ADMIN_TOKEN: "admin", "user-token": "user", "viewer-token": "viewer"}


class NoHostAdmin:
    """For tests that add no hosts."""

    installer = None

    async def add(self, new: NewHost, created_by: str) -> AddedHosts:
        raise AssertionError(f"a test has {created_by} add {new.name}")

    async def remove(self, name: str) -> str | None:
        raise AssertionError(f"a test removes {name}")

    async def remove_all(self, hosts: Collection[HostState]) -> None:
        raise AssertionError(f"a test removes {len(hosts)} hosts")

    async def find(self, name: str | None, token: str | None, *, down: bool) -> tuple[list[HostState], int]:
        raise AssertionError(f"a test removes the hosts {name}, {token}, {down}")

    def origin_of(self, name: str) -> str | None:
        return None


def make_auth(
    folder: Path, settings: AuthSettings | None = None, *, with_tokens: bool = True, public_url: str | None = None
) -> Auth:
    """Accounts and tokens in a file of that folder. It is opened anew for each transaction, so that a test may use it
    from several calls of `asyncio.run`."""
    put_tables(folder, _file_with_tokens() if with_tokens else None)
    passwords = Passwords(quick_hasher())
    auth = Auth(open_file(folder), settings or AuthSettings(), passwords=passwords, public_url=public_url)
    run(auth.load())
    return auth


def make_app(
    hub: Hub,
    prefix: str = "",
    *,
    auth: Auth | None = None,
    folder: Path | None = None,
    is_private: bool = False,
    is_readable: bool = True,
    is_decided: bool = True,
    reserves_without_account: bool = False,
    commands: Commands = "everyone",
    settings: AuthSettings | None = None,
    history: Store | None = None,
    events: EventLog | None = None,
    reservations: ReservationCalendar | None = None,
    waiting: WaitQueue | None = None,
    jobs: JobService | None = None,
    watches: Watches | None = None,
    maintenance: MaintenanceWindows | None = None,
    outbox: MessageOutbox | None = None,
    alerts: AlertManager | None = None,
    idle_policy: IdlePolicyService | None = None,
    preview_digest: PreviewDigest | None = None,
    foreign_routes: Callable[[ApiServices, Authenticator], Sequence[ForeignRoutes]] = lambda *_: (),
) -> SafeApp:
    """An application that knows a token of each role. With a `folder` hosts can be added, and are expected at once."""
    settings = settings or AuthSettings()
    auth = auth or (_make_own_auth(settings) if folder is None else make_auth(folder, settings))
    keeper = Authenticator(
        auth,
        is_private=is_private,
        is_decided=is_decided,
        prefix=prefix,
    )
    policy = Policy(
        is_readable=is_readable,
        needs_accounts=not is_private,
        commands=commands,
        reserves_without_account=reserves_without_account,
    )
    alerts = alerts or make_alerts(auth.database)
    host_admin = NoHostAdmin() if folder is None else make_host_admin(hub, auth, folder, alerts)
    services = ApiServices(
        hub=hub,
        auth=auth,
        policy=policy,
        host_admin=host_admin,
        prefix=prefix,
        history=history,
        events=events or EventLog(auth.database, EventSettings()),
        reservations=reservations or ReservationCalendar(ReservationStore(auth.database), ReservationSettings()),
        maintenance=maintenance or make_windows(auth.database, hub),
        notes=make_notes(auth.database, hub),
        jobs=JobReporter(jobs or JobService(hub, JobStore(auth.database), keep=86_400.0)),
        queue=waiting or WaitQueue(QueueStore(auth.database), QueueSettings(), FakeClaims()),
        watches=watches or Watches(auth.database),
        mutes=PersonalMuteStore(auth.database),
        alerts=alerts,
        outbox=outbox,
        idle_policy=idle_policy or make_idle_policy(hub, auth),
        preview_digest=preview_digest,
        reaches=lambda account: account is not None and auth.users.user_of(account).mail is not None,
        place=HubPlace("127.0.0.1:8042", "/the/data/folder", None, auth.database.place),
    )
    return SafeApp(ApiApp(services, auth.tokens.find_agent, keeper, foreign_routes(services, keeper)))


def make_windows(database: Database, hub: Hub) -> MaintenanceWindows:
    """Without any."""
    windows = MaintenanceWindows(database, REAL, hub.fleet)
    windows.adopt([])
    return windows


def make_idle_policy(hub: Hub, auth: Auth, settings: IdlePolicySettings | None = None) -> IdlePolicyService:
    """Its ladders are looked at only by itself."""
    events = EventLog(auth.database, EventSettings())
    calendar = ReservationCalendar(ReservationStore(auth.database), ReservationSettings())
    messages = MessageService(hub, auth, NotifySettings(), events)
    return IdlePolicyService(hub, auth, settings or IdlePolicySettings(), events, messages, calendar)


def make_notes(database: Database, hub: Hub) -> HostNotes:
    """Shown in the fleet at once."""
    notes = HostNotes(database, REAL, hub.fleet, show=lambda: hub.fleet.annotate(notes.by_host()))
    return notes


def make_alerts(database: Database, settings: AlertSettings | None = None) -> AlertManager:
    """With an engine that has seen nothing, and sends to nobody."""
    events: list[Event] = []
    return AlertManager(
        AlertEngine(settings or AlertSettings(), events.append),
        AlertStore(database),
        events.append,
        lambda message: None,
    )


def make_host_admin(hub: Hub, auth: Auth, folder: Path, alerts: AlertManager) -> HostAdmin:
    """A host admin beside a configuration that names the host `configured`."""
    managed = ManagedHosts(folder / "hosts.yaml")
    by_name = {"configured": "gpudeck.yaml"}

    class Expecting(HostAdmin):
        async def add(self, new: NewHost, created_by: str) -> AddedHosts:
            added = await super().add(new, created_by)
            hub.fleet.expect(managed.targets())
            return added

    return Expecting(
        hub,
        managed,
        auth.tokens,
        lambda name: _find(managed, name) or (Target(name=name, origin=by_name[name]) if name in by_name else None),
        Installer(folder / "wheelhouse", "http://hub.example:8042"),
        alerts=alerts,
    )


def _find(managed: ManagedHosts, name: str) -> Target | None:
    return next((target for target in managed.targets() if target.name == name), None)


def _make_own_auth(settings: AuthSettings) -> Auth:
    """In a folder that is removed once nobody can use it any more."""
    folder = tempfile.mkdtemp(prefix="gpudeck-api-")
    auth = make_auth(Path(folder), settings)
    weakref.finalize(auth, shutil.rmtree, folder, ignore_errors=True)
    return auth


@functools.cache
def _file_with_tokens() -> bytes:
    """Made once in each process: to write the tokens takes longer than all else that an application needs."""
    rows = [(hash_secret(secret), role, role, 0.0) for secret, role in TOKENS.items()]
    with tempfile.TemporaryDirectory() as folder:
        put_tables(Path(folder))
        file = Path(folder) / sqlite.FILE_NAME
        with contextlib.closing(sqlite3.connect(file)) as opened, opened:
            opened.executemany("INSERT INTO tokens (hash, name, role, created_at) VALUES (?, ?, ?, ?)", rows)
        return file.read_bytes()
