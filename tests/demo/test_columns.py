"""A host's columns are what its reports say, moment by moment."""

import numpy as np
import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.columns import SampledGpus, read_columns
from gpudeck.demo.past import DAY, HOUR, Slice, sample_span
from gpudeck.history.codec import Floats
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, HostSample, Values

NOON = 1_760_356_800.0
HOSTS = 24


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(HOSTS, seed=1)


def at(metrics: dict[str, Floats], names: tuple[str, ...], place: int) -> Values:
    values = [float(metrics[name][place]) if name in metrics else np.nan for name in names]
    return tuple(None if np.isnan(value) else value for value in values)


def processes_at(gpu: SampledGpus, place: int) -> list[tuple[object, ...]]:
    found = []
    for run in gpu.runs:
        own = place - run.places.start
        if 0 <= own < len(run.present) and run.present[own]:
            percent = run.utilization[own]
            found.append((run.pid, run.job.user, run.memory[own], None if np.isnan(percent) else percent))
    return sorted(found)


def shown(sample: HostSample) -> list[tuple[object, ...]]:
    return [
        (
            gpu.state,
            gpu.values,
            sorted((one.pid, one.user, one.memory_bytes, one.utilization_percent) for one in gpu.processes or ()),
        )
        for gpu in sample.gpus
    ]


@pytest.mark.parametrize(
    ("host", "span"),
    [
        *((host, Slice(NOON, NOON + DAY, 900.0)) for host in range(HOSTS)),
        *((host, Slice(NOON + 7 * DAY, NOON + 7 * DAY + HOUR, 13.0)) for host in (1, 2, 3, 6, 8)),
    ],
)
def test_columns_are_what_reports_say(fleet: SimulatedFleet, host: int, span: Slice) -> None:
    past = sample_span(fleet, host, span)
    columns = read_columns(fleet.station(host), np.array([sample.at for sample in past]))
    for place, sample in enumerate(past):
        assert at(columns.metrics, HOST_NAMES, place) == sample.values
        found = [
            (gpu.states[place], at(gpu.metrics, GPU_NAMES, place), processes_at(gpu, place)) for gpu in columns.gpus
        ]
        assert found == shown(sample)
