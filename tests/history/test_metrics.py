import pytest

from gpudeck.history.base import STATE_METRICS, USER_METRICS, HistoryRefused
from gpudeck.history.metrics import SUBJECTS, Subject, find_metric, names_for
from gpudeck.model.catalog import Rollup


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_name_that_is_offered_is_found(subject: Subject) -> None:
    assert [find_metric(name, subject).name for name in names_for(subject)] == list(names_for(subject))


def test_metric_of_the_host_goes_by_its_prefix_or_by_its_name_where_no_gpu_has_it() -> None:
    assert find_metric("host_cpu_percent", "host") == find_metric("cpu_percent", "host")
    assert find_metric("cpu_percent", "fleet").plain == "cpu_percent"
    assert not find_metric("memory_used_bytes", "host").is_of_host
    assert find_metric("host_memory_used_bytes", "host").is_of_host


def test_state_is_a_share_of_one_gpu_and_a_number_of_several() -> None:
    assert {find_metric(name, "gpu").unit for name in STATE_METRICS} == {"share"}
    assert {find_metric(name, "host").unit for name in STATE_METRICS} == {"gpus"}
    assert find_metric("gpus_busy", "gpu").rollup is Rollup.SUM


@pytest.mark.parametrize(
    ("name", "subject", "hint"),
    [
        ("utilisation_percent", "gpu", "Did you mean utilization_percent"),
        ("gpu_used", "user", "Did you mean gpus_used"),
        ("host_cpu_precent", "host", "Did you mean host_cpu_percent"),
        ("x", "user", ", ".join(sorted(USER_METRICS))),
        ("", "gpu", "It is one of: "),
        ("%00'; --", "fleet", "It is one of: "),
        ("z" * 100_000, "fleet", "It is one of: "),
    ],
)
def test_unknown_name_is_refused_with_those_that_are_near(name: str, subject: Subject, hint: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        find_metric(name, subject)
    assert refused.value.code == "unknown_metric"
    assert hint in refused.value.hint
    assert len(str(refused.value)) < 3_000


def test_metric_of_hosts_is_not_one_of_a_gpu_and_the_refusal_says_so() -> None:
    with pytest.raises(HistoryRefused, match="a metric of hosts, not of GPUs"):
        find_metric("host_cpu_percent", "gpu")
