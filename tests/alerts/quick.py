"""Settings under which the simulated lab's faults are told within seconds."""

import time

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.backfill import SEED

HOSTS = 8
MAX_TEST = 600
RULES = """
alerts:
  group_wait: 1s
  rules:
    gpu_lost: {for: 1s}
    ecc: {for: 1s}
    orphaned_memory: {for: 0s}
    disk_full: {for: 1s}
    gpu_hot: {for: 1s, clear_after: 1h}
    gpu_throttled: {enabled: false}
    host_down: {enabled: false}
    xid: {enabled: false}
"""
"""Without a line for `gpu_idle`: whoever writes this adds one."""


def is_gpu_lost() -> bool:
    """Whether a GPU of the lab is missing for as long as a test lasts. Every few days it is there for some minutes."""
    fleet, now = SimulatedFleet(HOSTS, SEED), time.time()
    moments = range(int(now), int(now) + MAX_TEST, 20)
    reports = [[fleet.report(number, float(at)) for number in range(HOSTS)] for at in moments]
    return all(any(gpu.missing for report in all_hosts if report for gpu in report.gpus or []) for all_hosts in reports)


def choose_rules() -> str:
    """`RULES`, without the lost GPU where it is not sure to be lost."""
    return RULES if is_gpu_lost() else RULES.replace("gpu_lost: {for: 1s}", "gpu_lost: {enabled: false}")
