"""Settings under which the simulated lab's faults are told within seconds."""

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
