"""Tables for people: what was measured, what was promised, and how it relates to the reference of the same run."""

import time
from collections.abc import Callable, Sequence

Row = tuple[str, str, str, str]


def print_table(title: str, reference: str, rows: Sequence[Row]) -> None:
    """Rows are: what, measured, promised, ratio to the reference."""
    everything = [("", "measured", "promised", "ratio"), *rows]
    widths = [max(len(row[at]) for row in everything) for at in range(4)]
    print(f"\n{title}\n  reference: {reference}")
    for row in everything:
        cells = [row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in (1, 2, 3))]
        print("  " + "  ".join(cells).rstrip())


def best_of(repeats: int, work: Callable[[], object], pause: float = 0.0) -> float:
    """Seconds of the quickest of several runs: the one least disturbed by whatever else the machine does."""
    times = []
    for _ in range(repeats):
        time.sleep(pause)
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
