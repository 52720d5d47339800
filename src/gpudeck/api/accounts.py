"""/api/v1/accounts · /accounts/{name} and /api/v1/audit for admins; /api/v1/tokens · /tokens/{id}; /api/v1/device.

Admins see and make all tokens. Users see and make their own, which can do no more than they can themselves. Programs
log in (`gpudeck login`) in the shape of RFC 8628: POST /device begins, the user confirms with /device/{code} on the
page, POST /device/token gives out the token.
"""

from typing import Annotated, Literal, TypeVar

from litestar import delete, get, patch, post
from litestar.exceptions import NotFoundException, PermissionDeniedException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import RequestRefused
from gpudeck.api.login import AuthRequest, Done, Name, Password, TheAuth, client_of
from gpudeck.auth.accounts import Account, Also
from gpudeck.auth.audit import AuditEntry
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import RANKS, Caller
from gpudeck.auth.device_login import DeviceLogin, PendingLogin
from gpudeck.auth.settings import AccountRole
from gpudeck.auth.tokens import Token

AccountName = Annotated[str, PathParameter(description="The account's name")]
_TokenId = Annotated[int, PathParameter(description="The token's number")]
NewTokenRole = Literal["agent", "viewer", "user", "admin", "calendar"]


class AccountList(Struct, frozen=True):
    accounts: list[Account]


class NewAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """An account without a password can log in only through a trusted proxy."""

    name: Name
    role: AccountRole = "user"
    password: Password | None = None


class AccountChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that are left out stay unchanged."""

    role: AccountRole | None = None
    password: Password | None = None
    is_disabled: bool | None = None


@get("/api/v1/accounts", opt=access("admin"))
async def list_accounts(auth: TheAuth) -> AccountList:
    """All accounts, by name."""
    return AccountList(await auth.accounts.list())


@post("/api/v1/accounts", opt=access("admin"))
async def add_account(caller: TheCaller, data: JSONBody[NewAccount], auth: TheAuth) -> Account:
    """Create an account."""
    also = _entry(caller, auth, "add account", f"role {data.role}")
    account = await auth.accounts.add(data.name, data.role, data.password, also)
    auth.note_account()
    return account


@patch("/api/v1/accounts/{name:str}", opt=access("admin"))
async def change_account(caller: TheCaller, name: AccountName, data: JSONBody[AccountChange], auth: TheAuth) -> Account:
    """Change an account's role or password, or disable it. If one change fails, none is made."""
    await _find_account(auth, name)
    also = _entry(caller, auth, "change account", _describe_change(data))
    return await auth.accounts.change(
        name, role=data.role, is_disabled=data.is_disabled, password=data.password, also=also
    )


@delete("/api/v1/accounts/{name:str}", status_code=200, opt=access("admin"))
async def remove_account(caller: TheCaller, name: AccountName, auth: TheAuth) -> Done:
    """Remove an account, its sessions and its tokens."""
    await _find_account(auth, name)
    await auth.accounts.remove(name, _entry(caller, auth, "remove account"))
    await auth.refresh()
    return Done()


def _entry(caller: Caller, auth: Auth, action: str, details: str = "") -> Also:
    """The change's entry in the audit log, which is written with it or not at all."""
    return lambda account: [auth.audit.entry(caller, action, account.name, details=details)]


def _describe_change(change: AccountChange) -> str:
    """For the audit log, without the password itself."""
    told = [] if change.role is None else [f"role {change.role}"]
    if change.is_disabled is not None:
        told.append("disabled" if change.is_disabled else "enabled")
    if change.password is not None:
        told.append("new password")
    return ", ".join(told) or "nothing"


async def _find_account(auth: TheAuth, name: str) -> Account:
    account = await auth.accounts.find(name)
    if account is None:
        raise NotFoundException(f"no account is called {name[:64]!r}")
    return account


class TokenList(Struct, frozen=True):
    tokens: list[Token]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`hosts` is for agents: the host, or the pattern of names, that the token may report as."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    role: NewTokenRole
    hosts: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    expires_at: Annotated[float, Meta(ge=0, le=1e11)] | None = None


class MadeToken(Struct, frozen=True):
    """`secret` is shown only here."""

    token: Token
    secret: str


