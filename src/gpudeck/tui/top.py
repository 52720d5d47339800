"""The state of top, and the action of each key. Independent of the terminal: keys are words, renderer.py draws the
screen.

The user can end their own processes on this machine. Top may show them seconds late: before a signal is sent, the start
time and the owner are checked through a pidfd, so that no signal reaches another process with the same pid.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from msgspec import Struct

from gpudeck.client.live_fleet import LiveFleet
from gpudeck.collectors.owners import find_user_name
from gpudeck.collectors.proc import Proc
from gpudeck.model.errors import GpudeckError
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess, Totals
from gpudeck.tui.details import Sparklines
from gpudeck.tui.feed import FeedLost, Update
from gpudeck.tui.table_views import (
    GPUS,
    GROUPS,
    PROCESSES,
    TABLES,
    Listing,
    SortOrder,
    TableRow,
    TableView,
    make_rows,
)
from gpudeck.views.filter import choose_words, fits_gpu, forget_states, parse_query

_NOTICE_SECONDS = 6.0
_SORT_KEYS = {"P": "utilization", "M": "memory", "T": "time", "N": "host", "U": "user"}


class Prompt(Struct):
    """A line that is being typed: a filter or a search. `before` is the filter to return to."""

    kind: str
    text: str
    before: str


class Top:
    """The whole state: `take` updates, `press` keys, then draw. `leave` ends top; it does not block."""

    def __init__(
        self, place: str, leave: Callable[[], None], *, words: str = "", own_id: str = "", is_local: bool = False
    ) -> None:
        self.place = place
        self._live = LiveFleet()
        self.trails = Sparklines()
        self.listing = Listing()
        self.table: TableView = GPUS
        self.orders = {name: SortOrder(next(iter(table.sorts))) for name, table in TABLES.items()}
        self.grouping = GROUPS[0]
        self.words = words
        self.unclear: tuple[str, ...] = ()
        self.sought = ""
        self.detail: tuple[str, str | None] | None = None
        """The id of the host in detail view, and the UUID of one of its GPUs."""
        self.prompt: Prompt | None = None
        self.ending: ProcessToEnd | None = None
        """The process that is ended if the next key confirms it."""
        self.has_help = False
        self.lost: FeedLost | None = None
        self.lost_at = 0.0
        self.hosts: Sequence[Host] = ()
        """The matching hosts with their matching GPUs."""
        self.totals: Totals = self.fleet.totals
        self.leave = leave
        self._own_id = own_id
        self._is_local = is_local
        self._notice = ""
        self._notice_until = 0.0
        self._updated_at = time.monotonic()
        self._stale: Fleet | None = None

    def shown_table(self) -> TableView:
        """The page of a GPU or host lists processes."""
        return PROCESSES if self.detail is not None else self.table

    def shown_order(self) -> SortOrder:
        return self.orders[self.shown_table().name]

    @property
    def fleet(self) -> Fleet:
        """The live fleet: it changes with the next update."""
        return self._live.fleet

    @property
    def now(self) -> float:
        """On the hub's clock, even while it is away."""
        return self.fleet.time + (time.monotonic() - self._updated_at if self.lost else 0.0)

    @property
    def notice(self) -> str:
        return self._notice if time.monotonic() < self._notice_until else ""

    def say(self, text: str) -> None:
        self._notice, self._notice_until = text, time.monotonic() + _NOTICE_SECONDS

    def take(self, update: Update) -> None:
        """Apply an update. The screen follows with `arrange`."""
        if isinstance(update, FeedLost):
            if self.lost is None:
                self.lost_at = time.time()
                self._stale = forget_states(self.fleet, f"{self.place} is out of reach")
            self.lost = update
            return
        if isinstance(update, Fleet):
            self._live.load(update)
        else:
            self._live.apply(update)
        self.lost, self._stale, self._updated_at = None, None, time.monotonic()
        self.trails.note(self.fleet.time, self.fleet.hosts)

    def arrange(self) -> None:
        fleet = self._seen()
        part, self.unclear = fleet, ()
        if self.words.strip():
            part, query = choose_words(fleet, self.words)
            self.unclear = query.unclear
        self.hosts, self.totals = part.hosts, part.totals
        shown, uuid = self.hosts, None
        if self.detail is not None:
            host, uuid = self._host_of(fleet), self.detail[1]
            shown = [] if host is None else [host]
        self.listing.take(make_rows(self.shown_table(), shown, self.shown_order(), self.grouping, uuid))

    def host(self) -> Host | None:
        return self._host_of(self._seen())

    def gpu(self) -> Gpu | None:
        host = self.host()
        uuid = self.detail[1] if self.detail else None
        return next((gpu for gpu in host.gpus if gpu.uuid == uuid), None) if host else None

    def press(self, key: str, character: str | None = None) -> None:
        """`key` is its name, `character` the typed character."""
        if key == "ctrl+c":
            self.leave()
        elif self.ending is not None:
            self._answer(key)
        elif self.has_help:
            self.has_help = False
        elif self.prompt is not None:
            self._type(key, character)
        else:
            self._command(key, character)

    def paste(self, text: str) -> None:
        if self.prompt is not None:
            self.prompt.text += "".join(char for char in text if char.isprintable())
            self._follow_prompt()

    def sort_by(self, name: str) -> None:
        """Another sort; the same one again reverses it."""
        order = self.shown_order()
        if name not in self.shown_table().sorts:
            self.say(f"{self.shown_table().name} have no order by {name}")
        elif order.sort == name:
            order.is_turned = not order.is_turned
        else:
            order.sort, order.is_turned = name, False

    def _command(self, key: str, character: str | None) -> None:
        moves = {"up": -1, "down": 1, "pageup": -self.listing.height, "pagedown": self.listing.height}
        if key in moves:
            self.listing.move(moves[key])
        elif key in {"home", "end"}:
            self.listing.go(0 if key == "home" else len(self.listing.rows))
        elif character in _SORT_KEYS:
            self.sort_by(_SORT_KEYS[character])
        elif (action := _ACTIONS.get(character or "") or _ACTIONS.get(key)) is not None:
            action(self)

    def _type(self, key: str, character: str | None) -> None:
        prompt = self.prompt
        if prompt is None:
            return
        if key == "escape":
            self.words = prompt.before
            self.prompt = None
            return
        if key == "enter":
            self.prompt = None
            if prompt.kind == "search":
                self.sought = prompt.text
                self._search()
            return
        if key == "backspace":
            prompt.text = prompt.text[:-1]
        elif key == "ctrl+u":
            prompt.text = ""
        elif character is not None and character.isprintable():
            prompt.text += character
        self._follow_prompt()

    def _follow_prompt(self) -> None:
        """A filter applies while it is typed, as on the page."""
        if self.prompt is not None and self.prompt.kind == "filter":
            self.words = self.prompt.text

    def _answer(self, key: str) -> None:
        wanted, self.ending = self.ending, None
        number = SIGNALS.get(key)
        if wanted is None or number is None:
            self.say("no signal was sent")
            return
        try:
            end_process(wanted, number)
        except NotEnded as error:
            self.say(str(error))
        else:
            self.say(f"{number.name} was sent to process {wanted.pid}")

    def _ask_to_end(self) -> None:
        row = self.listing.current
        if row is None or row.host is None or row.process is None:
            self.say("a process can be ended where processes are listed: press p, or enter on a GPU")
            return
        try:
            self.ending = choose_process(row.host, row.process, self._own_id, is_local=self._is_local)
        except NotEnded as error:
            self.say(str(error))

    def _search(self) -> None:
        query = parse_query(self.sought)
        text = self.sought.strip().lower()

        def fits(row: TableRow) -> bool:
            if row.host is None:
                return row.activity is not None and text in (row.activity.user or "").lower()
            return row.gpu is not None and fits_gpu(query, row.host, row.gpu)

        if not text or not self.listing.find(fits):
            self.say(f"nothing matches {self.sought}")

    def _open(self) -> None:
        row = self.listing.current
        if row is None:
            return
        if row.activity is not None:
            user = row.activity.user
            self.words = _phrase("user", user) if user is not None else self.words
            self._go("fleet")
        elif row.title and self.grouping != "host":
            self._narrow(row.key.removeprefix("group "))
        elif self.detail is None and row.host is not None:
            self.detail = (row.host.id, row.gpu.uuid if row.gpu else None)
            self._restart_listing()

    def _narrow(self, name: str) -> None:
        """Show only one group of the rows that match already."""
        phrase = _phrase(self.grouping, name)
        if not name:
            self.say(f"these have no {self.grouping}, and no word finds them")
        elif phrase not in self.words:
            self.words = f"{self.words} {phrase}".strip()
            self._restart_listing()

    def _back(self) -> None:
        if self.detail is not None:
            self.detail = None
        elif self.table is not GPUS:
            self.table = GPUS
        elif self.words:
            self.words = ""
        self._restart_listing()

    def _go(self, name: str) -> None:
        self.table, self.detail = TABLES[name], None
        self._restart_listing()

    def _restart_listing(self) -> None:
        height = self.listing.height
        self.listing = Listing()
        self.listing.resize(height)

    def _sort_beside(self, step: int) -> None:
        order, names = self.shown_order(), list(self.shown_table().sorts)
        order.sort, order.is_turned = names[(names.index(order.sort) + step) % len(names)], False

    def _group(self) -> None:
        self.grouping = GROUPS[(GROUPS.index(self.grouping) + 1) % len(GROUPS)]
        self._restart_listing()

    def _prompt(self, kind: str) -> None:
        if kind == "filter" and self.detail is not None:
            self._back()
        self.prompt = Prompt(kind, self.words if kind == "filter" else "", self.words)

    def _help(self) -> None:
        self.has_help = True

    def _seen(self) -> Fleet:
        """The fleet as shown: unknown while the hub is away."""
        return self._stale or self.fleet

    def _host_of(self, fleet: Fleet) -> Host | None:
        if self.detail is None:
            return None
        return next((host for host in fleet.hosts if host.id == self.detail[0]), None)


