"""A fleet that behaves like a real lab, for the demo, the benchmarks and the tests. An ordinary collector.

`inventory` has the hardware, the hosts and what is wrong with them, `work` the kinds of jobs and the users, `jobs` the
timeline of each host, `physics` what a job does at a moment and what sensors make of it, `gpus` and `fleet` the
reports. All randomness comes from `chance`.
"""

from gpudeck.collectors.simulated.fleet import SimulatedFleet, SimulatedHost
from gpudeck.collectors.simulated.jobs import SimulatedJob
from gpudeck.collectors.simulated.work import Kind

__all__ = ["Kind", "SimulatedFleet", "SimulatedHost", "SimulatedJob"]
