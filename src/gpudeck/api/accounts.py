"""/api/v1/accounts · /accounts/{name} and /api/v1/audit for admins; /api/v1/tokens · /tokens/{id}.

Admins see and make all tokens. Users see and make their own, which can do no more than they can themselves.
"""

from typing import Annotated, Literal

from litestar import delete, get, patch, post
from litestar.exceptions import NotFoundException, PermissionDeniedException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.login import AuthRequest, Done, Name, Password, TheAuth
from gpudeck.auth.accounts import Account, Also
from gpudeck.auth.audit import AuditEntry
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import RANKS, Caller
from gpudeck.auth.tokens import Token

AccountRole = Literal["viewer", "user", "admin"]
AccountName = Annotated[str, PathParameter(description="The account's name")]
NewTokenRole = Literal["agent", "viewer", "user", "admin", "calendar"]


class AccountList(Struct, frozen=True):
    accounts: list[Account]


class NewAccount(Struct, frozen=True, forbid_unknown_fields=True):
    """Without a password the account logs in through a trusted proxy alone."""

    name: Name
    role: AccountRole = "user"
    password: Password | None = None


class AccountChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays."""

    role: AccountRole | None = None
    password: Password | None = None
    is_disabled: bool | None = None


@get("/api/v1/accounts", opt=access("admin"))
async def list_accounts(auth: TheAuth) -> AccountList:
    """All accounts, by name."""
    return AccountList(await auth.accounts.list())


@post("/api/v1/accounts", opt=access("admin"))
async def add_account(request: AuthRequest, data: JSONBody[NewAccount], auth: TheAuth) -> Account:
    """Make an account."""
    account = await auth.accounts.add(
        data.name, data.role, data.password, _entry(request, auth, "add account", f"role {data.role}")
    )
    auth.note_account()
    return account


@patch("/api/v1/accounts/{name:str}", opt=access("admin"))
async def change_account(
    request: AuthRequest, name: AccountName, data: JSONBody[AccountChange], auth: TheAuth
) -> Account:
    """Change an account's role or password, or switch it off: all that is asked, or nothing."""
    await _find_account(auth, name)
    also = _entry(request, auth, "change account", _describe_change(data))
    return await auth.accounts.change(
        name, role=data.role, is_disabled=data.is_disabled, password=data.password, also=also
    )


@delete("/api/v1/accounts/{name:str}", status_code=200, opt=access("admin"))
async def remove_account(request: AuthRequest, name: AccountName, auth: TheAuth) -> Done:
    """Remove an account, its sessions and its tokens."""
    await _find_account(auth, name)
    await auth.accounts.remove(name, _entry(request, auth, "remove account"))
    await auth.refresh()
    return Done()


def _entry(request: AuthRequest, auth: Auth, action: str, details: str = "") -> Also:
    """The change's entry in the audit log, which is written with it or not at all."""
    return lambda account: [auth.audit.entry(caller_of(request), action, account.name, details=details)]


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
async def list_tokens(request: AuthRequest, auth: TheAuth) -> TokenList:
    """Tokens with their last use; never their secrets."""
    caller = caller_of(request)
    return TokenList([token for token in await auth.tokens.list() if _is_theirs(token, caller)])


@post("/api/v1/tokens", opt=access("user"))
async def create_token(request: AuthRequest, data: JSONBody[NewToken], auth: TheAuth) -> MadeToken:
    """Make a token. Its secret is in the answer, and nowhere else."""
    caller = caller_of(request)
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
        also=lambda made: auth.audit.entry(
            caller, "create token", f"{made.id} {made.name}", details=f"role {made.role}"
        ),
    )
    return MadeToken(token, secret)


@delete("/api/v1/tokens/{token_id:int}", status_code=200, opt=access("user"))
async def revoke_token(
    request: AuthRequest, token_id: Annotated[int, PathParameter(description="The token's number")], auth: TheAuth
) -> Done:
    """Take a token back."""
    caller = caller_of(request)
    known = next((token for token in await auth.tokens.list() if token.id == token_id), None)
    if known is None or not _is_theirs(known, caller):
        raise NotFoundException(f"there is no token {token_id}")
    return await _revoke(request, auth, token_id)


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
async def create_own_token(request: AuthRequest, data: JSONBody[NewPersonalToken], auth: TheAuth) -> PersonalTokenMade:
    """Make a token that can do what you can, for programs of yours (`gpudeck login`)."""
    caller = caller_of(request)
    expires_at = auth.tokens.now() + data.expire_seconds
    _check_lifetime(auth, caller, expires_at)
    token, secret = await auth.tokens.create(
        data.name,
        caller.role,
        expires_at=expires_at,
        account_id=caller.account_id,
        created_by=caller.name,
        also=lambda made: auth.audit.entry(
            caller, "create token", f"{made.id} {made.name}", details=f"role {made.role}"
        ),
    )
    return PersonalTokenMade(caller.name, secret, token.expires_at or expires_at)


@delete("/api/v1/me/token", status_code=200, opt=access("self"))
async def revoke_own_token(request: AuthRequest, auth: TheAuth) -> Done:
    """Revoke the token that this request is made with."""
    caller = caller_of(request)
    if caller.token_id is None:
        raise NotFoundException("this request was made without a token")
    return await _revoke(request, auth, caller.token_id)


@get("/api/v1/me/tokens", opt=access("self"))
async def list_own_tokens(request: AuthRequest, auth: TheAuth) -> TokenList:
    """Your tokens with their last use; never their secrets."""
    own = caller_of(request).account_id
    return TokenList([token for token in await auth.tokens.list() if token.account_id == own])


@delete("/api/v1/me/tokens/{token_id:int}", status_code=200, opt=access("self"))
async def revoke_one_of_own_tokens(
    request: AuthRequest, token_id: Annotated[int, PathParameter(description="The token's number")], auth: TheAuth
) -> Done:
    """Take back one of your tokens."""
    own = caller_of(request).account_id
    if not any(token.id == token_id and token.account_id == own for token in await auth.tokens.list()):
        raise NotFoundException(f"you have no token {token_id}")
    return await _revoke(request, auth, token_id)


async def _revoke(request: AuthRequest, auth: Auth, token_id: int) -> Done:
    caller = caller_of(request)
    await auth.tokens.revoke(
        token_id, lambda token: auth.audit.entry(caller, "revoke token", f"{token.id} {token.name}")
    )
    return Done()


def _check_lifetime(auth: Auth, caller: Caller, expires_at: float | None) -> None:
    """Raises PermissionDeniedException where a token would make one that outlives it: a found token would give
    the account away for ever. Agents' tokens can only report, and stay."""
    own = next((token for token in auth.tokens.live.values() if token.id == caller.token_id), None)
    end = None if own is None else own.expires_at
    if end is not None and (expires_at is None or expires_at > end):
        raise PermissionDeniedException("the new token would outlive the one that this request is made with")


def _is_theirs(token: Token, caller: Caller) -> bool:
    is_own = caller.account_id is not None and token.account_id == caller.account_id
    return is_own or caller.is_at_least("admin")


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
