"""Sums over GPUs, put into the steps of an answer."""

import numpy as np
import pytest

from gpudeck.history.aggregation import fold_totals, wanted_for
from gpudeck.history.metrics import find_metric
from gpudeck.history.totals import stack_totals


@pytest.mark.parametrize("metric", ["gpus_free", "gpus_busy", "utilization_percent", "power_watts"])
def test_a_past_without_a_single_step_is_empty_and_no_mistake(metric: str) -> None:
    found = find_metric(metric, "fleet")
    stack = stack_totals({}, wanted_for(found), 900)
    folded = fold_totals(stack, found, 1_790_000_000.0, np.array([], dtype=np.int64), 4)
    assert np.isnan(folded.lows).all()
    assert folded.seconds.tolist() == [0.0] * 4
