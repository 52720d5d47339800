"""Out of the hub: once a second what changed becomes one delta, encoded and compressed once for all viewers."""

import asyncio
import gzip
import secrets
import threading
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, TypeVarTuple, cast

import msgspec

from gpudeck.hub.fleet import Fleet
from gpudeck.hub.host import ENCODED_AT_ONCE, HostState, encode_hosts
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE, Steps, finish, run_in_steps
from gpudeck.model.event import Event as Happening
from gpudeck.model.view import Fleet as FleetView

KEPT_DELTAS = 30
"""How many ticks a viewer may miss and still resume without a snapshot; one that falls further behind is cut off."""

MOST_HAPPENINGS = 200
"""In one tick: a viewer who wants to know of all asks for them."""

MOST_ANSWERS = 64
"""Kept for one sight until the next tick."""

GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"

_encoder = msgspec.json.Encoder()

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Place = tuple[str, int, int]
"""The id of a host, its row, and the first of its GPUs' rows."""


class PublishedEvent:
    """One server-sent event.

    `deflated` ends on a full flush: it refers to nothing before it, so the same bytes fit into every viewer's gzip
    stream, wherever that stream stands.
    """

    def __init__(self, kind: str, number: int, epoch: str, data: bytes) -> None:
        self.plain = b"event: %b\nid: %b-%d\ndata: %b\n\n" % (kind.encode(), epoch.encode(), number, data)
        self._lock = threading.Lock()
        self._deflated: bytes | None = None

    def deflated(self) -> bytes:
        """Blocks while it compresses; whoever comes second waits for the first and shares its work."""
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
        self._events: deque[PublishedEvent] = deque()
        self._wake = asyncio.Event()
        self.is_open = True

    def put(self, event: PublishedEvent) -> None:
        self._events.append(event)
        if len(self._events) > KEPT_DELTAS:
            self.close()
        self._wake.set()

    def close(self) -> None:
        """End this stream after the event now being sent."""
        self.is_open = False
        self._wake.set()

    async def next(self) -> PublishedEvent | None:
        """The next event; None when the stream is over."""
        while self.is_open and not self._events:
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft() if self.is_open else None


class _Channel:
    """What viewers with one sight get: the deltas still kept for those who come back, and the fleet as it is now."""

    def __init__(self) -> None:
        self.deltas: deque[PublishedEvent] = deque(maxlen=KEPT_DELTAS)
        self.viewers: set[Viewer] = set()
        self.document: bytes | None = None
        self.packed: asyncio.Task[bytes] | None = None
        self.snapshot: PublishedEvent | None = None
        self.view: asyncio.Task[FleetView] | None = None
        self.answers: dict[tuple[Hashable, ...], asyncio.Task[Any]] = {}
        self.idle_ticks = 0


