"""A fleet that behaves like a real lab, for the demo, the benchmarks and the tests. An ordinary collector.

The way through it: `inventory` says what stands there (`hardware`, `mishaps`), `jobs` who runs what and when
(`people`, `kinds`, `rhythm`), `phases` and `track` what a job does at a moment, `physics` and `energy` what a sensor
makes of that, `boards` what a GPU can tell at all (`reasons`), `system` what the host itself says; `gpus` and `station`
put it into a report. All chance comes from `chance`.
"""

from gpudeck.collectors.simulated.fleet import SimulatedFleet, SimulatedHost
from gpudeck.collectors.simulated.jobs import Run
from gpudeck.collectors.simulated.kinds import Kind

__all__ = ["Kind", "Run", "SimulatedFleet", "SimulatedHost"]
