"""Renders the screen of top: exactly as many lines as the terminal has, each exactly as wide. Pure."""

import time
from collections.abc import Sequence

from gpudeck.model.text import clean, show_count
from gpudeck.tui.details import gpu_lines, host_lines
from gpudeck.tui.table_views import Line, TableLayout, bare_cells, text_line
from gpudeck.tui.top import Top
from gpudeck.views.filter import explain_unclear
from gpudeck.views.table import Cell, fit, shorten, width_of
from gpudeck.views.text import count_hosts_and_gpus, count_states

MIN_WIDTH, MIN_HEIGHT = 40, 8
HELP = """\
Keys, as in htop and nvitop where they have them

up down pgup pgdn home end  move      P  sort by utilization
enter    open the row or the group    M  by memory
esc      back; drop the filter        T  by time
f or 1   fleet                        N  by host
p or 2   processes                    U  by user
u or 3   people                       < >  by the next column
/        filter by words              I  turn the order around
s        search, n goes on            g  group: host, model, user, none
q        quit                         k  end a process of your own
                                         on this machine

Words of filter and search, as on the page:
free busy idle allocated reserved drained unknown
h200  gpu07  -alice  user:ann  >40G
""".splitlines()
_FOOT = (
    ("q", "quit"),
    ("?", "help"),
    ("/", "filter"),
    ("enter", "details"),
    ("p", "processes"),
    ("u", "people"),
    ("f", "fleet"),
    ("g", "group"),
    ("< >", "sort"),
    ("s", "search"),
    ("k", "end a process"),
)


class ScreenRenderer:
    """Draws `top`; keeps column widths stable."""

    def __init__(self, top: Top) -> None:
        self._top = top
        self._layout: TableLayout | None = None
        self._made_for: tuple[object, ...] = ()

    def draw(self, width: int, height: int) -> list[Line]:
        top = self._top
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            told = f"gpudeck top needs {MIN_WIDTH} columns and {MIN_HEIGHT} lines"
            return [text_line([(told, "")], width), *[text_line([], width)] * (height - 1)]
        # On a host with many GPUs, some processes must be visible, too.
        detail = self._detail_lines(width)[: max(1, height - 8)]
        top.listing.resize(height - len(detail) - 4)
        above = [_headline(top, width), _state_line(top, width), *detail]
        layout = self._lay_out(width)
        rows = self._rows(layout)
        empty = [text_line([], width)] * (top.listing.height - len(rows))
        lines = [*above, layout.head(top.shown_order().sort), *rows, *empty, _foot(top, width)]
        if (ending := top.ending) is not None:
            question = [f"End process {ending.pid}?", ending.command or "(command unknown)"]
            return _put_over(lines, [*question, "", "y  SIGTERM    9  SIGKILL    any other key  cancel"], width)
        if top.lost is not None:
            # All but this line and the keys.
            lines = [_greyed(lines[0]), lines[1], *map(_greyed, lines[2:-1]), lines[-1]]
        return _put_over(lines, HELP, width) if top.has_help else lines

    def _detail_lines(self, width: int) -> list[Line]:
        top = self._top
        host, gpu = top.host(), top.gpu()
        if top.detail is None:
            return []
        if host is None or (gpu is None and top.detail[1] is not None):
            return [text_line([("It is gone. Esc leads back.", "yellow")], width)]
        if gpu is not None:
            return gpu_lines(host, gpu, top.trails, top.now, width)
        return host_lines(host, top.trails, top.now, width)

    def _lay_out(self, width: int) -> TableLayout:
        """Lay out again if the terminal, the table or its hosts changed; not because a value did."""
        top, table = self._top, self._top.shown_table()
        wanted = (width, table.name, len(top.hosts), len(top.listing.rows) if table.name == "people" else 0)
        if self._layout is None or wanted != self._made_for:
            self._layout = TableLayout(table.columns(top.hosts, top.listing.rows), width)
            self._made_for = wanted
        return self._layout

    def _rows(self, layout: TableLayout) -> list[Line]:
        top, cells, now = self._top, self._top.shown_table().cells, self._top.now
        lines: list[Line] = []
        for at, row in enumerate(top.listing.visible, top.listing.top):
            colour = "cursor" if at == top.listing.at else None
            if row.title:
                lines.append([(fit(row.title(), layout.width), colour or "bold")])
            elif row.host is not None and row.gpu is None:
                bare = bare_cells(row.host, now)
                lines.append(text_line([(text, colour or own) for text, own in bare], layout.width))
            else:
                lines.append(layout.line(cells(row, now, layout), colour))
        if lines or top.prompt is not None:
            return lines
        return [text_line([(_why_empty(top), "grey")], layout.width)]


