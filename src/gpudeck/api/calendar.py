"""GET /api/v1/reservations.ics: the bookings for calendars, which cannot log in: a token stands in the address."""

import asyncio
from typing import Annotated

from litestar import Response, get
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.booking_desk import TheBookings
from gpudeck.api.login import AuthRequest, TheAuth
from gpudeck.api.questions import check_names
from gpudeck.auth.caller import Caller
from gpudeck.auth.parts import Auth
from gpudeck.reservations.ics import CONTENT_TYPE, write_calendar
from gpudeck.reservations.store import ReservationAsk

KEPT_SECONDS = 31 * 86_400.0
"""How far back a calendar goes."""
_ASK = ("user", "host", "token")
_FEED = ResponseSpec(str, description="The bookings (RFC 5545)", generate_examples=False, media_type="text/calendar")
_Name = Annotated[str | None, QueryParameter(max_length=256, description="Only this one's")]


@get("/api/v1/reservations.ics", opt=access("open"), responses={200: _FEED})
async def read_calendar(
    *,
    request: AuthRequest,
    auth: TheAuth,
    policy: ThePolicy,
    bookings: TheBookings,
    user: _Name = None,
    host: _Name = None,
    token: Annotated[str | None, QueryParameter(max_length=1024, description="A token with the role calendar")] = None,
) -> Response[bytes]:
    """The bookings as a calendar to subscribe to: all, a person's or a host's; the last month and all to come.

    A hub that shows nothing to strangers wants a token with the role `calendar`, here or as a header.
    """
    check_names(request, _ASK)
    caller = caller_of(request) if token is None else _find(auth, token)
    if caller.role != "calendar":
        policy.check("read", caller)
    found = await bookings.search(ReservationAsk(start=bookings.now() - KEPT_SECONDS, user=user, host=host))
    name = " ".join(filter(None, ["GPUs", user, host and f"on {host}"]))
    headers = {"Cache-Control": "private, no-store", "Content-Disposition": 'inline; filename="reservations.ics"'}
    # Thousands of bookings take tens of milliseconds, and calendars ask all at the same minute.
    body = await asyncio.to_thread(write_calendar, found, name)
    return Response(body, media_type=CONTENT_TYPE, headers=headers)


def _find(auth: Auth, token: str) -> Caller:
    """Addresses stand in logs and histories: what is there may open nothing but this door."""
    caller = auth.find_token(token)
    if caller is None:
        raise NotAuthorizedException("this hub does not know that token, or it has ended")
    if caller.role != "calendar":
        raise PermissionDeniedException(f"a token in an address has to have the role calendar, not {caller.role}")
    return caller


ROUTES = [read_calendar]
