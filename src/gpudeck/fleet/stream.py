"""The live stream: once a second, all changes become one delta, encoded and compressed once for all viewers."""

import asyncio
import secrets
import threading
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, TypeVarTuple, cast

import msgspec

from gpudeck.fleet.host import ENCODED_AT_ONCE, HostState, encode_hosts
from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.overview import encode_short, encode_short_patch, encode_summaries
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import ChangedNumbers
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE, Steps, finish, run_in_steps
from gpudeck.model.event import Event
from gpudeck.model.view import Fleet

KEPT_DELTAS = 30
"""The number of missed ticks after which a viewer needs a snapshot; a viewer further behind is disconnected."""

KEPT_SUBSCRIBED = 5
"""The same for viewers of some hosts: their snapshots are small, and they request other hosts whenever they scroll."""

KEPT_BYTES = 32 * 2**20
"""The most bytes kept for resuming: while a large fleet connects, a delta has megabytes."""

MAX_EVENTS = 200
"""The most events in one tick; a viewer that needs all of them requests them."""

MAX_ANSWERS = 64
"""The most cached answers per visibility until the next tick."""

GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

_encoder = msgspec.json.Encoder()

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
HostIds = frozenset[str]
Hosts = HostIds | Literal["overview"] | None


class Subscription(NamedTuple):
    """What a viewer gets: the hosts with these ids (including later ones), all hosts (None), or all in short form (see
    fleet.overview), with what its visibility allows. Totals, problems, alerts, events and changed reservations are
    always included."""

    visibility: Visibility = EVERYTHING
    hosts: Hosts = None

    @property
    def ids(self) -> Sequence[str | None] | HostIds:
        """The ids of the hosts; None alone means all."""
        return self.hosts if isinstance(self.hosts, frozenset) else (None,)


WHOLE = Subscription()
OVERVIEW = Subscription(hosts="overview")


class PublishedEvent:
    """One server-sent event. `deflated` ends with a full flush, so its bytes fit into every viewer's gzip stream."""

    def __init__(self, kind: str, number: int, epoch: str, data: bytes) -> None:
        self.id = f"{epoch}-{number}"
        self.plain = b"event: %b\nid: %b\ndata: %b\n\n" % (kind.encode(), self.id.encode(), data)
        self._lock = threading.Lock()
        self._deflated: bytes | None = None

    def deflated(self) -> bytes:
        """Blocks while compressing; a second caller waits for the first and shares the result."""
        with self._lock:
            if self._deflated is None:
                self._deflated = deflate(self.plain)
            return self._deflated


def deflate(plain: bytes) -> bytes:
    packer = zlib.compressobj(level=1, wbits=-15)
    return packer.compress(plain) + packer.flush(zlib.Z_FULL_FLUSH)


class Viewer:
    """One open stream: the events still to be sent to it."""

    def __init__(self) -> None:
        self.events: deque[PublishedEvent] = deque()
        self._wake = asyncio.Event()
        self.is_open = True

    def put(self, event: PublishedEvent) -> None:
        self.events.append(event)
        if len(self.events) > KEPT_DELTAS:
            self.close()
        self._wake.set()

    def close(self) -> None:
        """End this stream after the event being sent."""
        self.is_open = False
        self._wake.set()

    async def next(self) -> PublishedEvent | None:
        while self.is_open and not self.events:
            self._wake.clear()
            await self._wake.wait()
        return self.events.popleft() if self.is_open else None