def _why_empty(top: Top) -> str:
    if top.words:
        return f"Nothing matches {clean(top.words)}. Esc shows all."
    if top.shown_table().name == "fleet":
        return "No host has reported yet."
    return "Nobody is on a GPU." if top.shown_table().name == "people" else "No process is on a GPU."


def _headline(top: Top, width: int) -> Line:
    """The source and the totals; less important parts are dropped if there is no room. The clock stays."""
    clock = time.strftime("%H:%M:%S", time.localtime(top.now))
    states, told = ([(f"  {text}", colour) for text, colour in cells] for cells in count_states(top.totals))
    hosts: Cell = (f"  {count_hosts_and_gpus(top.totals)}", "")
    demo: list[Cell] = [("  ", ""), ("DEMO DATA, simulated", "reverse")] if top.fleet.demo else []
    short: list[Cell] = [("  ", ""), ("DEMO", "reverse")] if top.fleet.demo else []
    name: Cell = ("gpudeck top", "bold")
    place: Cell = (f"  {clean(top.place)}", "grey")
    for cells in (
        [name, place, *demo, hosts, *states],
        [name, *demo, hosts, *states],
        [name, *short, hosts, *told],
        [name, *short, *told],
        [*short, *told],
    ):
        used = sum(width_of(text) for text, _ in cells)
        if used + len(clock) + 2 <= width:
            return [*cells, (" " * (width - used - len(clock)), ""), (clock, "grey")]
    return text_line(cells, width)


def _state_line(top: Top, width: int) -> Line:
    if top.lost is not None:
        since = time.strftime("%H:%M:%S", time.localtime(top.lost_at))
        return text_line([(f"OUT OF REACH since {since}, trying again: {clean(top.lost.reason)}", "alarm")], width)
    if top.notice:
        return text_line([(clean(top.notice), "yellow")], width)
    order, table = top.shown_order(), top.shown_table()
    rows = sum(not row.title for row in top.listing.rows)
    told = [table.name if top.detail is None else "details", f"sorted by {order.sort}{', turned' * order.is_turned}"]
    told += [f"by {top.grouping}"] if table.name == "fleet" and top.grouping != "none" else []
    told += [f"filter: {clean(top.words)}"] if top.words and top.detail is None else []
    told += [clean(explain_unclear(top.unclear[0]))] if top.unclear else []
    hidden = len(top.listing.rows) - top.listing.height
    told += [f"{show_count(rows, 'row')}, {f'{100 * top.listing.top // hidden}% down' if hidden > 0 else 'all shown'}"]
    return text_line([(" · ".join(told), "grey")], width)


def _foot(top: Top, width: int) -> Line:
    if top.prompt is not None:
        before = f"{top.prompt.kind}: "
        room = max(1, width - len(before) - 1)
        text = top.prompt.text
        # The end of the typed text must be visible.
        while width_of(text) > room:
            text = text[1:]
        return text_line([(before, "bold"), (text, ""), (" ", "reverse")], width)
    cells: list[Cell] = []
    used = 0
    for key, what in _FOOT:
        used += len(key) + len(what) + 3
        if used > width:
            break
        cells += [(key, "bold"), (f" {what}  ", "grey")]
    return text_line(cells, width)


def _put_over(lines: list[Line], texts: Sequence[str], width: int) -> list[Line]:
    """A box in the middle of the screen, over whole lines."""
    inner = min(width - 4, max(map(width_of, texts)))
    left = (width - inner - 4) // 2
    drawn = [f"╭{'─' * (inner + 2)}╮", *(f"│ {fit(shorten(clean(text), inner), inner)} │" for text in texts)]
    drawn = [*drawn, f"╰{'─' * (inner + 2)}╯"][: len(lines)]
    start = max(0, (len(lines) - len(drawn)) // 2)
    boxes = [text_line([(" " * left + line, "")], width) for line in drawn]
    return [*lines[:start], *boxes, *lines[start + len(boxes) :]]


def _greyed(line: Line) -> Line:
    return [(text, "reverse" if colour in {"cursor", "reverse"} else "grey") for text, colour in line]
