"""Login and logout, and the caller's own account: sessions, password, identity.

POST /api/v1/login · /api/v1/logout · /api/v1/logout-everywhere · /api/v1/first-admin · /api/v1/me/password,
GET /api/v1/me · /api/v1/me/sessions · /api/v1/me/views.
"""

import base64
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from litestar import Request, Response, delete, get, post, put
from litestar.datastructures import Cookie, State
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, PermissionDeniedException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct
from msgspec.structs import replace

from gpudeck.api.access import (
    COOKIE,
    NOTE_COOKIE,
    Policy,
    TheCaller,
    access,
    caller_of,
    make_cookie,
    policy_of,
    read_cookie,
)
from gpudeck.auth.accounts import Account
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller, Kind, Role
from gpudeck.auth.saved_views import SavedView, SavedViews, read_views, write_views
from gpudeck.auth.sessions import Session
from gpudeck.model.text import clean
from gpudeck.schedulers.job_report import JobReporter

if TYPE_CHECKING:
    from gpudeck.auth.oidc import OidcProvider

TheAuth = NamedDependency[Auth]
TheJobs = NamedDependency[JobReporter]
AuthRequest = Request[Any, Any, State]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Password = Annotated[str, Meta(min_length=1, max_length=1024)]
_MAX_NOTE, _NOTE_SECONDS = 1_000, 60
_D = TypeVar("_D", bound=Struct)


