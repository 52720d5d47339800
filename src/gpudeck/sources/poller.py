"""Reads every host that does not push reports, each independently: a slow or silent host delays no other, and failing
hosts are polled less often."""

import asyncio
import contextlib
import gc
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.agent.push import read_token
from gpudeck.fetch import AddressGuard, Fetcher, HttpResponse, TokenRefused, content_kind, log_beginning, trust_from
from gpudeck.model import clock
from gpudeck.model.backoff import Backoff
from gpudeck.model.cpu_budget import Steps, finish
from gpudeck.model.errors import GpudeckError, Refused, ReportRefused, Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, MakeSource, PullSettings, Source
from gpudeck.wire import MAX_BODY_BYTES, Envelope, decode, read_sent_at

log = logging.getLogger(__name__)

MAX_PAUSE = 15.0
"""The longest pause before a host that returns is polled again, apart from its deadline."""
SPARE_INTERVALS = 4
"""A host that also reports over a better source is polled only once in this many intervals, in case that source
ends."""
_FIRST_SPREAD = 0.01
_GRACE = 0.5
"""Extra time for sources with their own deadline, whose message says what they waited for."""
SWEEP_PAUSE = 5.0
"""A failed reading leaves reference cycles with up to several MiB of received data, and the hub's garbage collector
rarely runs."""
_chance = random.Random()  # noqa: S311 - spreads the hosts over time, and hides nothing


class PollMethod(Struct, frozen=True):
    """How hosts of one source are polled: the factory of sources, the interval, the deadline, and the default port
    (None if nothing listens)."""

    make: MakeSource
    interval: float
    deadline: float
    port: int | None = None


Deliver = Callable[[Target, FetchedReport], bool]
"""Delivers a report to the hub. False if the host reports over a better source. Raises GpudeckError if it is
refused."""
Failed = Callable[[Target, str | None], None]
"""Reports why a target cannot be read now; None when it can again."""


class Poller:
    """Polls the targets of the last `watch`. `deliver` and `failed` are called in the event loop."""

    def __init__(
        self, methods: Mapping[str, PollMethod], deliver: Deliver, failed: Failed, now: clock.Clock = clock.wall
    ) -> None:
        self._methods = methods
        self._deliver = deliver
        self._failed = failed
        self._now = now
        self._tasks: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._swept_at = float("-inf")

    def watch(self, targets: Iterable[Target]) -> None:
        """Poll exactly these targets from now on, by name. An unchanged target keeps its connection."""
        finish(self.watch_in_steps(targets))

    def watch_in_steps(self, targets: Iterable[Target]) -> Steps[None]:
        """`watch`, one step per host. An unfinished call may be abandoned for a newer one."""
        wanted = {target.name: target for target in targets if target.via in self._methods}
        yield from self.end_others(wanted.values())
        new = [target for name, target in wanted.items() if name not in self._tasks]
        for target in new:
            if target.name not in self._tasks:
                self._tasks[target.name] = target, asyncio.create_task(self._keep_reading(target, len(new)))
            yield

    def end_others(self, targets: Iterable[Target]) -> Steps[None]:
        """Stop polling all other targets. One step per host."""
        wanted = {target.name: target for target in targets if target.via in self._methods}
        for target, task in list(self._tasks.values()):
            if wanted.get(target.name) != target:
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
                task.cancel()
                del self._tasks[target.name]
            yield

    async def stop(self) -> None:
        finish(self.end_others(()))
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _keep_reading(self, target: Target, starting: int) -> None:
        """`starting` hosts start together: they are spread over the interval, or they would stay synchronized."""
        method = self._methods[target.via]
        try:
            source = method.make(target)
        except GpudeckError as error:
            self._failed(target, str(error))
            return
        host = _PolledHost(target, source, method, self._deliver, self._failed)
        pause = _chance.uniform(0.0, min(method.interval, _FIRST_SPREAD * starting))
        try:
            while True:
                await asyncio.sleep(pause)
                pause = await host.poll(self._now())
                if host.has_failed:
                    self._sweep()
        finally:
            with contextlib.suppress(Exception):
                await source.close()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= SWEEP_PAUSE:
            self._swept_at = now
            gc.collect(0)


