"""`make chaos`: run scenarios, print one table, and fail where a target of correctness was missed."""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.figures import Figure, Outcome, render
from chaos.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one; may be repeated")
    parser.add_argument("--short", action="store_true", help="as in `make test`: fewer hosts, kills and damages")
    parser.add_argument("--seed", type=int, default=20, help="what decides about random moments and places")
    parser.add_argument("--kills", type=int, help="how often the hub is killed (50; short: 5)")
    parser.add_argument("--hosts", type=int, help="of the scenario cluster (20); more than 60 report every 5 s")
    parser.add_argument("--keep", type=Path, help="a folder for the logs of the scenario cluster")
    parser.add_argument("--minutes", type=float, help="after which the scenario cluster makes no more faults")
    asked = parser.parse_args()
    outcomes = []
    more = {"hosts": asked.hosts, "keep": asked.keep, "minutes": asked.minutes}
    for name in asked.scenario or SCENARIOS:
        begun = time.monotonic()
        outcome = run_scenario(
            name, seed=asked.seed, short=asked.short, kills=asked.kills, more=more if name == "cluster" else {}
        )
        outcomes.append(outcome)
        print(f"{name}: {time.monotonic() - begun:.0f} s", *outcome.missed, sep="\n  ", file=sys.stderr, flush=True)
    print(render(outcomes))
    return int(any(outcome.missed for outcome in outcomes))


def run_scenario(
    name: str, *, seed: int = 20, short: bool = False, kills: int | None = None, more: Mapping[str, Any] | None = None
) -> Outcome:
    """In a folder of its own. One that breaks off has missed its target, and the others come all the same."""
    with tempfile.TemporaryDirectory(prefix=f"gpudeck-chaos-{name}-", ignore_cleanup_errors=True) as folder:
        try:
            number = kills or (5 if short else 50)
            return SCENARIOS[name](Path(folder), seed=seed, short=short, kills=number, **(more or {}))
        except Exception as error:
            figure = Figure("the scenario runs to its end", type(error).__name__, "yes", False)
            return Outcome(name, [figure], [traceback.format_exc()[-3000:]])


if __name__ == "__main__":
    sys.exit(main())
