"""Where time comes from. Parts that need to know the time take a `Clock`, so that a test can set it."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds: since 1970 for a `wall` clock, since the machine was booted for `boottime`."""

wall: Clock = time.time


def boottime() -> float:
    """Seconds since the machine was booted, time asleep included: nobody sets this clock. It is the same for all
    processes of one boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