class _PolledHost:
    def __init__(self, target: Target, source: Source, method: PollMethod, deliver: Deliver, failed: Failed) -> None:
        self._target = target
        self._source = source
        self._method = method
        self._deliver = deliver
        self._failed = failed
        self._backoff = Backoff(method.interval, max(MAX_PAUSE, method.interval), jitter=0.25)
        self._trouble: str | None = None

    @property
    def has_failed(self) -> bool:
        return bool(self._backoff.failures)

    async def poll(self, now: float) -> float:
        """Read once; returns the seconds to wait. Raises only CancelledError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._method.deadline + _GRACE):
                fetched = await self._source.read(now)
            is_wanted = self._deliver(self._target, fetched)
        except GpudeckError as error:
            return self._fail(str(error))
        except TimeoutError:
            return self._fail(f"It did not answer within {self._method.deadline:g} s.")
        except Exception as error:
            log.exception("reading %s failed", self._target.name)
            return self._fail(f"Reading it failed ({type(error).__name__}); the hub's log has the details.")
        if self._backoff.failures:
            log.info("%s can be read again", self._target.name)
            self._failed(self._target, None)
        self._backoff.succeed()
        self._trouble = None
        intervals = 1 if is_wanted else SPARE_INTERVALS
        return max(0.0, intervals * self._method.interval - (loop.time() - began))

    def _fail(self, reason: str) -> float:
        if reason != self._trouble:
            name = self._target.name
            message = reason if reason.startswith(name) else f"{name}: {reason}"
            log.log(logging.INFO if self._trouble else logging.WARNING, "%s", message)
        self._trouble = reason
        self._failed(self._target, reason)
        return self._backoff.fail()


PATH = "/api/v1/report"
_ASK = {"Accept": "application/msgpack", "Accept-Encoding": "zstd"}
_OF_AGENTS = frozenset({"unsupported_version", "too_large", "too_many_processes", "duplicate_gpu"})
"""Codes of refused reports whose messages contain nothing of the answer."""
_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}


class PullSource:
    """A listening agent, over one persistent connection."""

    def __init__(self, target: Target, settings: PullSettings) -> None:
        """Raises UsageError if `ca_file` cannot be read."""
        trust = None if settings.ca_file is None else trust_from(settings.ca_file)
        self._target = target
        self._url = target.url(settings.port, PATH)
        self._interval = settings.interval
        self._token_file = target.token_file or settings.token_file
        self._headers: dict[str, str] | None = None
        self._fetcher = Fetcher(
            deadline=settings.deadline, bytes_at_most=MAX_BODY_BYTES, trust=trust, guard=AddressGuard.of(target)
        )

    async def read(self, now: float) -> FetchedReport:
        if self._headers is None:
            self._headers = _ASK if self._token_file is None else _ASK | _authorize(self._token_file)
        headers = self._headers
        try:
            answer = await self._fetcher.get(self._url, headers)
        except TokenRefused as error:
            # A new token in the file applies without a restart of the hub.
            self._headers = None
            copy = f"Copy the agent's token file to {self._token_file} again."
            none = "Set pull.token_file to a copy of the agent's token file."
            raise Refused(error.message, none if self._token_file is None else copy) from error
        envelope = _open(answer, self._url)
        if envelope.simulated:
            raise Temporary(f"{self._url} reports a simulated host.", "Start its agent without --simulate.")
        return FetchedReport(
            _name(envelope, self._target, self._interval), read_sent_at(answer.headers.get("gpudeck-sent-at", ""))
        )

    async def close(self) -> None:
        await self._fetcher.close()


def _authorize(token_file: str) -> dict[str, str]:
    try:
        token = read_token(Path(token_file).expanduser(), "Copy it from the host.")
    except UsageError as error:
        raise Refused(error.message, error.hint) from error
    except RuntimeError as error:
        raise Refused(
            f"the token file {token_file} cannot be found: there is no such home.", "Give its path."
        ) from error
    return {"Authorization": f"Bearer {token}"}


def _open(answer: HttpResponse, url: str) -> Envelope:
    """The envelope in an answer. Its first bytes show whether it is compressed: a proxy may have decompressed it."""
    encoding = next((name for magic, name in _MAGIC.items() if answer.body.startswith(magic)), "")
    try:
        return decode(answer.body, answer.headers.get("content-type", ""), encoding)
    except ReportRefused as refusal:
        log_beginning(url, answer.body)
        if refusal.code in _OF_AGENTS:
            message = f"{url} answers a report that cannot be taken: {refusal.message}."
            raise Temporary(message, refusal.hint) from refusal
        kind = content_kind(answer.headers.get("content-type", "")) or "of no known kind"
        raise Temporary(
            f"{url} answers something that is no report ({kind}).", "Does an agent listen there?"
        ) from refusal


def _name(envelope: Envelope, target: Target, interval: float) -> Envelope:
    """The report under the target's configured name and labels. If only an address is configured, the host keeps the
    name that its agent reports."""
    report = envelope.report
    if target.labels:
        report = msgspec.structs.replace(report, labels=report.labels | target.labels)
    return msgspec.structs.replace(
        envelope,
        host=target.name if target.is_named else envelope.host,
        report=report,
        interval_seconds=max(envelope.interval_seconds, interval),
    )
