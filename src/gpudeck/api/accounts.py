"""/api/v1/accounts (GET, POST) and /api/v1/accounts/{name} (PATCH, DELETE): for admins."""

from typing import Annotated, Literal

from litestar import delete, get, patch, post
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import JSONBody, PathParameter
from msgspec import Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import allow, documented
from gpudeck.api.login import AuthRequest, Done, Name, Password, TheAuth
from gpudeck.auth.accounts import Account, Also
from gpudeck.auth.parts import Auth
from gpudeck.model.errors import UsageError
from gpudeck.server.asgi import ErrorBody

AccountRole = Literal["viewer", "user", "admin"]
AccountName = Annotated[str, PathParameter(description="The account's name")]


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


@post(
    "/api/v1/accounts",
    opt=access("admin"),
    responses={
        201: documented(Account, "The new account"),
        400: documented(ErrorBody, "A name or a password that will not do, or a name that is taken"),
    },
)
async def add_account(request: AuthRequest, data: JSONBody[NewAccount], auth: TheAuth) -> Account:
    """Make an account."""
    try:
        account = await auth.accounts.add(
            data.name, data.role, data.password, _entry(request, auth, "add account", f"role {data.role}")
        )
    except UsageError as error:
        raise ValidationException(str(error)) from error
    auth.note_account()
    return account


@patch(
    "/api/v1/accounts/{name:str}",
    opt=access("admin"),
    responses={
        200: documented(Account, "The account as it is now"),
        400: documented(ErrorBody, "A change that will not do, such as taking away the last admin"),
        404: documented(ErrorBody, "No such account"),
    },
)
async def change_account(
    request: AuthRequest, name: AccountName, data: JSONBody[AccountChange], auth: TheAuth
) -> Account:
    """Change an account's role or password, or switch it off: all that is asked, or nothing."""
    await _find(auth, name)
    also = _entry(request, auth, "change account", _describe(data))
    try:
        return await auth.accounts.change(
            name, role=data.role, is_disabled=data.is_disabled, password=data.password, also=also
        )
    except UsageError as error:
        raise ValidationException(str(error)) from error


@delete(
    "/api/v1/accounts/{name:str}",
    status_code=200,
    opt=access("admin"),
    responses={
        200: documented(Done, "The account is gone, with its sessions and tokens"),
        400: documented(ErrorBody, "The last admin cannot go"),
        404: documented(ErrorBody, "No such account"),
    },
)
async def remove_account(request: AuthRequest, name: AccountName, auth: TheAuth) -> Done:
    """Remove an account, its sessions and its tokens."""
    await _find(auth, name)
    try:
        await auth.accounts.remove(name, _entry(request, auth, "remove account"))
    except UsageError as error:
        raise ValidationException(str(error)) from error
    await auth.refresh()
    return Done()


allow_accounts = allow("/api/v1/accounts", "GET", "POST")
allow_account = allow("/api/v1/accounts/{name:str}", "DELETE", "PATCH")


def _entry(request: AuthRequest, auth: Auth, action: str, details: str = "") -> Also:
    """The change's entry in the audit log, which is written with it or not at all."""
    return lambda account: [auth.audit.entry(caller_of(request), action, account.name, details=details)]


def _describe(change: AccountChange) -> str:
    """For the audit log, without the password itself."""
    told = [] if change.role is None else [f"role {change.role}"]
    if change.is_disabled is not None:
        told.append("disabled" if change.is_disabled else "enabled")
    if change.password is not None:
        told.append("new password")
    return ", ".join(told) or "nothing"


async def _find(auth: TheAuth, name: str) -> Account:
    account = await auth.accounts.find(name)
    if account is None:
        raise NotFoundException(f"no account is called {name[:64]!r}")
    return account


ROUTES = [allow_accounts, allow_account, list_accounts, add_account, change_account, remove_account]
