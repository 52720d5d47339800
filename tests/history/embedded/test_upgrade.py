import shutil
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.history.base import Ask, RunsAsk, UsageAsk
from gpudeck.history.embedded.check import find_damage
from gpudeck.history.embedded.store import EmbeddedStore, view_file
from gpudeck.history.settings import HistorySettings
from history.embedded.feeding import START

GOLDEN = Path(__file__).parents[1] / "golden" / "history-v1.db"
HOUR = 3600.0


def test_history_of_the_first_version_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    shutil.copy(GOLDEN, path)
    store = EmbeddedStore(path, HistorySettings(min_free=0), FakeClock(START + 2 * HOUR))
    rows = store.usage(UsageAsk("user", START, START + 2 * HOUR)).rows
    assert {row.user: round(row.gpu_hours, 3) for row in rows} == {"alice": 0.083, "bob": 0.083, "carol": 0.033}
    answer = store.series(Ask("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=4))
    assert [point[1] for point in answer.series[0].points] == [pytest.approx(50.0)] * 4
    assert [(run.user, run.pid) for run in store.runs(RunsAsk()).runs] == [("carol", 9), ("bob", 8), ("alice", 7)]
    store.close()
    with view_file(path) as view:
        assert list(find_damage(view.connection)) == []
