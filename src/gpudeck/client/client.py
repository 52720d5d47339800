"""Ask a hub over HTTP. Blocks; raises Unreachable when the hub does not answer like a hub."""

import contextlib
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.client.answers import Identity, read_answer
from gpudeck.client.http import TROUBLE, ClientResponse, ask
from gpudeck.model.alert import Alert, Silence
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.hub_url import check_hub_url, mask_password
from gpudeck.model.reservation import ShownReservation, ShownSlot
from gpudeck.model.target import AddedHosts, RemovedHosts

if TYPE_CHECKING:
    from gpudeck.client.stream import OpenStream

T = TypeVar("T")

_TRUST = "Name the authority that signed it with $SSL_CERT_FILE, or use the name that stands in it."
_HINT = "Is it running? `gpudeck up` starts one; --hub or $GPUDECK_HUB names another."

_NO_ROUTE = "not_found"
"""The code of an answer about a path that the hub does not serve."""


class Forbidden(GpudeckError):
    """The hub wants to know who asks, or does not let them."""


class NoSuchThing(GpudeckError):
    """The hub serves such things, but has not this one."""


class Busy(GpudeckError):
    """The hub cannot do it now, and may a little later."""


class Taken(GpudeckError):
    """Others have those GPUs then. `conflicts` are their reservations, `next_free` is when there are none; None where
    no such time is known."""

    def __init__(self, message: str, hint: str, conflicts: list[ShownReservation], next_free: ShownSlot | None) -> None:
        super().__init__(message, hint)
        self.conflicts = conflicts
        self.next_free = next_free


class _Reason(Struct):
    code: str
    message: str
    hint: str = ""


class _Refused(Struct):
    """What a hub says where it does not do what it was asked for."""

    error: _Reason


class _ConflictBody(_Refused):
    """Of a booking."""

    conflicts: list[ShownReservation]
    next_free: ShownSlot | None = None


_KINDS: dict[int, type[GpudeckError]] = {
    400: UsageError,
    401: Forbidden,
    403: Forbidden,
    404: NoSuchThing,
    409: UsageError,
    422: UsageError,
    429: Busy,
    503: Busy,
}


def _read_refusal(body: bytes) -> _Refused:
    for kind in (_ConflictBody, _Refused):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(body, type=kind)
    return _Refused(_Reason(_NO_ROUTE, ""))


def _write(query: Mapping[str, str]) -> str:
    """Behind the question mark. Nothing is called like bytes that are no text, and nothing is found."""
    return urlencode(query, errors="replace")


