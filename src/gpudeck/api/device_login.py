"""Logging in programs (`gpudeck login`): POST /api/v1/device begins, the user confirms with /api/v1/device/{code} on
the page, POST /api/v1/device/token gives out the token. The shape is that of RFC 8628."""

from typing import Annotated, TypeVar

from litestar import get, post
from litestar.exceptions import NotFoundException
from litestar.params import JSONBody, PathParameter
from msgspec import Meta, Struct

from gpudeck.api.access import TheCaller, access
from gpudeck.api.accounts import PersonalTokenMade
from gpudeck.api.answers import RequestRefused
from gpudeck.api.login import AuthRequest, TheAuth, client_of
from gpudeck.auth.caller import Caller
from gpudeck.auth.device_login import DeviceLogin, PendingLogin

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
