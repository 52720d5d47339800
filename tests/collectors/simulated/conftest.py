"""A fleet of the demo's size. Its answers depend on the moment alone, so all tests may share it."""

import pytest

from gpudeck.collectors.simulated import SimulatedFleet


@pytest.fixture(scope="session")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(24, seed=1)
