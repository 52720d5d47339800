"""Run the benchmarks named on the command line, or all of them."""

import importlib
import sys

NAMES = ("hub", "ingest_http", "startup", "agent_cost", "page", "pull", "ssh_poll", "hostile")


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        if name not in NAMES:
            sys.exit(f"no benchmark is called {name}; there are {', '.join(NAMES)}")
        importlib.import_module(f"bench.{name}").main()


main()