class SharedParts:
    """An answer that is being made: concurrent requests for it share its parts."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._made: list[bytes] = []
        self._error: Exception | None = None
        self.size = 0

    def get(self, number: int) -> tuple[bytes | None, bool]:
        """That part, or None after the last one; and whether this call made it."""
        if number < len(self._made):
            return self._made[number], False
        if self._error is not None:
            raise self._error
        try:
            part = next(self._parts, None)
        except Exception as error:
            # Without it, the other readers would take the parts made so far for the whole answer.
            self._error = error
            raise
        if part is not None:
            self._made.append(part)
            self.size += len(part)
        return part, True


class _KeptAnswers:
    """The answers made since the last tick for one visibility: each is made once for all requests."""

    def __init__(self) -> None:
        self.parts: dict[Hashable, SharedParts] = {}
        self.view: asyncio.Task[Fleet] | None = None
        self.answers: dict[tuple[Hashable, ...], asyncio.Task[Any]] = {}


class _Channel:
    """What viewers with one subscription get: deltas to resume from, and snapshots. An `epoch` of another channel
    forces a snapshot."""

    def __init__(self, subscription: Subscription) -> None:
        self.visibility, hosts = subscription
        self.is_overview = hosts == "overview"
        self.epoch = secrets.token_hex(4)
        kept = KEPT_SUBSCRIBED if isinstance(hosts, frozenset) else KEPT_DELTAS
        self.deltas: deque[PublishedEvent] = deque(maxlen=kept)
        self.hosts, self.rows, self.changes = list[bytes](), list[bytes](), list[bytes]()
        self.viewers: set[Viewer] = set()
        self.snapshot: PublishedEvent | None = None
        self.making: asyncio.Task[PublishedEvent] | None = None
        self.idle_ticks = 0

    def keep(self) -> None:
        self.idle_ticks = 0

    def take_delta(self, facts: bytes, numbers: Sequence[bytes]) -> bytes:
        parts = [facts[:-1]]
        for member in numbers:
            parts += (b",", member)
        for name, items in ((b"hosts", self.hosts), (b"rows", self.rows), (b"changes", self.changes)):
            if items:
                parts += (b',"', name, b'":[', b",".join(items), b"]")
        self.hosts, self.rows, self.changes = [], [], []
        return b"".join([*parts, b"}"])


class Stream(FleetObserver):
    """The published fleet and its viewers. Viewers with the same subscription share the same bytes. A channel exists
    from its first viewer until some time after its last: nothing is encoded without viewers."""

    name = "stream"

    def __init__(self, fleet: FleetState, clock: Clock) -> None:
        self.fleet = fleet
        self.time = clock()
        self._clock = clock
        self._number = 0
        self.channels: dict[Subscription, _Channel] = {}
        self._answers: dict[Visibility, _KeptAnswers] = {}
        self._following: dict[str | None, set[_Channel]] = {}
        """The channels of each host, by id; under None those with all hosts."""
        self._problems = fleet.problems
        self._alerts = fleet.alerts
        self._events: list[Event] = []
        self._reservation_changes = self._sent_reservation_changes = 0

    def tick(self) -> PublishedEvent:
        """Publish the changes since the last tick to every viewer. Returns the delta of all hosts, even without
        viewers."""
        self._follow(WHOLE).keep()
        finish(self.publish_in_steps())
        return self.channels[WHOLE].deltas[-1]

    def publish_in_steps(self) -> Steps[None]:
        """`tick`, one step per host: changes made meanwhile are in this delta or in the next."""
        self.time = self._clock()
        yield from self.fleet.age_in_steps(self.time)
        table, (changed, removed) = self.fleet.table, self.fleet.take_changes()
        for start in range(0, len(changed), ENCODED_AT_ONCE):
            some = changed[start : start + ENCODED_AT_ONCE]
            for host in some:
                # The next delta removes a host that left meanwhile.
                if self.fleet.hosts.get(host.id) is host:
                    self._put_changes(host)
                yield
        facts, numbers = self._collect_facts(), table.take_numbers()
        made: dict[Hosts, list[bytes]] = {}
        for _, hosts in list(self.channels):
            if hosts not in made:
                left = [host_id for host_id in removed if host_id in hosts] if isinstance(hosts, frozenset) else removed
                parts = yield from self._encode_numbers(numbers, hosts)
                made[hosts] = [b'"removed":' + _encoder.encode(left), *parts] if left else parts
                yield
        self._number += 1
        self._answers = {}
        for subscription, channel in list(self.channels.items()):
            # A later snapshot contains these numbers.
            self._publish(channel, channel.take_delta(facts, made.get(subscription.hosts, ())))
            if channel.idle_ticks > (channel.deltas.maxlen or 0):
                self._drop(subscription)
        if not self.fleet.has_postponed:
            table.recycle()

    def announce(self, event: Event) -> None:
        """Send an event to every viewer with the next tick."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)

    def note_reservations(self, changes: int) -> None:
        """Set the version of the reservations. A changed one is sent with the next tick."""
        self._reservation_changes = changes

    def document(self, visibility: Visibility = EVERYTHING) -> bytes:
        """The whole fleet as JSON. It may be newer than the last delta, so the next one repeats some of it: deltas
        contain values, not differences, and applying one twice is harmless."""
        return self.fleet.encoded(self.time, visibility=visibility)

    def kept_parts(self, visibility: Visibility = EVERYTHING) -> dict[Hashable, SharedParts]:
        """Answers with this visibility made since the last tick, to share with others."""
        return self._kept(visibility).parts

    async def fresh_view(self, visibility: Visibility = EVERYTHING) -> Fleet:
        """The whole fleet as structs, cached and shared like documents: read-only."""
        kept = self._kept(visibility)
        if kept.view is None:
            kept.view = asyncio.create_task(self._make_view(visibility))
        # A cancelled caller must not cancel the work that others wait for.
        return await asyncio.shield(kept.view)

    async def answer(self, visibility: Visibility, make: Callable[[Fleet, *Arguments], T], *arguments: *Arguments) -> T:
        """The result of `make` on the fleet, run in a thread, shared by all requests with the same arguments and
        visibility until the next tick. `arguments` must be hashable."""
        answers, question = self._kept(visibility).answers, cast("tuple[Hashable, ...]", (make, *arguments))
        if question not in answers:
            if len(answers) >= MAX_ANSWERS:
                answers.clear()
            answers[question] = asyncio.create_task(self._make_answer(visibility, make, *arguments))
        return cast("T", await asyncio.shield(answers[question]))

    def tick_age(self) -> float:
        return max(0.0, self._clock() - self.time)

    def snapshot(self, visibility: Visibility = EVERYTHING, hosts: Hosts = None) -> PublishedEvent:
        return finish(self._make_snapshot(Subscription(visibility, hosts)))

    def watch(self, last_event_id: str = "", visibility: Visibility = EVERYTHING, hosts: Hosts = None) -> Viewer:
        """Open a stream: the deltas missed since `last_event_id` if they are still kept, else a snapshot first."""
        channel = self._follow(Subscription(visibility, hosts))
        missed = self._missed_since(last_event_id, channel)
        return self._admit(channel, [self.snapshot(visibility, hosts)] if missed is None else missed)

    async def watch_in_steps(
        self, last_event_id: str = "", visibility: Visibility = EVERYTHING, hosts: Hosts = None
    ) -> Viewer:
        """`watch`, yielding to other tasks while a snapshot is made. Concurrent requests share one snapshot."""
        subscription = Subscription(visibility, hosts)
        channel = self._follow(subscription)
        missed = self._missed_since(last_event_id, channel)
        while missed is None:
            if channel.making is None:
                channel.making = asyncio.create_task(run_in_steps(self._make_snapshot(subscription)))
            making = channel.making
            try:
                snapshot = await asyncio.shield(making)
            finally:
                if making.done() and channel.making is making:
                    channel.making = None
            # The channel may have been dropped meanwhile, because it had no viewers yet.
            channel = self._follow(subscription)
            since = self._missed_since(snapshot.id, channel)
            missed = None if since is None else [snapshot, *since]
        return self._admit(channel, missed)

    def _admit(self, channel: _Channel, events: Sequence[PublishedEvent]) -> Viewer:
        viewer = Viewer()
        for event in events:
            viewer.put(event)
        channel.viewers.add(viewer)
        return viewer

    def _make_snapshot(self, subscription: Subscription) -> Steps[PublishedEvent]:
        """One step for some hosts. Changes made meanwhile are in the deltas after its number, and may be in it too."""
        channel, number, (visibility, hosts) = self._follow(subscription), self._number, subscription
        if channel.snapshot is not None:
            return channel.snapshot
        facts = _encoder.encode(self.fleet.facts(self.time))[:-1]
        shown = self._find_hosts(hosts) if isinstance(hosts, frozenset) else self.fleet.ordered()
        items, rows = list[bytes](), list[bytes]()
        for start in range(0, len(shown), ENCODED_AT_ONCE):
            if start:
                yield
            there = [one for one in shown[start : start + ENCODED_AT_ONCE] if self.fleet.hosts.get(one.id) is one]
            if channel.is_overview:
                items += encode_short(self.fleet.table, there)
            else:
                items += encode_hosts(self.fleet.table, there, visibility)
            rows += map(_encode_place, there)
            self.fleet.table.note_shown(there)
        yield
        document = b"".join((facts, b',"hosts":[', b",".join(items), b'],"rows":[', b",".join(rows), b"]}"))
        event = PublishedEvent("snapshot", number, channel.epoch, document)
        if number == self._number:
            channel.snapshot = event
        return event

    def unwatch(self, viewer: Viewer) -> None:
        for channel in self.channels.values():
            channel.viewers.discard(viewer)

    @property
    def viewers(self) -> int:
        return sum(len(channel.viewers) for channel in self.channels.values())

    def close(self) -> None:
        for channel in self.channels.values():
            for viewer in channel.viewers:
                viewer.close()

    def _kept(self, visibility: Visibility) -> _KeptAnswers:
        return self._answers.setdefault(visibility, _KeptAnswers())

    def _follow(self, subscription: Subscription) -> _Channel:
        if subscription.hosts == "overview":
            # This part is the same for every visibility.
            subscription = OVERVIEW
        channel = self.channels.get(subscription)
        if channel is None:
            channel = self.channels[subscription] = _Channel(subscription)
            for host_id in subscription.ids:
                self._following.setdefault(host_id, set()).add(channel)
        return channel

    def _drop(self, subscription: Subscription) -> None:
        channel = self.channels.pop(subscription)
        for host_id in subscription.ids:
            self._following[host_id].discard(channel)
            if not self._following[host_id]:
                del self._following[host_id]

    def _encode_numbers(self, numbers: ChangedNumbers, hosts: Hosts) -> Steps[list[bytes]]:
        if hosts == "overview":
            parts = [b'"summaries":' + encode_summaries(self.fleet.table, self._number)]
            return parts + numbers.encode_memory_totals()
        return (yield from numbers.encode_in_steps(None if hosts is None else self._find_hosts(hosts)))

    def _find_hosts(self, hosts: HostIds) -> list[HostState]:
        there = [host for host_id in hosts if (host := self.fleet.hosts.get(host_id)) is not None]
        return sorted(there, key=attrgetter("name", "id"))

    async def _prepare(self, make: Callable[[HostState], object]) -> None:
        for at, host in enumerate(self.fleet.ordered(), 1):
            make(host)
            if at % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _make_view(self, visibility: Visibility) -> Fleet:
        if visibility != EVERYTHING:
            return await asyncio.to_thread(visibility.fleet, await self.fresh_view())
        await self._prepare(HostState.cached_view)
        return self.fleet.view(self.time)

    async def _make_answer(
        self, visibility: Visibility, make: Callable[[Fleet, *Arguments], T], *arguments: *Arguments
    ) -> T:
        return await asyncio.to_thread(make, await self.fresh_view(visibility), *arguments)

    def _publish(self, channel: _Channel, data: bytes) -> None:
        event = PublishedEvent("delta", self._number, channel.epoch, data)
        channel.snapshot = None
        channel.idle_ticks = 0 if channel.viewers else channel.idle_ticks + 1
        channel.deltas.append(event)
        while len(channel.deltas) > 1 and sum(len(delta.plain) for delta in channel.deltas) > KEPT_BYTES:
            channel.deltas.popleft()
        for viewer in channel.viewers:
            viewer.put(event)

    def _collect_facts(self) -> bytes:
        delta: dict[str, Any] = {"time": self.time, "totals": self.fleet.totals()}
        if self.fleet.problems != self._problems:
            delta["problems"] = self._problems = self.fleet.problems
        if self.fleet.alerts is not self._alerts:
            delta["alerts"] = self._alerts = self.fleet.alerts
            delta["alert_counts"] = self.fleet.alert_counts
        if self._reservation_changes != self._sent_reservation_changes:
            delta["reservations"] = self._sent_reservation_changes = self._reservation_changes
        if self._events:
            delta["events"], self._events = self._events, []
        return _encoder.encode(delta)

    def _put_changes(self, host: HostState) -> None:
        """Add the host, or its changes other than numbers, to the next delta of each of its channels."""
        patch = host.take_changes()
        if patch is not None and len(patch) == 1:
            return
        encoded: dict[Visibility | None, bytes | None] = {}
        channels = self._channels_of(host)
        for channel in channels:
            key = None if channel.is_overview else channel.visibility
            if key not in encoded:
                encoded[key] = self._encode_for(key, host, patch)
            if (whole_or_patch := encoded[key]) is None:
                continue
            (channel.hosts if patch is None else channel.changes).append(whole_or_patch)
            if patch is None:
                channel.rows.append(_encode_place(host))
        if patch is None and channels:
            self.fleet.table.note_shown([host])

    def _channels_of(self, host: HostState) -> tuple[_Channel, ...]:
        return (*self._following.get(None, ()), *self._following.get(host.id, ()))

    def _encode_for(self, visibility: Visibility | None, host: HostState, patch: dict[str, Any] | None) -> bytes | None:
        """Encode for viewers with this visibility, or for the overview (None); None: not sent."""
        if visibility is None:
            return encode_short(self.fleet.table, [host])[0] if patch is None else encode_short_patch(host, patch)
        if patch is None:
            return encode_hosts(self.fleet.table, [host], visibility)[0]
        return _encode_patch(patch, visibility)

    def _missed_since(self, last_event_id: str, channel: _Channel) -> list[PublishedEvent] | None:
        epoch, _, number = last_event_id.partition("-")
        if epoch != channel.epoch or not number.isascii() or not number.isdigit() or len(number) > 15:
            return None
        behind = self._number - int(number)
        if not 0 <= behind <= len(channel.deltas):
            return None
        return list(channel.deltas)[len(channel.deltas) - behind :]


def _encode_place(host: HostState) -> bytes:
    return _encoder.encode((host.id, host.row, host.rows.start))


def _encode_patch(patch: dict[str, Any], visibility: Visibility) -> bytes:
    if visibility.commands == "all" or "gpus" not in patch:
        return _encoder.encode(patch)
    gpus = [
        {**gpu, "processes": visibility.processes(gpu["processes"])} if gpu.get("processes") else gpu
        for gpu in patch["gpus"]
    ]
    return _encoder.encode({**patch, "gpus": gpus})