@get("/api/v1/tokens", opt=access("user"))
async def list_tokens(caller: TheCaller, auth: TheAuth) -> TokenList:
    """Tokens with their last use; never their secrets."""
    is_admin = caller.is_at_least("admin")
    return TokenList([token for token in await auth.tokens.list() if is_admin or _is_own(token, caller)])


@post("/api/v1/tokens", opt=access("user"))
async def create_token(caller: TheCaller, data: JSONBody[NewToken], auth: TheAuth) -> MadeToken:
    """Create a token. The secret is returned once and is not stored."""
    is_admin = caller.is_at_least("admin")
    if not is_admin and (data.role == "agent" or RANKS[data.role] > RANKS[caller.role]):
        raise PermissionDeniedException(f"{caller.name} has the role {caller.role} and cannot hand out more")
    owner = None if data.role == "agent" else caller.account_id
    if data.role != "agent":
        _check_lifetime(auth, caller, data.expires_at)
    token, secret = await auth.tokens.create(
        data.name,
        data.role,
        hosts=data.hosts,
        expires_at=data.expires_at,
        account_id=owner,
        created_by=caller.name,
        also=lambda made: auth.audit.token_entry(caller, "create token", made, f"role {made.role}"),
    )
    return MadeToken(token, secret)


@delete("/api/v1/tokens/{token_id:int}", status_code=200, opt=access("user"))
async def revoke_token(caller: TheCaller, token_id: _TokenId, auth: TheAuth) -> Done:
    """Revoke a token."""
    return await _revoke(auth, caller, token_id, is_any=caller.is_at_least("admin"))


class NewPersonalToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`name` says where it is used. It expires after `expire_seconds`, at most a year."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    expire_seconds: Annotated[float, Meta(ge=60, le=365 * 86_400)] = 30 * 86_400.0


class PersonalTokenMade(Struct, frozen=True):
    """`secret` is shown only here."""

    account: str
    secret: str
    expires_at: float


@post("/api/v1/me/token", opt=access("self"))
async def create_own_token(caller: TheCaller, data: JSONBody[NewPersonalToken], auth: TheAuth) -> PersonalTokenMade:
    """Create a token with your role, for your own programs (`gpudeck login`)."""
    expires_at = auth.tokens.now() + data.expire_seconds
    _check_lifetime(auth, caller, expires_at)
    token, secret = await auth.tokens.create(
        data.name,
        caller.role,
        expires_at=expires_at,
        account_id=caller.account_id,
        created_by=caller.name,
        also=lambda made: auth.audit.token_entry(caller, "create token", made, f"role {made.role}"),
    )
    return PersonalTokenMade(caller.name, secret, token.expires_at or expires_at)


@delete("/api/v1/me/token", status_code=200, opt=access("self"))
async def revoke_own_token(caller: TheCaller, auth: TheAuth) -> Done:
    """Revoke the token that this request is made with."""
    return await _revoke(auth, caller, caller.token_id, is_any=False)


@get("/api/v1/me/tokens", opt=access("self"))
async def list_own_tokens(caller: TheCaller, auth: TheAuth) -> TokenList:
    """Your tokens with their last use; never their secrets."""
    return TokenList([token for token in await auth.tokens.list() if _is_own(token, caller)])


@delete("/api/v1/me/tokens/{token_id:int}", status_code=200, opt=access("self"))
async def revoke_one_of_own_tokens(caller: TheCaller, token_id: _TokenId, auth: TheAuth) -> Done:
    """Revoke one of your tokens."""
    return await _revoke(auth, caller, token_id, is_any=False)


async def _revoke(auth: Auth, caller: Caller, token_id: int | None, *, is_any: bool) -> Done:
    """`is_any`: also one that is not of the caller's account."""
    known = next((token for token in await auth.tokens.list() if token.id == token_id), None)
    if known is None or not (is_any or _is_own(known, caller)):
        raise NotFoundException("there is no such token")
    await auth.tokens.revoke(known.id, lambda token: auth.audit.token_entry(caller, "revoke token", token))
    return Done()


