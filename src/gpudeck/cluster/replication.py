"""Every report that a hub takes goes to all hubs of its cluster, which take it as if it had been sent to them.

Reports are published in batches and applied in the same order on every hub. The agent's own sequence decides what is
newer, so all hubs reach the same state (docs/decisions.md). Short reports refer to the last whole one, which a new hub
has not seen: so each host's state is published whole once a minute.
"""

import logging
import math
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import zstandard
from msgspec import Raw, Struct
from msgspec.structs import replace

from gpudeck.fleet.hub import Hub
from gpudeck.fleet.identity import TokenName
from gpudeck.fleet.state import ArrivedReport
from gpudeck.model.clock import SharedClock
from gpudeck.model.cpu_budget import LoopBudget
from gpudeck.model.errors import ReportRefused
from gpudeck.wire import Envelope, ShortReport

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""The format of messages. Incremented for a new field that matters: a hub reads the next format too, but none
beyond."""
WHOLE_SECONDS: Final = 60.0
"""How often the state of each host is published whole."""
MAX_BYTES: Final = 400_000
"""The limit for a message before compression: a NATS server accepts 1 MB."""
_MAX_PLAIN: Final = 16 * 1024 * 1024
_FORGET_SECONDS: Final = 3600.0
_QUICK_SECONDS: Final = 0.5
"""The time of the bus is not read from messages that took longer than this."""


class ForwardedReport(Struct, frozen=True, array_like=True):
    arrived_at: float
    via: str
    whole: Envelope | None = None
    short: ShortReport | None = None
    sent_at: float | None = None
    target: str | None = None
    only: str | None = None
    token: tuple[int, str] | None = None


class BusMessage(Struct, frozen=True, omit_defaults=True):
    """A message of a hub. `run` changes with each start of the hub, `number` counts its messages. `shared` has states
    that one hub determines for all, by name; `notices` are one-time notifications. `format` is 0 for hubs that do not
    send it."""

    hub: str
    run: str
    number: int
    sent_at: float
    reports: list[ForwardedReport] = []
    shared: dict[str, Raw] = {}
    notices: list[tuple[str, Raw]] = []
    format: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BusMessage).decode
_decode_whole = msgspec.msgpack.Decoder(Envelope).decode


class Replicator:
    """Publishes what this hub takes with `publish`, and takes what others publish. One event loop owns it. `use_shared`
    is called with states shared by another hub: its name, the name of the subject, and the encoded content."""

    def __init__(
        self,
        hub: Hub,
        name: str,
        run: str,
        publish: Callable[[bytes], None],
        use_shared: Callable[[str, str, Raw], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._name = name
        self._run = run
        self._publish = publish
        self._use_shared = use_shared
        self._now = hub.clock
        self._monotonic = monotonic
        self._number = 0
        self._sent: deque[tuple[int, float]] = deque(maxlen=600)
        """The messages of this run that have not come back: their numbers and times."""
        self._read_until: float | None = None
        """The publication time of the newest own message that has come back: everything before it has been read."""
        self.lag: float | None = None
        self._reports: list[ForwardedReport] = []
        self._size = 0
        self._notices: list[tuple[str, Raw]] = []
        self._is_whole_needed = False
        self._whole: dict[str, _KnownWhole] = {}
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()
        self.counters: Counter[str] = Counter()

    @property
    def silent_seconds(self) -> float:
        """The age of the newest own message that has come back; infinite before the first one."""
        return math.inf if self._read_until is None else self._monotonic() - self._read_until

    def forward_whole(self, is_needed: bool) -> None:
        """Publish no short reports: late reports are taken only if they are whole."""
        self._is_whole_needed = is_needed

    def reset_echo(self) -> None:
        """The hub was cut off: it is up to date when its next message comes back."""
        self._read_until, self.lag = None, None
        self._sent.clear()

    def forward(self, taken: ArrivedReport) -> None:
        envelope = taken.envelope
        token = None if taken.token is None else (taken.token.id, taken.token.name)
        rest = (taken.sent_at, taken.target, taken.only, token)
        if isinstance(envelope, ShortReport):
            whole = self._whole_again(envelope)
            self._add(ForwardedReport(taken.arrived_at, taken.via, whole, None if whole else envelope, *rest))
        else:
            self._know(envelope)
            self._add(ForwardedReport(taken.arrived_at, taken.via, envelope, None, *rest))

    def notify(self, name: str, content: Raw) -> None:
        """Notify all hubs once."""
        self._notices.append((name, content))

    def flush(self, shared: Mapping[str, Raw] | None = None, *, is_heartbeat: bool = False) -> None:
        if not (self._reports or self._notices or shared or is_heartbeat):
            return
        self._number += 1
        self._sent.append((self._number, self._monotonic()))
        reports, self._reports, self._size = self._reports, [], 0
        notices, self._notices = self._notices, []
        message = BusMessage(
            self._name, self._run, self._number, self._now(), reports, dict(shared or {}), notices, FORMAT
        )
        self.counters["forwarded"] += len(reports)
        self._publish(self._compressor.compress(_encode(message)))

    async def receive(self, body: bytes, at: float) -> None:
        """Handle a message of any hub from the bus, received at `at`. Raises if it cannot be read."""
        message = _decode(self._decompressor.decompress(body, max_output_size=_MAX_PLAIN))
        if message.run == self._run:
            self._note_returned(message.number, at)
            return
        if message.format > FORMAT + 1:
            self.counters["unreadable"] += 1
            return
        budget = LoopBudget()
        for report in message.reports:
            await budget.checkpoint()
            self._take(report, message)
        if message.hub != self._name:
            for name, content in (*message.shared.items(), *message.notices):
                self._use_shared(message.hub, name, content)

    def _take(self, report: ForwardedReport, message: BusMessage) -> None:
        envelope = report.whole or report.short
        if envelope is None:
            return
        try:
            is_new = self._apply(report, envelope)
        except ReportRefused as refusal:
            self.counters["refused"] += 1
            log.debug("a report of %s that %s took is not taken: %s", envelope.host, message.hub, refusal)
            return
        self.counters["received" if is_new else "duplicates"] += 1
        if is_new and isinstance(envelope, Envelope):
            self._know(envelope)

    def _apply(self, report: ForwardedReport, envelope: Envelope | ShortReport) -> bool:
        """Apply a report. A late short report is expanded to a whole one. Raises ReportRefused."""
        age = max(0.0, self._now() - report.arrived_at)
        token = None if report.token is None else TokenName(*report.token)
        rest = (report.via, report.arrived_at, report.sent_at, report.target, report.only, token)
        try:
            return self._hub.ingest.take_forwarded(ArrivedReport(envelope, *rest), age)
        except ReportRefused:
            whole = self._expand(envelope) if isinstance(envelope, ShortReport) else None
            if whole is None:
                raise
            return self._hub.ingest.take_forwarded(ArrivedReport(whole, *rest), age)

    def _note_returned(self, number: int, at: float) -> None:
        while self._sent and self._sent[0][0] <= number:
            last, sent = self._sent.popleft()
            if last == number:
                self._read_until, self.lag = sent, self._monotonic() - sent
                if isinstance(self._now, SharedClock) and self.lag < _QUICK_SECONDS:
                    self._now.adjust(at + self.lag / 2)

    def _add(self, report: ForwardedReport) -> None:
        self._reports.append(report)
        self._size += 400 if report.short is None else 100
        if report.short is not None:
            self._size += len(report.short.numbers)
        elif report.whole is not None:
            self._size += 4_000 * (1 + len(report.whole.report.gpus or ()))
        if self._size >= MAX_BYTES:
            self.flush()

    def _know(self, envelope: Envelope) -> None:
        key = envelope.host_id or envelope.host
        if not envelope.description:
            self._whole.pop(key, None)
            return
        packed = self._compressor.compress(_encode(envelope))
        self._whole[key] = _KnownWhole(envelope.description, packed, self._monotonic())

    def _whole_again(self, short: ShortReport) -> Envelope | None:
        """The report as a whole one, if the last whole one was published a minute ago."""
        known, now = self._whole.get(short.host_id or short.host), self._monotonic()
        if known is None or (now - known.at < WHOLE_SECONDS and not self._is_whole_needed):
            return None
        whole = self._expand(short)
        if whole is not None:
            known.at = now
        return whole

    def _expand(self, short: ShortReport) -> Envelope | None:
        known = self._whole.get(short.host_id or short.host)
        if known is None or known.description != short.description:
            return None
        return expand(short, _decode_whole(self._decompressor.decompress(known.packed, max_output_size=_MAX_PLAIN)))

    def forget(self) -> None:
        """Drop the state of hosts that was not published for an hour."""
        oldest = self._monotonic() - _FORGET_SECONDS
        self._whole = {key: known for key, known in self._whole.items() if known.at >= oldest}


class _KnownWhole(Struct):
    description: str
    packed: bytes
    at: float


def expand(short: ShortReport, whole: Envelope) -> Envelope:
    """The whole report for a short one; `whole` is the one that it refers to."""
    numbers = iter(struct.unpack(f"<{len(short.numbers) // 8}d", short.numbers))
    report = whole.report
    metrics = {name: next(numbers) for name in report.metrics}
    gpus = [replace(gpu, metrics={name: next(numbers) for name in gpu.metrics}) for gpu in report.gpus or ()]
    gpus = [replace(gpu, idle_seconds=_known(next(numbers))) for gpu in gpus]
    gpus = [
        replace(
            gpu,
            processes=gpu.processes
            and [
                replace(one, memory_used_bytes=_whole_number(next(numbers)), utilization_percent=_known(next(numbers)))
                for one in gpu.processes
            ],
        )
        for gpu in gpus
    ]
    disks = [replace(disk, used_bytes=int(next(numbers))) for disk in report.disks]
    return replace(
        whole,
        sequence=short.sequence,
        collected_at=short.collected_at,
        interval_seconds=short.interval_seconds,
        agent_version=short.agent_version,
        report=replace(report, metrics=metrics, gpus=None if report.gpus is None else gpus, disks=disks),
    )


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _whole_number(number: float) -> int | None:
    return None if math.isnan(number) else int(number)
