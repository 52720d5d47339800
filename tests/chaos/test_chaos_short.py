"""What a hub promises when things fail around it: a short form of `make chaos`, side by side, since most of it waits.

Times are not judged here. Left to `make chaos`: clock steps while the hub runs, VictoriaMetrics, and huge pages.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from chaos.__main__ import run_scenario
from chaos.figures import Outcome

SCENARIOS = ("backlog", "mass_outage", "postgresql", "clock_start", "full_disk", "kills", "damage", "backups")
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Future[Outcome]]]:
    with ThreadPoolExecutor(4) as pool:
        yield {name: pool.submit(run_scenario, name, short=True) for name in SCENARIOS}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_hub_keeps_its_promises(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    outcome = outcomes[name].result()
    if outcome.not_run:
        pytest.skip(outcome.not_run)
    assert not outcome.missed, "\n".join([*outcome.missed, *outcome.notes])
