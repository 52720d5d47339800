"""The tables of top (GPUs, processes, users): sorted rows below group titles, columns whose widths stay while values
change, and the rows, columns and cells of each table. Pure."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from gpudeck.model.text import clean, show_age, show_count, show_gib
from gpudeck.model.view import Gpu, Host, ShownProcess
from gpudeck.views import text as text_views
from gpudeck.views.table import Cell, draw_share, fit, width_of
from gpudeck.views.text import SYMBOLS, join_places, show_number, show_status, staleness_note
from gpudeck.views.users import NOT_KNOWN, UserActivity, find_users, show_memory

DASH: Cell = ("–", "grey")
"""An unknown value."""
Line = list[Cell]
"""Adjacent texts and their colours, together exactly as wide as the terminal."""


class TableRow(Struct, frozen=True, gc=False):
    """A row. `key` identifies it across updates. `title` is set for a group's header, and evaluated when it is on
    the screen: such a row has no cells. The row is about its `person`, else its `process`, else its `gpu`, else its
    `host`."""

    key: str
    host: Host | None = None
    gpu: Gpu | None = None
    process: ShownProcess | None = None
    activity: UserActivity | None = None
    title: Callable[[], str] | None = None


class Sort(Struct, frozen=True):
    """`value` is the sort key; None is unknown and always last. `is_falling`: the largest first."""

    value: Callable[[TableRow], Any]
    is_falling: bool = False


def arrange(rows: Sequence[TableRow], sort: Sort | None, is_turned: bool) -> list[TableRow]:
    """Sorted rows. The sort is stable; None for `sort` keeps the order."""
    if sort is None:
        return list(reversed(rows)) if is_turned else list(rows)
    values = [(sort.value(row), row) for row in rows]
    known = [pair for pair in values if pair[0] is not None]
    # Reversing a sorted list would reverse equal rows, too.
    known.sort(key=lambda pair: pair[0], reverse=sort.is_falling != is_turned)
    return [row for _, row in known] + [row for value, row in values if value is None]


def group(
    rows: Sequence[TableRow],
    names_of: Callable[[TableRow], Sequence[str]],
    title_of: Callable[[str, list[TableRow]], str],
) -> list[TableRow]:
    """The rows below one title per group, the group of the first row first. A row may be in several groups."""
    groups: dict[str, list[TableRow]] = {}
    for row in rows:
        names = names_of(row)
        for name in names:
            own = row if len(names) == 1 else msgspec.structs.replace(row, key=f"{row.key} {name}")
            groups.setdefault(name, []).append(own)
    grouped: list[TableRow] = []
    for name, members in groups.items():
        grouped.append(TableRow(f"group {name}", members[0].host, title=partial(title_of, name, members)))
        grouped += members
    return grouped


class Listing:
    """The visible rows of a table and its cursor. A moved cursor follows its row; until then it stays on the first
    line."""

    def __init__(self) -> None:
        self.rows: Sequence[TableRow] = ()
        self.height = 1
        self.top = 0
        self.at = 0
        self._key: str | None = None

    @property
    def current(self) -> TableRow | None:
        return self.rows[self.at] if self.rows else None

    @property
    def visible(self) -> Sequence[TableRow]:
        return self.rows[self.top : self.top + self.height]

    def take(self, rows: Sequence[TableRow]) -> None:
        self.rows = rows
        if self._key is not None:
            found = next((at for at, row in enumerate(rows) if row.key == self._key), None)
            self.at = self.at if found is None else found
        self._settle()

    def resize(self, height: int) -> None:
        self.height = max(1, height)
        self._settle()

    def move(self, steps: int) -> None:
        self.go(self.at + steps)

    def go(self, at: int) -> None:
        self.at = at
        self._settle()
        self._key = self.rows[self.at].key if self.rows and self.at else None

    def find(self, fits: Callable[[TableRow], bool]) -> bool:
        """Go to the next matching row, wrapping around at the end. False if none matches."""
        order = [*range(self.at + 1, len(self.rows)), *range(self.at + 1)]
        found = next((at for at in order if fits(self.rows[at])), None)
        if found is not None and self.rows:
            self.go(found)
        return found is not None

    def _settle(self) -> None:
        self.at = max(0, min(self.at, len(self.rows) - 1))
        self.top = max(0, min(self.top, len(self.rows) - self.height, self.at))
        self.top = max(self.top, self.at - self.height + 1)


class TableColumn(Struct, frozen=True):
    """`width` is the needed width, `keep` decides which column is dropped first, `grow` is its share of the remaining
    room, up to `widest`. `sort` names the sort by this column."""

    title: str
    width: int
    keep: int
    align: str = "left"
    grow: int = 0
    widest: int = 300
    sort: str = ""


class TableLayout:
    """The columns that fit a terminal of `width`, and their widths."""

    def __init__(self, columns: Sequence[TableColumn], width: int) -> None:
        self._columns = columns
        self.width = width
        self._gap = 1 if width < 110 else 2
        self.shown = list(range(len(columns)))
        widths = [column.width for column in columns]
        while len(self.shown) > 2 and self._total(widths) > width:
            self.shown.remove(min(self.shown, key=lambda at: columns[at].keep))
        self._share(widths)
        self.widths = widths

    def head(self, sort: str) -> Line:
        """The titles; the sorted one is highlighted."""
        return self._draw(
            [(column.title, "sorted" if sort and column.sort == sort else "head") for column in self._columns], "head"
        )

    def line(self, cells: Sequence[Cell], colour: str | None = None) -> Line:
        """`colour` is for the whole line, instead of the cells' own."""
        line = self._draw(cells, "")
        return line if colour is None else [(text, colour) for text, _ in line]

    def _draw(self, cells: Sequence[Cell], rest: str) -> Line:
        line: Line = []
        used = 0
        for at in self.shown:
            width = min(self.widths[at], self.width - used)
            if width <= 0:
                break
            text, colour = cells[at]
            gap = min(self._gap, self.width - used - width)
            line.append((fit(text, width, self._columns[at].align) + " " * gap, colour))
            used += width + gap
        return [*line, (" " * (self.width - used), rest)] if used < self.width else line

    def _total(self, widths: Sequence[int]) -> int:
        return sum(widths[at] + self._gap for at in self.shown) - self._gap

    def _share(self, widths: list[int]) -> None:
        """Distribute the remaining room, column by column, until it is used or none can grow."""
        left = self.width - self._total(widths)
        while left > 0:
            growing = [at for at in self.shown if self._columns[at].grow and widths[at] < self._columns[at].widest]
            if not growing:
                return
            for at in growing:
                step = min(self._columns[at].grow, left, self._columns[at].widest - widths[at])
                widths[at] += step
                left -= step


