"""The titles of an operator's own rules: text with fields such as {host} and {memory_used_bytes}. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from gpudeck.alerts.expression import COLUMNS, Expression
from gpudeck.model.text import propose, show_amount, show_span

PLACES: Final = ("host", "gpu", "model", "users")
"""Fields that are no columns. `gpu` is the index."""
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_SIGNS: Final = {
    "percent": " %",
    "celsius": " °C",
    "watts": " W",
    "megahertz": " MHz",
    "joules": " J",
    **dict.fromkeys(("count", "load", "state"), ""),
}
"""Other units are written out."""


def check_text(text: str, expression: Expression) -> None:
    """Raises ValueError, which names `text`."""
    known = [*COLUMNS, *PLACES] if not expression.is_of_host else [*(one for one in COLUMNS if "." in one), "host"]
    for name in _FIELD.findall(text):
        if name not in known:
            hint = propose(name, known)
            hint = hint if hint.endswith("?") else f"fields are columns and {', '.join(PLACES)}"
            raise ValueError(f"text has no field {name}; {hint}")
    if re.search(r"[{}]", _FIELD.sub("", text)):
        raise ValueError("text has a brace without its partner; write fields as {host}")


def fill_text(text: str, find: Callable[[str], str | float | None]) -> str:
    """`find` gives what stands for a field."""
    return _FIELD.sub(lambda found: _show(found[1], find(found[1])), text)


def default_text(columns: Sequence[str], *, is_of_host: bool) -> str:
    """The place and what was compared: `GPU 3 of gpu-01: utilization 2 %, memory used 31 GiB`."""
    place = "{host}" if is_of_host else "GPU {gpu} of {host}"
    return f"{place}: {', '.join(f'{_name(column)} {{{column}}}' for column in columns)}"


def _name(column: str) -> str:
    label = COLUMNS[column].label if column in COLUMNS else column
    return label if label[:2].isupper() else label[:1].lower() + label[1:]


def _show(field: str, value: str | float | None) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    unit = COLUMNS[field].unit if field in COLUMNS else ""
    writers: dict[str, Callable[[float], str]] = {
        "bytes": lambda amount: show_amount(int(amount)),
        "bytes_per_second": lambda rate: f"{rate / 1e6:.0f} MB/s",
        "seconds": show_span,
        "flag": lambda flag: "yes" if flag else "no",
        "": lambda number: f"{number:,g}",
    }
    return writers[unit](value) if unit in writers else f"{value:,.0f}{_SIGNS.get(unit, f' {unit}')}"