def _phrase(place: str, text: str) -> str:
    """Any text as a phrase of the filter."""
    return f'{place}:"{text.replace(chr(34), "")}"'


_ACTIONS: dict[str, Callable[[Top], None]] = {
    "q": lambda top: top.leave(),
    "f10": lambda top: top.leave(),
    "?": Top._help,
    "h": Top._help,
    "f1": Top._help,
    "/": lambda top: top._prompt("filter"),
    "f4": lambda top: top._prompt("filter"),
    "s": lambda top: top._prompt("search"),
    "f3": lambda top: top._prompt("search"),
    "n": Top._search,
    "<": lambda top: top._sort_beside(-1),
    ">": lambda top: top._sort_beside(1),
    "f6": lambda top: top._sort_beside(1),
    "I": lambda top: top.sort_by(top.shown_order().sort),
    "g": Top._group,
    "1": lambda top: top._go("fleet"),
    "f": lambda top: top._go("fleet"),
    "2": lambda top: top._go("processes"),
    "p": lambda top: top._go("processes"),
    "3": lambda top: top._go("people"),
    "u": lambda top: top._go("people"),
    "enter": Top._open,
    "escape": Top._back,
    "k": Top._ask_to_end,
    "f9": Top._ask_to_end,
}


_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TOLERANCE = 2.0
"""Seconds by which the kernel's boot time moves when the clock is set."""
SIGNALS = {"y": signal.SIGTERM, "9": signal.SIGKILL}
"""The keys that confirm, and the signals that they send."""