def measure(texts: Sequence[str], least: int, most: int) -> int:
    """The needed width of a column with these texts."""
    return min(most, max([least, *map(width_of, set(texts))]))


def text_line(cells: Sequence[Cell], width: int) -> Line:
    """The texts one after the other, cut or padded to the width."""
    line: Line = []
    used = 0
    for text, colour in cells:
        room = width - used
        if room <= 0:
            break
        shown = text if width_of(text) <= room else fit(text, room)
        line.append((shown, colour))
        used += width_of(shown)
    return [*line, (" " * (width - used), "")] if used < width else line


GROUPS = ("host", "model", "user", "none")
_RANK = {word: rank for rank, word in enumerate(SYMBOLS)}
_UTIL_BAR, _MEMORY_BAR = 4, 6


def _metric(value: Callable[[Gpu], float | None]) -> Sort:
    """The last values of a silent host are shown, but sorted last."""
    return Sort(
        lambda row: value(row.gpu) if row.gpu is not None and row.gpu.availability != "unknown" else None,
        is_falling=True,
    )


def memory_share(gpu: Gpu) -> float | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return None if used is None or not total else used / total


GPU_SORTS: dict[str, Sort | None] = {
    "host": None,
    "state": Sort(lambda row: None if row.gpu is None else _RANK[row.gpu.availability]),
    "utilization": _metric(lambda gpu: gpu.utilization_percent),
    "memory": _metric(memory_share),
    "temperature": _metric(lambda gpu: gpu.temperature_celsius),
    "power": _metric(lambda gpu: gpu.power_watts),
    "user": Sort(lambda row: (row.gpu.users or None) if row.gpu else None),
    "time": Sort(lambda row: None if row.gpu is None else row.gpu.since),
}


