"""How large a history is, for people."""

from datetime import UTC, datetime
from typing import Any

_WORDS = {
    "chunks": "samples, a host's hour each",
    "quarters": "quarter hours of the GPUs",
    "host_hours": "hours of the hosts",
    "fleet_quarters": "quarter hours of the fleet",
    "uses": "who used what, by hour and host",
    "uses_of_all": "who used what, by hour",
    "runs": "runs",
    "journal": "not sealed yet",
}


def render_size(size: Any) -> str:
    """`size` is a history.embedded.inspect.Size."""
    lines = [
        f"{size.path}: {_megabytes(size.file_bytes)}",
        f"{size.hosts} host{'s' * (size.hosts != 1)}, {size.gpus} GPU{'s' * (size.gpus != 1)}, "
        f"from {_moment(size.oldest)} to {_moment(size.newest)}",
        "",
    ]
    for part in size.parts:
        inside = "" if part.bytes is None else _megabytes(part.bytes)
        lines.append(f"{part.rows:>10,} {inside:>10}  {_WORDS.get(part.name, part.name)}")
    return "\n".join(lines) + "\n"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _moment(at: float | None) -> str:
    return "–" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
