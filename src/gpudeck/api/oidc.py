"""Logging in through OIDC providers: there and back, what a provider says itself, and logins that admins try.

GET /api/v1/login/oidc/{name} · /login/oidc/{name}/callback, POST /login/oidc/{name}/logout, /login/trials.
"""

from typing import Annotated, Any
from urllib.parse import parse_qs

from litestar import Response, get, post
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import COOKIE, LOGIN_COOKIE, TheCaller, access, make_cookie, read_cookie
from gpudeck.api.answers import RequestRefused
from gpudeck.api.login import AuthRequest, Done, TheAuth, client_of, write_note
from gpudeck.auth.auth import Auth
from gpudeck.auth.login import describe_wait
from gpudeck.auth.oidc_logins import BEGUN_SECONDS, OidcLogins, check_place
from gpudeck.auth.trials import Trial
from gpudeck.model.clock import wall as now
from gpudeck.model.errors import Refused, Temporary, Wrong
from gpudeck.server.admission import LOGIN_WAIT

MAX_LOGOUT_BYTES = 32 * 1024
TRIED = "This login was a trial, so nobody was logged in. Its result is shown where it was begun."
_ANSWERS = ("code", "state", "iss", "error")
_Provider = Annotated[str, PathParameter(description="The provider's name in the configuration", max_length=64)]
_REDIRECT = {302: ResponseSpec(None, description="To the provider, or back to the page", generate_examples=False)}


class NewTrial(Struct, frozen=True, forbid_unknown_fields=True):
    """For the provider `ldap` with a name, and a password if it is to be tried, too."""

    provider: Annotated[str, Meta(min_length=1, max_length=64)]
    name: Annotated[str, Meta(max_length=64)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None


@get("/api/v1/login/oidc/{name:str}", opt=access("open"), responses=_REDIRECT, status_code=302)
async def begin_login(
    request: AuthRequest,
    name: _Provider,
    auth: TheAuth,
    place: Annotated[
        str, QueryParameter(name="next", max_length=4096, description="Where on the page to go then: ?query#fragment")
    ] = "",
    trial: Annotated[str, QueryParameter(max_length=64, description="The id of a trial")] = "",
) -> Response[Any]:
    """Send the browser to a provider to log in."""
    logins = _find(auth, name)
    known = await logins.trials.find(trial) if trial else None
    if trial and (known is None or known.state != "waiting" or known.provider != name):
        raise NotFoundException("this trial was used, or is too old")
    try:
        url, begun = await logins.begin(name, place, trial)
    except (Temporary, Refused) as error:
        return _back(request, logins, check_place(place), error)
    return _go(request, url, begun)


@get("/api/v1/login/oidc/{name:str}/callback", opt=access("open"), responses=_REDIRECT, status_code=302)
async def finish_login(request: AuthRequest, name: _Provider, auth: TheAuth) -> Response[Any]:
    """Where a provider sends the browser back to."""
    logins = _find(auth, name)
    # Several of one name would be read differently by others.
    answer = {key: values[0] for key in _ANSWERS if len(values := request.query_params.getall(key, [])) == 1}
    cookie = read_cookie(request, LOGIN_COOKIE)
    if isinstance(wait := request.scope.get(LOGIN_WAIT), float):
        note = f"too many attempts to log in come from this address. Try again in {describe_wait(wait)}."
        return _back(request, logins, logins.place_of(name, cookie), note)
    try:
        finished = await logins.finish(name, cookie, answer, *client_of(request))
    except (Temporary, Refused) as error:
        return _back(request, logins, logins.place_of(name, cookie), error)
    if finished.secret is None:
        return _back(request, logins, "", TRIED)
    auth.note_account()
    return _back(request, logins, finished.place, "", finished.secret)


@post("/api/v1/login/oidc/{name:str}/logout", status_code=200, opt=access("open"))
async def log_out_by_provider(request: AuthRequest, name: _Provider, auth: TheAuth) -> Response[Done]:
    """Back-channel logout: the provider ends sessions, with a signed logout token in a form."""
    logins, body = _find(auth, name), await request.body()
    try:
        tokens = parse_qs(body[:MAX_LOGOUT_BYTES].decode("latin-1"), max_num_fields=8).get("logout_token", [""])
        await logins.end_sessions(name, tokens[0], client_of(request)[0])
    except (Refused, ValueError) as error:
        raise RequestRefused(400, "invalid_request", str(error)) from error
    return Response(Done(), headers={"Cache-Control": "no-store"})


@post("/api/v1/login/trials", opt=access("admin"))
async def try_login(caller: TheCaller, data: JSONBody[NewTrial], auth: TheAuth) -> Trial:
    """Try a login: it shows what the provider sends and what becomes of it, and logs nobody in."""
    await auth.audit.record(caller, "try login", data.provider)
    if data.provider != "ldap" or auth.ldap is None:
        return await _find(auth, data.provider).make_trial(data.provider)
    from gpudeck.auth.ldap_logins import try_login as try_ldap  # noqa: PLC0415 - its library takes long to load

    try:
        trial, name = Trial("", "ldap", "", now()), data.name or ""
        return await try_ldap(auth.ldap.directory, trial, name, data.password or None, auth.identities)
    except Wrong as error:
        raise RequestRefused(400, "invalid_request", str(error)) from error


@get("/api/v1/login/trials/{trial_id:str}", opt=access("admin"))
async def read_trial(
    trial_id: Annotated[str, PathParameter(description="The trial's id", max_length=64)], auth: TheAuth
) -> Trial:
    """One login that an admin tried."""
    found = await auth.trials.find(trial_id)
    if found is None:
        raise NotFoundException("there is no such trial")
    return found


def _find(auth: Auth, name: str) -> OidcLogins:
    if auth.oidc is None or name not in auth.oidc.providers:
        hint = "If it is new in the configuration, restart the hub."
        raise RequestRefused(404, "not_found", f"this hub has no login provider {name!r}.", hint)
    return auth.oidc


def _go(request: AuthRequest, url: str, begun: str, max_age: int = BEGUN_SECONDS) -> Response[Any]:
    cookie = make_cookie(request, LOGIN_COOKIE, begun, max_age)
    headers = {"Location": url, "Cache-Control": "no-store"}
    return Response(None, status_code=302, headers=headers, cookies=[cookie], media_type=MediaType.TEXT)


def _back(
    request: AuthRequest, logins: OidcLogins, place: str, note: object, secret: str | None = None
) -> Response[Any]:
    """To the page, with the new session, or with a note on why there is none."""
    answer = _go(request, f"{logins.public_url}/{place}", "", max_age=0)
    if secret is not None:
        answer.cookies.append(make_cookie(request, COOKIE, secret))
    if note:
        answer.cookies.append(write_note(request, str(note)))
    return answer