class Client:
    """A hub at `url`. Answers come as the bytes the hub sent: callers that show JSON pass them on unchanged.

    `token` is sent with every question, where the hub wants one. `shown` is the address without any password.
    """

    def __init__(self, url: str, timeout: float = 10.0, *, token: str | None = None) -> None:
        self.url = check_hub_url(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UsageError("the token has characters that no token has.", "Look at $GPUDECK_TOKEN.")
        self._token = token
        self.shown = mask_password(self.url)
        self._timeout = timeout

    def with_token(self, token: str) -> "Client":
        """The same hub, asked with another token."""
        return Client(self.url, self._timeout, token=token)

    def read(self, body: bytes, kind: type[T]) -> T:
        """An answer of this hub as a struct: see `read_answer`."""
        return read_answer(body, kind, self.shown)

    def fleet(self) -> bytes:
        """The whole fleet as JSON (see model.view.Fleet)."""
        return self._get("/api/v1/fleet")

    def host(self, name: str) -> bytes:
        """One host, by its id or name, as JSON (see model.view.Host)."""
        return self._get(f"/api/v1/hosts/{quote(name, safe='')}")

    def hosts(self) -> bytes:
        """All hosts as JSON (a list of model.view.Host below `hosts`)."""
        return self._get("/api/v1/hosts")

    def about(self) -> bytes:
        """The hub about itself, as JSON (see api.about.About)."""
        return self._get("/api/v1/about")

    def metrics(self) -> bytes:
        """The fleet and the hub itself, as Prometheus reads them."""
        return self._ask("GET", "/metrics", kind="text/plain")

    def usage(self, query: Mapping[str, str]) -> bytes:
        """Who used what, as JSON (see history.base.Usage). `query` is what stands behind the question mark."""
        return self._get(f"/api/v1/usage?{_write(query)}")

    def history(self, query: Mapping[str, str]) -> bytes:
        """A metric over time, as JSON (see history.base.Answer). `query` is what stands behind the question mark."""
        return self._get(f"/api/v1/history?{_write(query)}")

    def stream(self, last_event_id: str = "") -> "OpenStream":
        """The fleet as events, from `last_event_id` on where the hub still has them. The caller closes it."""
        from gpudeck.client.stream import OpenStream  # noqa: PLC0415 - most ask once, and not for events

        headers = self._headers() | {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        try:
            opened = OpenStream(f"{self.url}/api/v1/stream", headers, self._timeout)
            if opened.status == 200 and opened.content_type.startswith("text/event-stream"):
                return opened
            answer = ClientResponse(opened.status, opened.content_type, opened.body())
            opened.close()
        except TROUBLE as error:
            self._explain(error)
        raise self._refusal(answer.status, answer.data, is_question=True) if answer.status != 200 else self._no_hub()

    def events(self, query: Mapping[str, str]) -> bytes:
        """What happened, as JSON (a list of model.event.Event below `events`). `query` is as for `usage`."""
        return self._get(f"/api/v1/events?{_write(query)}")

    def post(self, path: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """Tell the hub something on a path that only some hubs have. Raises NoSuchThing where this one does not, Busy
        where it cannot take it now."""
        answer: dict[str, Any] = msgspec.json.decode(self._ask("POST", path, dict(told)))
        return answer

    def alerts(self, query: Mapping[str, str]) -> bytes:
        """What is wrong, as JSON (a list of model.alert.Alert below `alerts`). `query` is as for `usage`."""
        return self._get(f"/api/v1/alerts?{_write(query)}")

    def acknowledge(self, alert: str) -> Alert:
        """Look after an alert; the alert as it is then."""
        return self.read(self._ask("POST", f"/api/v1/alerts/{quote(alert, safe='')}/acknowledge"), Alert)

    def silences(self) -> bytes:
        """Of what nobody is told, as JSON (a list of model.alert.Silence below `silences`)."""
        return self._get("/api/v1/silences")

    def add_silence(self, wanted: dict[str, Any]) -> Silence:
        """Have nobody told for a while; the silence."""
        return self.read(self._ask("POST", "/api/v1/silences", wanted), Silence)

    def end_silence(self, silence: str) -> None:
        """Have people told again."""
        self._ask("DELETE", f"/api/v1/silences/{quote(silence, safe='')}")

    def add_host(self, new: dict[str, Any]) -> AddedHosts:
        """Have a host watched."""
        return self.read(self._ask("POST", "/api/v1/hosts", new), AddedHosts)

    def remove_host(self, name: str) -> None:
        """Have a host forgotten."""
        self._ask("DELETE", f"/api/v1/hosts/{quote(name, safe='')}")

    def remove_hosts(self, query: Mapping[str, str]) -> RemovedHosts:
        """Have all hosts forgotten that fit `query`, which is what stands behind the question mark."""
        return self.read(self._ask("DELETE", f"/api/v1/hosts?{_write(query)}"), RemovedHosts)

    def me(self) -> Identity:
        """Whom the hub takes the asker for."""
        return self.read(self._get("/api/v1/me"), Identity)

    def queue(self) -> bytes:
        """Who waits for GPUs, and which are kept for whom, as JSON (see api.queue.QueueList)."""
        return self._get("/api/v1/queue")

    def join_queue(self, request: dict[str, Any]) -> bytes:
        """Queue a request; its position as JSON (see queueing.scheduler.QueuePosition). With the same `key` again
        it is the same position."""
        return self._ask("POST", "/api/v1/queue", request)

    def ask_queue(self, number: int, wait: float = 0.0, seen: str = "") -> bytes | None:
        """A place in line as JSON, and whether its turn has come; None where the hub knows no such place. Waits up to
        so many seconds for anything else than `seen`, the `version` of the answer before."""
        query = urlencode({"wait": f"{wait:g}", "seen": seen})
        try:
            return self._get(f"/api/v1/queue/{number}?{query}")
        except NoSuchThing:
            return None

    def leave_queue(self, number: int) -> None:
        """Give up a place in line, or what was granted. One that is gone already is no error."""
        with contextlib.suppress(NoSuchThing):
            self._ask("DELETE", f"/api/v1/queue/{number}")

    def watches(self, query: Mapping[str, str]) -> bytes:
        """What somebody wants to be told of, as JSON (a list below `watches`)."""
        return self._get(f"/api/v1/watches?{_write(query)}")

    def add_watch(self, wanted: dict[str, Any]) -> bytes:
        """Be told when GPUs are free; the watch as JSON."""
        return self._ask("POST", "/api/v1/watches", wanted)

    def remove_watch(self, number: int) -> None:
        """Raises NoSuchThing."""
        self._ask("DELETE", f"/api/v1/watches/{number}")

    def reservations(self, query: Mapping[str, str]) -> bytes:
        """What is booked from now on, as JSON (a list of model.reservation.Reservation below `reservations`)."""
        return self._get(f"/api/v1/reservations?{_write(query)}")

    def reserve(self, wanted: dict[str, Any]) -> bytes:
        """Book GPUs; the reservation as JSON. Raises Taken."""
        return self._ask("POST", "/api/v1/reservations", wanted)

    def release(self, number: int) -> ShownReservation:
        """Give a reservation back; what is left of it."""
        try:
            body = self._ask("DELETE", f"/api/v1/reservations/{number}")
        except UsageError as error:
            # It is over: nothing is wrong with the question.
            raise GpudeckError(error.message, error.hint) from error
        return self.read(body, ShownReservation)

    def _get(self, path: str) -> bytes:
        return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, kind: str = "application/json") -> bytes:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            sent = None if body is None else msgspec.json.encode(body)
        except UnicodeError as error:
            raise UsageError("what is asked for has bytes that are no text.", "Write it in UTF-8.") from error
        try:
            answer = ask(method, self.url + path, headers, sent, self._timeout)
        except TROUBLE as error:
            self._explain(error)
        if answer.status not in {200, 201}:
            raise self._refusal(answer.status, answer.data, is_question=method == "GET")
        if not answer.content_type.startswith(kind):
            raise self._no_hub()
        return answer.data

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept": "application/json"}
        return headers if self._token is None else headers | {"Authorization": f"Bearer {self._token}"}

    def _explain(self, error: Exception) -> NoReturn:
        if isinstance(error, ssl.SSLError):
            raise Unreachable(f"the certificate of {self.shown} is not believed: {error}.", _TRUST) from error
        raise Unreachable(f"no hub answers at {self.shown}.", _HINT) from error

    def _refusal(self, status: int, body: bytes, *, is_question: bool) -> GpudeckError:
        refused = _read_refusal(body)
        code, message, hint = refused.error.code, refused.error.message.rstrip("."), refused.error.hint
        # Every hub knows our routes: this is another server, or a path beside the hub's.
        if status == 404 and is_question and code == _NO_ROUTE:
            return self._no_hub()
        if not message:
            return Unreachable(f"{self.shown} answered {status}, not as a gpudeck hub would.", _HINT)
        if status == 401 and not hint:
            hint = "Set $GPUDECK_TOKEN." if self._token is None else "Look at $GPUDECK_TOKEN."
        if isinstance(refused, _ConflictBody):
            return Taken(f"{message}.", hint, refused.conflicts, refused.next_free)
        return _KINDS.get(status, GpudeckError)(f"{message}.", hint)

    def _no_hub(self) -> Unreachable:
        return Unreachable(f"{self.shown} answers, but is no gpudeck hub.", "Check the address, and the path in it.")