def gpu_rows(hosts: Sequence[Host], sort: str, is_turned: bool, grouping: str) -> list[TableRow]:
    """One row per GPU, and one for a host without GPUs. The group without a user or model has no name."""
    rows = [
        TableRow(f"{host.id} {gpu.uuid}" if gpu else host.id, host, gpu)
        for host in hosts
        for gpu in host.gpus or (None,)
    ]
    rows = arrange(rows, GPU_SORTS[sort], is_turned)
    if grouping == "host":
        return group(rows, lambda row: (row.host.id,) if row.host else (), lambda _, own: host_title(own[0].host))
    if grouping == "model":
        return group(rows, _model_of, lambda name, own: _title(name or "no GPUs", own))
    if grouping == "user":
        named = group([row for row in rows if row.gpu and row.gpu.users], _users_of, _title)
        rest = [row for row in rows if not (row.gpu and row.gpu.users)]
        return named + group(rest, lambda _: ("",), lambda _, own: _title("nobody", own))
    return rows


def host_title(host: Host | None) -> str:
    if host is None:
        return ""
    used, total = host.memory_used_bytes, host.memory_total_bytes
    free = sum(gpu.availability == "free" for gpu in host.gpus)
    said = [
        clean(host.display_name),
        show_status(host),
        f"{free} of {len(host.gpus)} GPUs free",
        f"CPU {show_number(host.cpu_percent, '%')}",
        f"RAM {show_gib(used, 0)}/{show_gib(total, 0)} GiB",
        f"load {show_number(host.load_1m, '')}",
        *map(clean, host.problems[:1]),
    ]
    return " · ".join(said)


def gpu_columns(hosts: Sequence[Host]) -> list[TableColumn]:
    """As wide as the names and states in this fleet."""
    names = measure([clean(host.display_name) for host in hosts], 4, 24)
    models = measure(list({gpu.display_name for host in hosts for gpu in host.gpus}), 5, 20)
    states = measure(list({f"  {gpu.availability}" for host in hosts for gpu in host.gpus}), 9, 11)
    return [
        TableColumn("HOST", names, 100, sort="host"),
        TableColumn("GPU", 3, 98, "right"),
        TableColumn("MODEL", models, 45),
        TableColumn("STATE", states, 99, sort="state"),
        TableColumn("UTIL", 4, 90, "right", sort="utilization"),
        TableColumn("", _UTIL_BAR, 40, grow=1, widest=20, sort="utilization"),
        TableColumn("MEMORY", _MEMORY_BAR, 55, grow=1, widest=20, sort="memory"),
        TableColumn("GiB", 9, 80, "right", sort="memory"),
        TableColumn("TEMP", 5, 47, "right", sort="temperature"),
        TableColumn("POWER", 6, 30, "right", sort="power"),
        TableColumn("USERS", 9, 95, grow=2, widest=28, sort="user"),
        TableColumn("SINCE", 7, 50, "right", sort="time"),
        TableColumn("NOTE", 12, 20, grow=4),
    ]


def gpu_cells(row: TableRow, now: float, layout: TableLayout) -> list[Cell]:
    """The cells of these columns, for a row with a GPU."""
    host, gpu = row.host, row.gpu
    if host is None or gpu is None:
        return [DASH] * 13
    dim = "grey" if gpu.availability == "unknown" else ""
    label, model, state, util, _, *rest = text_views.gpu_cells(gpu, staleness_note(host, now), now)
    busy = gpu.utilization_percent
    return [
        (clean(host.display_name), "" if host.status == "up" else "grey"),
        *(label, model, state, util),
        ("" if busy is None else draw_share(busy / 100, layout.widths[5]), dim or "green"),
        (draw_share(memory_share(gpu), layout.widths[6]), dim or "blue"),
        *rest,
    ]


