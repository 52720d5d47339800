"""The public client: a hub's answers as typed values. Every method may raise the errors of `gpudeck.client.errors`.

Times are given as Unix seconds, a datetime with its zone, or text such as `-7d` or `2026-01-31T08:30Z`; they are
returned as Unix seconds. Amounts of memory are bytes or text such as `40G`.
"""

import contextlib
import getpass
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import urlencode

import msgspec

from gpudeck.client.answers import DeviceAuthorization, Identity, PersonalToken, explain_misfit
from gpudeck.client.connection import HubConnection, StreamEvent, in_path
from gpudeck.client.history import History
from gpudeck.client.live_fleet import Delta, FleetRows, LiveFleet, read_event
from gpudeck.client.queue import HubQueueClient, are_here, await_turn, find_this_host, using
from gpudeck.http_client import TRANSPORT_ERRORS
from gpudeck.model.alert import Alert, AlertList
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.event import Event, EventList, Severity
from gpudeck.model.gpu_request import GpuRequest, GrantedGpu, QueueList, QueuePosition, read_memory
from gpudeck.model.gpu_state import Availability, HostHealth
from gpudeck.model.job import Run, Runs
from gpudeck.model.reservation import ReservationList, ShownReservation, ShownSlot
from gpudeck.model.usage import Usage, UsageBy
from gpudeck.model.view import Fleet, GpuList, GpuOfHost, Host, HostList, PastFleet, Totals

Time = float | str | datetime
Memory = int | str
_MAX_PAUSE = 15.0


class _Next(msgspec.Struct):
    next_free: ShownSlot | None


