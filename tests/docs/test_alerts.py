"""The table of rules says what the rules go by."""

import re
from pathlib import Path

from gpudeck.alerts.settings import DEFAULTS, Limits

PAGE = Path(__file__).parents[2] / "docs" / "alerts.md"


def show(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def row(name: str, limits: Limits) -> tuple[str, ...]:
    limit = "" if limits.above is None else f"{limits.above:g}, {limits.clear:g} {limits.unit}"
    return name, limits.severity, show(limits.wait), show(limits.clear_after), limit


def test_the_table_says_what_the_rules_go_by() -> None:
    written = [
        tuple(cell.strip().strip("`") for cell in line.split("|")[1:6])
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| `\w+` \|", line)
    ]
    assert written == [row(name, limits) for name, limits in DEFAULTS.items()]