def bare_cells(host: Host, now: float) -> list[Cell]:
    """A host without GPUs: the reason, over the whole line."""
    reason = host.problems[0] if host.problems else host.reasons.get("gpus", "no GPUs")
    return [(f"{clean(host.display_name)}  ", "grey"), (clean(staleness_note(host, now) or reason), "grey")]


def _model_of(row: TableRow) -> tuple[str]:
    return (clean(row.gpu.display_name) if row.gpu else "",)


def _users_of(row: TableRow) -> Sequence[str]:
    return row.gpu.users if row.gpu else ()


def _title(name: str, own: list[TableRow]) -> str:
    gpus = [row.gpu for row in own if row.gpu is not None]
    counts = {word: sum(gpu.availability == word for gpu in gpus) for word in SYMBOLS}
    told = [f"{SYMBOLS[word]} {count} {word}" for word, count in counts.items() if count]
    hosts = len({row.host.id for row in own if row.host})
    return " · ".join([clean(name), f"{show_count(len(gpus), 'GPU')} on {show_count(hosts, 'host')}", *told])


def _user_sort(value: Callable[[UserActivity], float | None], *, is_falling: bool = True) -> Sort:
    return Sort(lambda row: None if row.activity is None else value(row.activity), is_falling)


USERS_SORTS: dict[str, Sort | None] = {
    "gpus": _user_sort(lambda activity: len(activity.uses)),
    "user": None,
    "memory": _user_sort(lambda activity: activity.memory),
    "utilization": _user_sort(lambda activity: activity.utilization),
    "idle": _user_sort(lambda activity: len(activity.idle)),
    "time": _user_sort(lambda activity: activity.since, is_falling=False),
}


def user_rows(hosts: Sequence[Host], sort: str, is_turned: bool) -> list[TableRow]:
    # Not a possible login: a user may be called "not known".
    rows = [TableRow(f"user {activity.user or chr(0)}", activity=activity) for activity in find_users(hosts)]
    return arrange(rows, USERS_SORTS[sort], is_turned)


def user_columns(users: Sequence[TableRow]) -> list[TableColumn]:
    names = measure([_name(row.activity) for row in users if row.activity], 9, 24)
    return [
        TableColumn("USER", names, 100, sort="user"),
        TableColumn("GPUs", 4, 99, "right", sort="gpus"),
        TableColumn("GiB", 9, 90, "right", sort="memory"),
        TableColumn("UTIL", 4, 80, "right", sort="utilization"),
        TableColumn("IDLE", 14, 70, sort="idle"),
        TableColumn("PROCESSES", 9, 30, "right"),
        TableColumn("FOR", 7, 60, "right", sort="time"),
        TableColumn("WHERE", 16, 95, grow=1),
    ]


def user_cells(row: TableRow, now: float, _: TableLayout) -> list[Cell]:
    activity = row.activity
    if activity is None:
        return [DASH] * 8
    more = f"+{len(activity.past)}" if activity.past else ""
    processes = activity.processes
    idle = activity.idle
    longest = min((one.gpu.since for one in idle if one.gpu.since is not None), default=None)
    told = f"{len(idle)} for {show_age(longest, now)}" if idle else ""
    return [
        (_name(activity), "grey" if activity.user is None else ""),
        (f"{len(activity.uses)}{more}", ""),
        (show_memory(activity), ""),
        (show_number(activity.utilization, "%"), ""),
        (told, "yellow"),
        ("–" if processes is None else str(processes), ""),
        (show_age(activity.since, now), ""),
        (_places(activity), "grey"),
    ]


def _name(activity: UserActivity) -> str:
    return NOT_KNOWN if activity.user is None else clean(activity.user)


def _places(activity: UserActivity) -> str:
    places = (
        (clean(host.display_name) if host.status == "up" else f"{clean(host.display_name)} ({host.status})", gpu.label)
        for host, gpu in ((use.host, use.gpu) for use in (*activity.uses, *activity.past))
    )
    return "  ".join(join_places(places))


