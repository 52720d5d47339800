"""A fleet that behaves like a real lab, for the demo, the benchmarks and the tests. An ordinary collector."""

from gpudeck.collectors.simulated.fleet import SimulatedFleet, SimulatedHost
from gpudeck.collectors.simulated.jobs import SimulatedJob
from gpudeck.collectors.simulated.work import Kind

__all__ = ["Kind", "SimulatedFleet", "SimulatedHost", "SimulatedJob"]