class Stream:
    """The published fleet and everybody who watches it. Call `tick` once a second from the loop that owns the fleet.

    Viewers who may see the same share the same bytes. Those who see everything always have their channel; another sight
    gets one when somebody with it comes, and loses it when nobody with it has been there for a while.
    """

    def __init__(self, fleet: Fleet, clock: Clock, *, demo: bool = False) -> None:
        self.fleet = fleet
        self.demo = demo
        self.time = clock()
        self._clock = clock
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._channels: dict[Sight, _Channel] = {EVERYTHING: _Channel()}
        self._problems = fleet.problems
        self._alerts = fleet.alerts
        self._happenings: list[Happening] = []
        self._reservation_changes = self._told_reservation_changes = 0

    def tick(self) -> PublishedEvent:
        """Publish what changed since the last tick and hand it to every viewer."""
        return finish(self.tick_in_steps())

    def tick_in_steps(self) -> Steps[PublishedEvent]:
        """The same, one step a host: what changes meanwhile is in this delta or in the next."""
        self.time, epoch = self._clock(), self._epoch
        yield from self.fleet.age_in_steps(self.time)
        changed, removed = self.fleet.take_changes()
        parts: dict[Sight, tuple[list[bytes], list[bytes]]] = {sight: ([], []) for sight in self._channels}
        rows: list[Place] = []
        for start in range(0, len(changed), ENCODED_AT_ONCE):
            self._encode_whole(changed[start : start + ENCODED_AT_ONCE])
            for host in changed[start : start + ENCODED_AT_ONCE]:
                # Of one that left meanwhile the next delta says so.
                if self.fleet.hosts.get(host.id) is host:
                    rows += _encode_changes(host, parts)
                yield
        facts = self._collect_facts(removed, rows)
        yield
        if epoch != self._epoch:
            # Meanwhile everybody got a snapshot of another fleet.
            parts = {}
        self._number += 1
        for sight, channel in list(self._channels.items()):
            # Who came meanwhile with another sight has a snapshot that is newer than these.
            hosts, changes = parts.get(sight, ([], []))
            self._publish(channel, _join(facts, hosts=hosts, changes=changes))
            if channel.idle_ticks > KEPT_DELTAS and sight is not EVERYTHING:
                del self._channels[sight]
        self.fleet.table.recycle()
        return self._channels[EVERYTHING].deltas[-1]

    def announce(self, happening: Happening) -> None:
        """Tell every viewer, with the next tick, of something that happened."""
        if len(self._happenings) < MOST_HAPPENINGS:
            self._happenings.append(happening)

    def note_reservations(self, changes: int) -> None:
        """How often reservations have changed: viewers are told, with the next tick, when that is another number."""
        self._reservation_changes = changes

    def document(self, sight: Sight = EVERYTHING) -> bytes:
        """The whole fleet as JSON: kept until the next tick, so many who ask in the same second share it.

        It may be a little newer than the last delta; the next delta then repeats what it has already: deltas hold
        values, not differences, and applying one twice does no harm.
        """
        channel = self._open(sight)
        if channel.document is None:
            channel.document = self.fleet.encoded(self.time, demo=self.demo, sight=sight)
        return channel.document

    async def fresh_document(self, sight: Sight = EVERYTHING) -> bytes:
        """As `document`, but others are served while it is made: each host is shown as it is in its turn."""
        channel, number = self._open(sight), self._number
        if channel.document is not None:
            return channel.document
        document = await run_in_steps(self.fleet.encode_in_steps(self.time, demo=self.demo, sight=sight))
        if number == self._number:
            # One that was begun before a tick is older than the deltas that follow it.
            channel.document = document
        return document

    async def packed_document(self, sight: Sight = EVERYTHING) -> bytes:
        """The same in gzip: packed once for all, in a thread."""
        document, channel = await self.fresh_document(sight), self._open(sight)
        if channel.packed is None:
            channel.packed = asyncio.create_task(asyncio.to_thread(gzip.compress, document, 1))
        # Whoever goes away while it is being made must not take it from the others.
        return await asyncio.shield(channel.packed)

    async def fresh_view(self, sight: Sight = EVERYTHING) -> FleetView:
        """The whole fleet as structs, kept and shared as documents are: nobody may change them."""
        channel = self._open(sight)
        if channel.view is None:
            channel.view = asyncio.create_task(self._make_view(sight))
        # Whoever goes away while it is being made must not take it from the others.
        return await asyncio.shield(channel.view)

    async def answer(self, sight: Sight, make: Callable[[FleetView, *Arguments], T], *arguments: *Arguments) -> T:
        """What `make` makes of the fleet, in a thread: once for all who ask for the same with the same sight until the
        next tick. `arguments` are hashable."""
        answers, question = self._open(sight).answers, cast("tuple[Hashable, ...]", (make, *arguments))
        if question not in answers:
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            answers[question] = asyncio.create_task(self._make_answer(sight, make, *arguments))
        return cast("T", await asyncio.shield(answers[question]))

    def tick_age(self) -> float:
        """Seconds since the fleet was last published."""
        return max(0.0, self._clock() - self.time)

    def snapshot(self, sight: Sight = EVERYTHING) -> PublishedEvent:
        channel = self._open(sight)
        if channel.snapshot is None:
            rows = _encoder.encode([_place(host) for host in self.fleet.ordered()])
            # One that was made in steps may lack a host that has come since, or have others' rows.
            channel.document = self.fleet.encoded(self.time, demo=self.demo, sight=sight)
            document = b"".join((channel.document[:-1], b',"rows":', rows, b"}"))
            channel.snapshot = PublishedEvent("snapshot", self._number, self._epoch, document)
        return channel.snapshot

    def watch(self, last_event_id: str = "", sight: Sight = EVERYTHING) -> Viewer:
        """Open a stream: the deltas missed since `last_event_id` where they are still kept, else a snapshot first."""
        viewer = Viewer()
        channel = self._open(sight)
        missed = self._missed_since(last_event_id, channel)
        for event in [self.snapshot(sight)] if missed is None else missed:
            viewer.put(event)
        channel.viewers.add(viewer)
        return viewer

    def unwatch(self, viewer: Viewer) -> None:
        for channel in self._channels.values():
            channel.viewers.discard(viewer)

    @property
    def viewers(self) -> int:
        return sum(len(channel.viewers) for channel in self._channels.values())

    def close(self) -> None:
        """End every stream: the hub is stopping."""
        for channel in self._channels.values():
            for viewer in channel.viewers:
                viewer.close()

    def _open(self, sight: Sight) -> _Channel:
        return self._channels.setdefault(sight, _Channel())

    async def _prepare(self, make: Callable[[HostState], object]) -> None:
        """Have each host make what it keeps, while others are served."""
        for at, host in enumerate(self.fleet.ordered(), 1):
            make(host)
            if at % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _make_view(self, sight: Sight) -> FleetView:
        if sight != EVERYTHING:
            return await asyncio.to_thread(sight.fleet, await self.fresh_view())
        await self._prepare(HostState.kept_view)
        return self.fleet.view(self.time, demo=self.demo)

    async def _make_answer(self, sight: Sight, make: Callable[[FleetView, *Arguments], T], *arguments: *Arguments) -> T:
        return await asyncio.to_thread(make, await self.fresh_view(sight), *arguments)

    def _publish(self, channel: _Channel, data: bytes) -> None:
        event = PublishedEvent("delta", self._number, self._epoch, data)
        channel.document = channel.packed = channel.snapshot = channel.view = None
        channel.answers = {}
        channel.idle_ticks = 0 if channel.viewers else channel.idle_ticks + 1
        channel.deltas.append(event)
        for viewer in channel.viewers:
            viewer.put(event)

    def _collect_facts(self, removed: list[str], rows: list[Place]) -> bytes:
        """What a delta says beside the changes of hosts."""
        delta: dict[str, Any] = {"time": self.time, "totals": self.fleet.totals()}
        if self.fleet.problems != self._problems:
            delta["problems"] = self._problems = self.fleet.problems
        if self.fleet.alerts is not self._alerts:
            delta["alerts"] = self._alerts = self.fleet.alerts
        if self._reservation_changes != self._told_reservation_changes:
            delta["reservations"] = self._told_reservation_changes = self._reservation_changes
        happenings, self._happenings = self._happenings, []
        parts = {"removed": removed, "rows": rows, "events": happenings}
        delta |= {name: part for name, part in parts.items() if part}
        return _encoder.encode(delta | self.fleet.table.take_numbers())

    def _encode_whole(self, hosts: list[HostState]) -> None:
        """Those that viewers do not know yet: together takes half the time."""
        table = self.fleet.table
        new = [host for host in hosts if host.row >= 0 and not table.hosts.is_published[host.row]]
        for sight in self._channels if new else ():
            encode_hosts(table, new, sight)

    def _missed_since(self, last_event_id: str, channel: _Channel) -> list[PublishedEvent] | None:
        epoch, _, number = last_event_id.partition("-")
        if epoch != self._epoch or not number.isascii() or not number.isdigit() or len(number) > 15:
            return None
        behind = self._number - int(number)
        if not 0 <= behind <= len(channel.deltas):
            return None
        return list(channel.deltas)[len(channel.deltas) - behind :]