class ProcessToEnd(Struct, frozen=True):
    """A process as it was shown. `started_at` is in Unix seconds."""

    pid: int
    started_at: float
    command: str


class NotEnded(GpudeckError):
    """No signal was sent."""


def choose_process(host: Host, process: ShownProcess, own_id: str, *, is_local: bool) -> ProcessToEnd:
    """`own_id` is the machine id of this machine; empty if it has none, as in a container. Raises NotEnded."""
    if not is_local and (not own_id or host.id != own_id):
        raise NotEnded(f"{host.display_name} is not this machine.", "Run `gpudeck top --local` there.")
    if process.started_at is None:
        raise NotEnded(f"the start of process {process.pid} is unknown, so it may be another one by now.")
    return ProcessToEnd(process.pid, process.started_at, process.command or "")


def end_process(wanted: ProcessToEnd, number: signal.Signals) -> None:
    """Raises NotEnded if the process has ended, is now another one, or belongs to another user."""
    try:
        with closing(os.fdopen(os.pidfd_open(wanted.pid))) as handle:
            _check(wanted, Proc())
            signal.pidfd_send_signal(handle.fileno(), number)
    except PermissionError as error:
        raise NotEnded(f"you are not allowed to end process {wanted.pid}.") from error
    except (OSError, ValueError) as error:
        raise NotEnded(f"process {wanted.pid} has ended already.") from error


def _check(wanted: ProcessToEnd, proc: Proc) -> None:
    stat, uid = proc.stat(wanted.pid), proc.uid(wanted.pid)
    if stat.state in {"Z", "X"}:
        raise ProcessLookupError
    if abs(proc.boot_time() + stat.start_ticks / _TICKS_PER_SECOND - wanted.started_at) > _TOLERANCE:
        raise NotEnded(f"process {wanted.pid} is another one by now.")
    if os.geteuid() not in {0, uid}:
        raise NotEnded(f"process {wanted.pid} belongs to {find_user_name(uid)}, not to you.")