def _process_sort(value: Callable[[ShownProcess], float | str | None], *, is_falling: bool = False) -> Sort:
    return Sort(lambda row: None if row.process is None else value(row.process), is_falling)


PROCESS_SORTS: dict[str, Sort | None] = {
    "host": None,
    "pid": _process_sort(lambda process: process.pid),
    "user": _process_sort(lambda process: process.user),
    "memory": _process_sort(lambda process: process.memory_used_bytes, is_falling=True),
    "utilization": _process_sort(lambda process: process.utilization_percent, is_falling=True),
    "time": _process_sort(lambda process: process.started_at),
}


def process_rows(hosts: Sequence[Host], sort: str, is_turned: bool, *, uuid: str | None = None) -> list[TableRow]:
    """The processes of all GPUs, or of the one with this UUID. A GPU whose processes could not be read has a row with
    the reason."""
    rows: list[TableRow] = []
    for host in hosts:
        for gpu in host.gpus:
            if uuid is not None and gpu.uuid != uuid:
                continue
            if gpu.processes is None:
                rows.append(TableRow(f"{host.id} {gpu.uuid}", host, gpu))
            rows += [
                TableRow(f"{host.id} {gpu.uuid} {process.pid}", host, gpu, process) for process in gpu.processes or ()
            ]
    return arrange(rows, PROCESS_SORTS[sort], is_turned)


def process_columns(hosts: Sequence[Host]) -> list[TableColumn]:
    names = measure([clean(host.display_name) for host in hosts], 4, 24)
    return [
        TableColumn("HOST", names, 60, sort="host"),
        TableColumn("GPU", 3, 99, "right"),
        TableColumn("PID", 8, 98, "right", sort="pid"),
        TableColumn("USER", 10, 97, grow=1, widest=24, sort="user"),
        TableColumn("GiB", 6, 90, "right", sort="memory"),
        TableColumn("UTIL", 4, 80, "right", sort="utilization"),
        TableColumn("FOR", 7, 70, "right", sort="time"),
        TableColumn("WHERE", 8, 50, grow=1, widest=28),
        TableColumn("COMMAND", 20, 96, grow=6),
    ]


def process_cells(row: TableRow, now: float, _: TableLayout) -> list[Cell]:
    host, gpu, process = row.host, row.gpu, row.process
    if host is None or gpu is None:
        return [DASH] * 9
    dim = "grey" if gpu.availability == "unknown" else ""
    cells = text_views.process_cells(gpu, process, now, dim)
    return [(clean(host.display_name), dim), *cells[:-1], (cells[-1][0], dim or "grey")]


class TableView(Struct, frozen=True):
    """`sorts` begins with the default."""

    name: str
    sorts: Mapping[str, Sort | None]
    columns: Callable[[Sequence[Host], Sequence[TableRow]], list[TableColumn]]
    cells: Callable[[TableRow, float, TableLayout], list[Cell]]


GPUS = TableView("fleet", GPU_SORTS, lambda hosts, _: gpu_columns(hosts), gpu_cells)
PROCESSES = TableView("processes", PROCESS_SORTS, lambda hosts, _: process_columns(hosts), process_cells)
USERS = TableView("people", USERS_SORTS, lambda _, rows: user_columns(rows), user_cells)
TABLES = {table.name: table for table in (GPUS, PROCESSES, USERS)}


class SortOrder(Struct):
    sort: str
    is_turned: bool = False


def make_rows(
    table: TableView, hosts: Sequence[Host], order: SortOrder, grouping: str, uuid: str | None
) -> list[TableRow]:
    """`uuid` selects the processes of one GPU."""
    if table is GPUS:
        return gpu_rows(hosts, order.sort, order.is_turned, grouping)
    if table is USERS:
        return user_rows(hosts, order.sort, order.is_turned)
    return process_rows(hosts, order.sort, order.is_turned, uuid=uuid)