def _place(host: HostState) -> Place:
    return host.id, host.row, host.rows.start


def _encode_changes(host: HostState, parts: Mapping[Sight, tuple[list[bytes], list[bytes]]]) -> list[Place]:
    """Put the host whole, or what changed of it other than numbers, into the parts of each sight. Returns its place
    where it is whole."""
    patch = host.take_changes()
    for sight, (hosts, changes) in parts.items():
        if patch is None:
            hosts.append(host.encoded(sight))
        elif len(patch) > 1:
            changes.append(_encoder.encode(_restrict(patch, sight)))
    return [_place(host)] if patch is None else []


def _restrict(patch: dict[str, Any], sight: Sight) -> dict[str, Any]:
    """What changed of a host, as viewers with this sight may see it."""
    if sight.commands == "all" or "gpus" not in patch:
        return patch
    gpus = [
        {**gpu, "processes": sight.processes(gpu["processes"])} if gpu.get("processes") else gpu
        for gpu in patch["gpus"]
    ]
    return {**patch, "gpus": gpus}


def _join(facts: bytes, **lists: list[bytes]) -> bytes:
    """One JSON object of `facts` and of lists whose items are JSON already; empty ones are left out."""
    parts = [facts[:-1]]
    for name, items in lists.items():
        if items:
            parts += (b',"', name.encode(), b'":[', b",".join(items), b"]")
    return b"".join([*parts, b"}"])
