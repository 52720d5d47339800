"""Run the benchmarks named on the command line, or all of them."""

import importlib
import sys
from itertools import takewhile

NAMES = (
    "hub",
    "ingest_http",
    "scale",
    "growth",
    "reading",
    "viewers",
    "startup",
    "agent_cost",
    "page",
    "page_overview",
    "pull",
    "ssh_poll",
    "hostile",
    "logins",
    "inputs",
    "terminal",
    "top",
    "history",
    "history_page",
    "moment",
    "export",
    "slider",
    "reliability",
    "reservations",
    "alerts",
    "compat",
    "slurm",
    "jobs",
    "verdicts",
    "real_programs",
    "digest",
    "cluster",
)


def main() -> None:
    # What begins with a dash, and what follows it, is for the benchmark.
    named = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    for name in named or NAMES:
        if name not in NAMES:
            sys.exit(f"no benchmark is called {name}; there are {', '.join(NAMES)}")
        importlib.import_module(f"bench.{name}").main()


main()