class Client(HubConnection):
    """A hub. Blocks; see `HubConnection` for what it is opened with, and `AsyncClient` for asyncio."""

    def me(self) -> Identity:
        """Whom the hub takes the caller for."""
        return self.read(self.get("/api/v1/me"), Identity)

    def fleet(self, at: Time | None = None) -> Fleet:
        """All hosts with their GPUs and processes, now or, as a PastFleet, at a moment in the past."""
        return self.read(self.get("/api/v1/fleet", _query(at=at)), Fleet if at is None else PastFleet)

    def totals(self) -> Totals:
        """The number of GPUs in each state, of hosts and of users."""
        return self.read(self.get("/api/v1/totals"), Totals)

    def hosts(self) -> list[Host]:
        """All hosts, by name."""
        return self.read(self.get("/api/v1/hosts"), HostList).hosts

    def host(self, name: str) -> Host:
        """One host, by its name or id. Raises NotFound."""
        return self.read(self.get(f"/api/v1/hosts/{in_path(name)}"), Host)

    def health(self, host: str, gpus: Sequence[str] = ()) -> HostHealth:
        """Whether jobs may start on a host, or on some of its GPUs (indexes or UUIDs). Raises NotFound."""
        query = urlencode([("gpu", gpu) for gpu in gpus], errors="replace")
        return self.read(self.get(f"/api/v1/hosts/{in_path(host)}/health{query and f'?{query}'}"), HostHealth)

    def gpus(
        self,
        availability: Availability | None = None,
        *,
        memory: Memory | None = None,
        model: str | None = None,
        user: str | None = None,
        host: str | None = None,
    ) -> list[GpuOfHost]:
        """GPUs of all hosts, by host and index: those in a state, with at least so much memory, whose model's name
        contains `model`, on which a user is, of a host."""
        asked = _query(availability=availability, min_memory=_show_memory(memory), model=model, user=user, host=host)
        return self.read(self.get("/api/v1/gpus", asked), GpuList).gpus

    def alerts(
        self, *, host: str | None = None, rule: str | None = None, severity: Severity | None = None
    ) -> list[Alert]:
        """Firing alerts, worst first."""
        return self.read(self.get("/api/v1/alerts", _query(host=host, rule=rule, severity=severity)), AlertList).alerts

    def events(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        kind: str | None = None,
        severity: Severity | None = None,
        host: str | None = None,
        gpu: str | None = None,
        user: str | None = None,
    ) -> Iterator[Event]:
        """Events, newest first. Older pages are requested as they are needed."""
        query = _query(start=start, end=end, kind=kind, severity=severity, host=host, gpu=gpu, user=user)
        before: str | None = ""
        while before is not None:
            page = self.read(self.get("/api/v1/events", query | _query(before=before or None)), EventList)
            yield from page.events
            before = page.next

    def history(
        self,
        metric: str,
        start: Time = "-24h",
        end: Time = "now",
        *,
        gpu: str | None = None,
        host: str | None = None,
        user: str | None = None,
        run: int | None = None,
        by: Literal["gpu", "user"] | None = None,
        points: int = 500,
    ) -> History:
        """A metric over time: of a GPU (UUID), a host, a user or a run, or of the fleet where none of these is given.
        `by="gpu"` splits a host or a run into its GPUs."""
        asked = _query(gpu=gpu, host=host, user=user, run=run) or {"fleet": "true"}
        asked |= _query(metric=metric, start=start, end=end, points=points, by=by)
        return self.read(self.get("/api/v1/history", asked), History)

    def usage(
        self,
        by: UsageBy = "user",
        start: Time = "-30d",
        end: Time = "now",
        *,
        user: str | None = None,
        host: str | None = None,
        model: str | None = None,
        group: str | None = None,
        daily: bool = False,
        zone: str = "UTC",
    ) -> Usage:
        """GPU-hours, active hours, idle hours, energy and cost, a row for each user, group, host, …"""
        asked = _query(by=by, start=start, end=end, user=user, host=host, model=model, group=group, zone=zone)
        return self.read(self.get("/api/v1/usage", asked | _query(daily=daily)), Usage)

    def runs(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        user: str | None = None,
        host: str | None = None,
        gpu: str | None = None,
        now: bool = False,
        verdict: bool = False,
    ) -> Iterator[Run]:
        """Programs that were on GPUs, newest first; with `now` those that are there. Older pages are requested as they
        are needed."""
        query = _query(start=start, end=end, user=user, host=host, gpu=gpu, now=now, verdict=verdict)
        before: int | None = 0
        while before is not None:
            page = self.read(self.get("/api/v1/runs", query | _query(before=before or None)), Runs)
            yield from page.runs
            before = page.next

    def run(self, number: int) -> Run:
        """One program with its verdict. Raises NotFound."""
        return self.read(self.get(f"/api/v1/runs/{number}"), Run)

    def reservations(
        self, start: Time | None = None, end: Time | None = None, *, user: str | None = None, host: str | None = None
    ) -> list[ShownReservation]:
        """Reservations, by their start; without a period those that run or are planned."""
        query = _query(start=start, end=end, user=user, host=host)
        return self.read(self.get("/api/v1/reservations", query), ReservationList).reservations

    def reserve(
        self,
        gpus: int | Sequence[str] = 1,
        *,
        length: float | str,
        start: Time | None = None,
        memory: Memory | None = None,
        model: str | None = None,
        host: str | None = None,
        same_host: bool = False,
        note: str = "",
        user: str | None = None,
    ) -> ShownReservation:
        """Reserve so many GPUs of a kind, or those with these UUIDs, for `length` (seconds, or text such as `8h`), from
        now or from `start`. Raises ReservationTaken. `user` is for admins."""
        kind = {"memory": _show_memory(memory), "model": model, "host": host}
        wanted: object = (
            {"gpus": gpus, "same_host": same_host} | {name: value for name, value in kind.items() if value is not None}
            if isinstance(gpus, int)
            else list(gpus)
        )
        body = {"any" if isinstance(gpus, int) else "gpus": wanted, "for": length, "note": note}
        others = {"start": start and _show_time(start), "user": user}
        body |= {name: value for name, value in others.items() if value is not None}
        return self.read(self.post("/api/v1/reservations", body), ShownReservation)

    def next_free(
        self,
        length: float | str,
        gpus: int = 1,
        *,
        memory: Memory | None = None,
        model: str | None = None,
        host: str | None = None,
        same_host: bool = False,
        start: Time | None = None,
    ) -> ShownSlot | None:
        """When such GPUs are next free of reservations for so long; None where the hub finds no such time."""
        asked = _query(gpus=gpus, memory=_show_memory(memory), model=model, host=host, same_host=same_host, start=start)
        path = "/api/v1/reservations/next"
        return self.read(self.get(path, asked | {"for": f"{length}"}), _Next).next_free

    def release(self, number: int) -> ShownReservation:
        """Give a reservation back; what is left of it."""
        try:
            body = self.delete(f"/api/v1/reservations/{number}")
        except UsageError as error:
            # It is over: nothing is wrong with the question.
            raise GpudeckError(error.message, error.hint) from error
        return self.read(body, ShownReservation)

    def queue(self) -> QueueList:
        """The queue for GPUs, in order."""
        return self.read(self.get("/api/v1/queue"), QueueList)

    @contextlib.contextmanager
    def wait(
        self,
        gpus: int = 1,
        *,
        memory: Memory | None = None,
        model: str | None = None,
        host: str | None = None,
        any_host: bool = False,
        same_host: bool = True,
        mig: bool = False,
        allow_mig: bool = False,
        timeout: float | None = None,
        on_position: Callable[[QueuePosition], object] = lambda _: None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[GrantedGpu]]:
        """Queue for GPUs of this machine, of `host`, or of `any_host`, and use them while the `with` block lasts.

        If they are in this machine, the variable of their vendor (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES) names
        them in the block: enter it before a library initialises the GPUs. Raises WaitTimeout after `timeout` seconds,
        or once `is_cancelled`, and ImpossibleRequest. `on_position` is called with each new position in the queue."""
        here = None if host is not None else find_this_host(self)
        if here is None and host is None and not any_host:
            raise UsageError(f"this machine is not a host of {self.shown}.", "Use any_host=True, or host=.")
        wanted = GpuRequest(
            gpus=gpus,
            memory_bytes=read_memory(memory),
            model=model,
            same_host=same_host,
            host=host if any_host or here is None else here.name,
            near=here.id if any_host and here is not None else None,
            mig=mig,
            allow_mig=allow_mig,
        )
        queue = HubQueueClient(self, this_user(), wanted, lambda _: None)
        try:
            queue.join()
            granted = await_turn(queue, wanted, timeout, is_cancelled=is_cancelled, on_position=on_position).gpus
            with queue.keeping(), using(granted) if are_here(granted) else contextlib.nullcontext():
                yield granted
        finally:
            queue.leave()

    def stream(self) -> Iterator[FleetRows | Delta]:
        """The fleet, then what changes in it each second. Lost connections are made again, up to `retries` times in
        sequence, and continue where they ended; if that is too long ago, a whole fleet follows. Raises Unreachable."""
        for event in self._repeat_stream():
            try:
                read = read_event(event.kind, event.data)
            except msgspec.DecodeError as error:
                raise explain_misfit(error, event.data, self.shown) from error
            yield read

    def _repeat_stream(self) -> Iterator[StreamEvent]:
        last, backoff, failures = "", Backoff(0.5, _MAX_PAUSE), 0
        while True:
            trouble: Exception | None = None
            try:
                with contextlib.closing(self.stream_events(last)) as events:
                    for event in events:
                        yield event
                        last, failures = event.id, 0
                        backoff.succeed()
            except (Unreachable, *TRANSPORT_ERRORS) as error:
                trouble = error
            failures += 1
            if failures > self.retries:
                if isinstance(trouble, Unreachable):
                    raise trouble
                raise Unreachable(f"nothing comes from {self.shown} any more.") from trouble
            time.sleep(backoff.fail())

    def live(self) -> Iterator[Fleet]:
        """The whole fleet, each time that something has changed. It is the same object, changed in place; metrics that
        the stream leaves out keep the values of the first moment (docs/metrics.md says which)."""
        live = LiveFleet()
        for event in self.stream():
            if isinstance(event, Fleet):
                live.load(event)
            else:
                live.apply(event)
            yield live.fleet

    def metrics(self) -> bytes:
        """The fleet and the hub itself, in the format of Prometheus."""
        return self.get_text("/metrics")

    def log_in(self, name: str, password: str, label: str, seconds: float) -> PersonalToken:
        """A personal token that expires after so long; `label` says what it is for. The session that the password
        opens for it is ended again. Raises Forbidden where the name or the password is wrong."""
        opened = self.send("POST", "/api/v1/login", {"name": name, "password": password})
        cookie = {"Cookie": opened.headers.get("Set-Cookie", "").partition(";")[0]}
        made = self.send("POST", "/api/v1/me/token", {"name": label[:128], "expire_seconds": seconds}, others=cookie)
        self.send("POST", "/api/v1/logout", others=cookie)
        return self.read(made.data, PersonalToken)

    def begin_login(self, label: str, seconds: float, port: int | None = None) -> DeviceAuthorization:
        """A login that the user confirms on the page, with `redeem_login` for the token. With `port` the confirmation
        goes to that port of the browser's machine."""
        wanted = {"name": label[:128], "expire_seconds": seconds, "port": port}
        return self.read(self.post("/api/v1/device", wanted), DeviceAuthorization)

    def redeem_login(self, device_code: str, code: str = "") -> PersonalToken:
        """The token of a login that was confirmed. Raises LoginPending until then, and UsageError where it was denied
        or has expired."""
        return self.read(self.post("/api/v1/device/token", {"device_code": device_code, "code": code}), PersonalToken)

    def revoke_own_token(self) -> None:
        """Revoke the token that this client sends."""
        self.delete("/api/v1/me/token")


def this_user() -> str:
    """The login of the user who runs this; their number where the system does not know them, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _query(**values: Time | bool | None) -> dict[str, str]:
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    return {name: "true" if value is True else _show_time(value) for name, value in given.items()}


def _show_time(value: Time) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError("a datetime without its zone means something else on every machine.", "Add its tzinfo.")
        return f"{value.timestamp():.3f}"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _show_memory(memory: Memory | None) -> str | None:
    """As the API reads it: whole MiB."""
    size = read_memory(memory)
    return None if size is None else f"{math.ceil(size / 2**20)}M"
