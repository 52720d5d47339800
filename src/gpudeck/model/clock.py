"""Where time comes from. Parts that need to know the time take a `Clock`, so that a test can set it."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns Unix seconds."""

wall: Clock = time.time
