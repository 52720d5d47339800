"""What the series are called. Those of the catalog go by the names, and the units, of the hub's own /metrics page.

All have `host_id`, which the page's have not: a store that also scrapes the page holds both, and only these are asked.
What a GPU is doing is one sample with the value 1 in the series of that state, and none in the others: it costs as much
as a number would, and counting samples in a window tells both the share of each state and what was not observed.
"""

from typing import Final

from gpudeck.history.base import STATE_METRICS
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.exposition import USER_MEMORY as USER_MEMORY  # noqa: PLC0414 - one of these names too
from gpudeck.model.exposition import expose

GPU_SERIES: Final = tuple(expose(GPU_METRICS[name]) for name in GPU_NAMES)
HOST_SERIES: Final = tuple(expose(HOST_METRICS[name]) for name in HOST_NAMES)
STATE: Final = "gpudeck_gpu_state"
"""1, with the label `state`."""
OBSERVED: Final = "gpudeck_host_observed_seconds"
"""How many seconds the host's sample stands for."""
HELD: Final = "gpudeck_user_gpu_seconds_total"
WORKED: Final = "gpudeck_user_worked_seconds_total"
IDLE: Final = "gpudeck_user_idle_seconds_total"
ENERGY: Final = "gpudeck_user_energy_joules_total"
COUNTERS: Final = (HELD, WORKED, IDLE, ENERGY)
"""In this order wherever they stand together."""
OF_USERS: Final = {"gpus_used": HELD, "gpus_worked": WORKED, "gpus_idle": IDLE, "power_watts": ENERGY}
STATE_WORDS: Final = {name: name.removeprefix("gpus_") for name in STATE_METRICS}

_LONGEST = 512


def label_value(text: str) -> str:
    """As it is sent and asked for: what is no text is replaced, and what is absurdly long is cut off."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()