class Credentials(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    password: Password


class FirstAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """`secret` is in the link that the hub printed when it started."""

    secret: Annotated[str, Meta(min_length=1, max_length=128)]
    name: Name
    password: Password


class NewPassword(Struct, frozen=True, forbid_unknown_fields=True):
    old: Password
    new: Password


class LoginProvider(Struct, frozen=True):
    """A provider with a button. `problem` is why it cannot be used now."""

    name: str
    label: str
    problem: str | None


class Me(Struct, frozen=True):
    """The caller and their permissions. `logins` are their names on the hosts.

    `can_log_in` says that there are accounts, `needs_first_admin` that the first one is still to be made, `has_proxy`
    that a proxy may identify users: those that it identifies (`kind` is proxy) cannot log out here. `has_password`:
    they have a password of this hub. `has_jobs`: the hub reads a scheduler, or knows jobs. `providers` are those
    through which users log in; `takes_passwords` that they can log in with a name and a password, too; `directory` the
    LDAP directory that is asked then. `provider` is where this session can be ended as well. `note` is why the last
    login did not succeed; it is returned once.
    """

    kind: Kind
    role: Role
    name: str
    logins: list[str]
    may_read: bool
    may_write: bool
    may_reserve: bool
    may_administer: bool
    can_log_in: bool
    needs_first_admin: bool
    has_proxy: bool
    has_jobs: bool = False
    has_password: bool = False
    providers: list[LoginProvider] = []
    takes_passwords: bool = True
    provider: str | None = None
    directory: str | None = None
    note: str | None = None


class SessionList(Struct, frozen=True):
    """The one used last first."""

    sessions: list[Session]


SessionId = Annotated[str, PathParameter(description="The session's id", max_length=64)]


class Done(Struct, frozen=True):
    status: str = "done"


@get("/api/v1/me", opt=access("open"))
async def read_me(request: AuthRequest, auth: TheAuth, jobs: TheJobs) -> Response[Me]:
    """Your identity and permissions."""
    me, cookies = await describe_visitor(request, auth, jobs)
    return Response(me, cookies=cookies)


async def describe_visitor(request: AuthRequest, auth: Auth, jobs: JobReporter) -> tuple[Me, list[Cookie]]:
    """The caller with what only their cookies say; and the cookies of the answer, which take back what was told."""
    me = describe_caller(caller_of(request), policy_of(request), auth, jobs)
    found = await _find_provider(request, auth)
    note = _read_note(request)
    me = replace(me, provider=None if found is None else found[0].label, note=note)
    return me, [] if note is None else [write_note(request, "")]


@post("/api/v1/login", status_code=200, opt=access("open"))
async def log_in(request: AuthRequest, data: JSONBody[Credentials], auth: TheAuth, jobs: TheJobs) -> Response[Me]:
    """Log in with a name and a password."""
    account, secret = await auth.login.log_in(data.name, data.password, *client_of(request))
    return _enter(request, auth, jobs, account, secret)


class LoggedOut(Struct, frozen=True):
    """`provider_url` is where the browser has to go to be logged out of the provider, too."""

    status: str = "done"
    provider_url: str | None = None


@post("/api/v1/logout", status_code=200, opt=access("open"))
async def log_out(
    request: AuthRequest,
    auth: TheAuth,
    *,
    at_provider: Annotated[bool, QueryParameter(description="Whether to end the session at the provider, too")] = False,
) -> Response[LoggedOut]:
    """End this session."""
    secret = read_cookie(request, COOKIE)
    caller = caller_of(request)
    found = await _find_provider(request, auth) if at_provider else None
    url = None if found is None or auth.oidc is None else found[0].logout_url(found[1], f"{auth.oidc.public_url}/")
    # Callers with an invented cookie would fill the audit log.
    if secret and caller.role != "nobody":
        await auth.sessions.end(secret, auth.audit.entry(caller, "logout"))
    return _without_cookie(request, LoggedOut(provider_url=url))


@post("/api/v1/logout-everywhere", status_code=200, opt=access("self"))
async def log_out_everywhere(request: AuthRequest, auth: TheAuth) -> Response[Done]:
    """End all of your sessions, on every device."""
    caller = caller_of(request)
    if caller.account_id is not None:
        await auth.sessions.end_all(caller.account_id, auth.audit.entry(caller, "logout everywhere"))
    return _without_cookie(request, Done())


@get("/api/v1/me/sessions", opt=access("self"))
async def list_sessions(request: AuthRequest, auth: TheAuth) -> SessionList:
    """Your sessions."""
    return SessionList(await auth.sessions.list(_account_of(caller_of(request)), read_cookie(request, COOKIE)))


@delete("/api/v1/me/sessions/{session_id:str}", status_code=200, opt=access("self"))
async def end_own_session(caller: TheCaller, session_id: SessionId, auth: TheAuth) -> Done:
    """End one of your sessions."""
    return await _end_session(caller, auth, session_id, _account_of(caller))


@get("/api/v1/sessions", opt=access("admin"))
async def list_all_sessions(request: AuthRequest, auth: TheAuth) -> SessionList:
    """All sessions."""
    return SessionList(await auth.sessions.list(own=read_cookie(request, COOKIE)))


@delete("/api/v1/sessions/{session_id:str}", status_code=200, opt=access("admin"))
async def end_session(caller: TheCaller, session_id: SessionId, auth: TheAuth) -> Done:
    """End a session of any account."""
    return await _end_session(caller, auth, session_id, None)


async def _end_session(caller: Caller, auth: Auth, session_id: str, account_id: int | None) -> Done:
    also = partial(auth.audit.entry, caller, "end session")
    if not await auth.sessions.end_one(session_id, also, account_id):
        raise NotFoundException(f"there is no session {session_id[:64]}")
    return Done()


class KeptViews(Struct, frozen=True):
    """`views` is null where you have never saved any."""

    views: list[SavedView] | None


@get("/api/v1/me/views", opt=access("self"))
async def read_saved_views(caller: TheCaller, auth: TheAuth) -> KeptViews:
    """The views of the page that you have saved."""
    kept = await read_views(auth.database, _account_of(caller))
    return KeptViews(None if kept is None else kept.views)


@put("/api/v1/me/views", status_code=200, opt=access("self"))
async def keep_saved_views(caller: TheCaller, data: JSONBody[SavedViews], auth: TheAuth) -> SavedViews:
    """Save these views of the page, in place of all that you have saved."""
    await write_views(auth.database, _account_of(caller), data)
    await auth.audit.record(caller, "save views", details=", ".join(view.name for view in data.views))
    return data


def _account_of(caller: Caller) -> int:
    if caller.account_id is None:
        raise PermissionDeniedException("this needs an account")
    return caller.account_id


@post("/api/v1/me/password", status_code=200, opt=access("self"))
async def change_password(
    request: AuthRequest, data: JSONBody[NewPassword], auth: TheAuth, jobs: TheJobs
) -> Response[Me]:
    """Change your password. Everywhere else you are logged out."""
    name = caller_of(request).name
    account, secret = await auth.login.change_password(name, data.old, data.new, *client_of(request))
    return _enter(request, auth, jobs, account, secret)


@post("/api/v1/first-admin", status_code=201, opt=access("open"))
async def make_first_admin(
    request: AuthRequest, data: JSONBody[FirstAccount], auth: TheAuth, jobs: TheJobs
) -> Response[Me]:
    """Make the first admin, with the secret of the link that the hub printed when it started."""
    # Without the limits against guessing: the link's owner need not wait for others at this address.
    secret, also = auth.login.begin("make first admin", *client_of(request))
    account = await auth.first_admin.redeem(data.secret, data.name, data.password, also)
    auth.note_account()
    return _enter(request, auth, jobs, account, secret, status=201)


def client_of(request: AuthRequest) -> tuple[str, str]:
    """Its address and its user agent."""
    return request.client.host if request.client else "", request.headers.get("user-agent", "")[:256]


def _enter(
    request: AuthRequest, auth: Auth, jobs: JobReporter, account: Account, secret: str, *, status: int = 200
) -> Response[Me]:
    """The response to a login. The cookie has no age: the browser forgets it when it ends, the hub when the session
    has been idle for too long."""
    me = describe_caller(auth.caller_of(account, client_of(request)[0]), policy_of(request), auth, jobs)
    return Response(
        me, status_code=status, cookies=[make_cookie(request, COOKIE, secret)], headers={"Cache-Control": "no-store"}
    )


def describe_caller(caller: Caller, policy: Policy, auth: Auth, jobs: JobReporter) -> Me:
    """A caller as the page shows them."""
    return Me(
        kind=caller.kind,
        role=caller.role,
        name=caller.name,
        logins=sorted(caller.logins),
        may_read=policy.is_readable or caller.is_at_least("viewer"),
        may_write=caller.is_at_least("user"),
        may_reserve=caller.is_at_least("user") or policy.reserves_without_account,
        may_administer=caller.is_at_least("admin"),
        can_log_in=auth.can_log_in,
        needs_first_admin=policy.needs_accounts and not auth.can_log_in,
        has_proxy=auth.proxy_header is not None,
        has_jobs=jobs.service.is_expected or jobs.service.has_jobs,
        has_password=caller.has_password and auth.has_own_passwords,
        providers=[
            LoginProvider(name, one.label, one.problem)
            for name, one in (auth.oidc.providers if auth.oidc is not None else {}).items()
        ],
        takes_passwords=auth.takes_passwords,
        directory=None if auth.ldap is None else auth.ldap.directory.settings.label,
    )


async def _find_provider(request: AuthRequest, auth: Auth) -> "tuple[OidcProvider, str | None] | None":
    """The provider that began this session, and can end it, with the session's ID token."""
    if auth.oidc is None or caller_of(request).kind != "account":
        return None
    found = await auth.oidc.find_provider(read_cookie(request, COOKIE))
    return None if found is None or found[0].logout_url(None, "") is None else found


def write_note(request: AuthRequest, note: str) -> Cookie:
    """A cookie with the reason why a login failed, which the page shows once. An empty note deletes the cookie."""
    body = base64.urlsafe_b64encode(note.encode()[:_MAX_NOTE]).decode()
    return make_cookie(request, NOTE_COOKIE, body, max_age=_NOTE_SECONDS if note else 0)


def _read_note(request: AuthRequest) -> str | None:
    body = read_cookie(request, NOTE_COOKIE)
    try:
        return clean(base64.urlsafe_b64decode(body[: 2 * _MAX_NOTE].encode()).decode("utf-8", "ignore")) or None
    except (ValueError, UnicodeError):
        return None


def _without_cookie(request: AuthRequest, done: _D) -> Response[_D]:
    gone = make_cookie(request, COOKIE, "", max_age=0)
    return Response(done, cookies=[gone], headers={"Cache-Control": "no-store"})
