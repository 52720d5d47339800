"""The catalog is consistent with itself, and what is made from it has its metrics."""

from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.catalog import CATALOG, GPU_METRICS, HOST_METRICS
from gpudeck.model.view import Gpu, Host


def test_a_metric_is_declared_once_a_scope() -> None:
    assert len({(metric.scope, metric.name) for metric in CATALOG}) == len(CATALOG)


def test_views_have_a_field_for_every_metric() -> None:
    assert set(GPU_METRICS) <= set(Gpu.__struct_fields__)
    assert set(HOST_METRICS) <= set(Host.__struct_fields__)


@given(st.sampled_from(CATALOG), st.floats(0, 1))
def test_rounding_stays_within_half_a_step(metric: object, share: float) -> None:
    value = metric.low + share * (metric.high - metric.low)  # type: ignore[attr-defined]
    rounded = metric.round(value)  # type: ignore[attr-defined]
    assert abs(rounded - value) <= metric.precision / 2 * (1 + 1e-6) + abs(value) * 1e-12  # type: ignore[attr-defined]