def _check_lifetime(auth: Auth, caller: Caller, expires_at: float | None) -> None:
    """Raises PermissionDeniedException where a token would make one that outlives it: a found token would give
    the account away for ever. Agents' tokens can only report, and stay."""
    own = next((token for token in auth.tokens.live.values() if token.id == caller.token_id), None)
    end = None if own is None else own.expires_at
    if end is not None and (expires_at is None or expires_at > end):
        raise PermissionDeniedException("the new token would outlive the one that this request is made with")


def _is_own(token: Token, caller: Caller) -> bool:
    return caller.account_id is not None and token.account_id == caller.account_id


class AuditLog(Struct, frozen=True):
    """The newest first. `before` of the next question is the last one's id."""

    entries: list[AuditEntry]


@get("/api/v1/audit", opt=access("admin"))
async def read_audit(
    auth: TheAuth,
    limit: Annotated[int, QueryParameter(ge=1, le=1000, description="At most so many")] = 100,
    before: Annotated[
        int | None, QueryParameter(ge=1, le=2**63 - 1, description="Only entries older than this one")
    ] = None,
) -> AuditLog:
    """Logins, writes, tokens and changes of the configuration."""
    return AuditLog(await auth.audit.list(limit=limit, before_id=before))


_T = TypeVar("_T")
UserCode = Annotated[str, PathParameter(description="The code that the program shows", max_length=64)]


class NewDeviceLogin(Struct, frozen=True, forbid_unknown_fields=True):
    """`name` says where the token will be used; it expires after `expire_seconds`. `port`: where the program listens on
    the machine of the browser, if it does."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    expire_seconds: Annotated[float, Meta(ge=60, le=365 * 86_400)] = 30 * 86_400.0
    port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None


class DeviceTokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`code` is what arrived at the program's listener."""

    device_code: Annotated[str, Meta(min_length=1, max_length=128)]
    code: Annotated[str, Meta(max_length=128)] = ""


class Decision(Struct, frozen=True, forbid_unknown_fields=True):
    is_approved: bool


class Decided(Struct, frozen=True):
    """`redirect` is where the browser goes next; empty: the program asks by itself."""

    redirect: str


@post("/api/v1/device", status_code=200, opt=access("open"))
async def begin_device_login(request: AuthRequest, data: JSONBody[NewDeviceLogin], auth: TheAuth) -> DeviceLogin:
    """Begin to log a program in. Show the user its code, and the page `#/device` of this hub."""
    address, _ = client_of(request)
    return await auth.devices.begin(data.name, data.expire_seconds, address, data.port, auth.public_url)


@post("/api/v1/device/token", status_code=200, opt=access("open"))
async def redeem_device_login(
    request: AuthRequest, data: JSONBody[DeviceTokenRequest], auth: TheAuth
) -> PersonalTokenMade:
    """Ask for the token of a login that was begun, until the user has confirmed it. Before that `error.code` is
    authorization_pending, slow_down, access_denied or expired_token."""
    token, secret = await auth.devices.redeem(data.device_code, data.code, client_of(request)[0])
    return PersonalTokenMade(token.account or "", secret, token.expires_at or 0.0)


@get("/api/v1/device/{user_code:str}", opt=access("self"))
async def read_device_login(caller: TheCaller, user_code: UserCode, auth: TheAuth) -> PendingLogin:
    """Which program waits under a code."""
    return _found(await auth.devices.find(user_code, _owner(caller).account_id or 0))


@post("/api/v1/device/{user_code:str}", status_code=200, opt=access("self"))
async def decide_device_login(
    caller: TheCaller, user_code: UserCode, data: JSONBody[Decision], auth: TheAuth
) -> Decided:
    """Let the program under a code act as you, or not."""
    return Decided(_found(await auth.devices.decide(user_code, _owner(caller), is_approved=data.is_approved)))


def _owner(caller: Caller) -> Caller:
    """A token must not make other tokens that outlive it."""
    if caller.kind == "token":
        raise RequestRefused(403, "forbidden", "a login is confirmed on the page, not with a token", "Open the page.")
    return caller


def _found(found: _T | None) -> _T:
    if found is None:
        raise NotFoundException("no login waits under this code: it is mistyped, expired, or was decided already")
    return found
