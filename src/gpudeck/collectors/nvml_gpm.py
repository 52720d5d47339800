"""The activity of the engines of an NVIDIA GPU: NVML's GPU performance monitoring (GPM), on Hopper and newer.

Metrics are differences of two samples: each sample is compared with the one before. No profiler is locked out.
On an H200 with driver 580 a sample takes 0.3 ms, and the metrics of two samples 1.4 to 7.8 ms.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gpudeck.collectors.base import Measured, is_due
from gpudeck.collectors.nvml_device import FATAL, NEEDS_HOPPER, explain

BEING_MEASURED: Final = "being measured: it takes ten seconds"
NOT_WANTED: Final = "not measured: agent.activity is off"
OF_GPU_INSTANCE: Final = "measured on the GPU instance, not by compute instance"

_RESTART_SECONDS: Final = 60.0
"""Samples that are further apart are not compared: the result would not be current."""
_OVERSHOOT: Final = 101.0
"""The counters of a sample are read one after another: full load may come out as a little more."""
_MIB: Final = float(2**20)


class GpmMetric(NamedTuple):
    """`constant` is its id in pynvml, `scale` makes the catalog's unit of NVML's."""

    name: str
    constant: str
    scale: float = 1.0


OF_ENGINES: Final = (
    GpmMetric("sm_activity_percent", "SM_UTIL"),
    GpmMetric("sm_occupancy_percent", "SM_OCCUPANCY"),
    GpmMetric("tensor_activity_percent", "ANY_TENSOR_UTIL"),
    GpmMetric("dram_activity_percent", "DRAM_BW_UTIL"),
    GpmMetric("fp64_activity_percent", "FP64_UTIL"),
    GpmMetric("fp32_activity_percent", "FP32_UTIL"),
    GpmMetric("fp16_activity_percent", "FP16_UTIL"),
)
OF_LINKS: Final = (
    GpmMetric("nvlink_receive_bytes_per_second", "NVLINK_TOTAL_RX_PER_SEC", _MIB),
    GpmMetric("nvlink_transmit_bytes_per_second", "NVLINK_TOTAL_TX_PER_SEC", _MIB),
)
OF_BOARD: Final = (
    *OF_ENGINES,
    *OF_LINKS,
    GpmMetric("pcie_receive_bytes_per_second", "PCIE_RX_PER_SEC", _MIB),
    GpmMetric("pcie_transmit_bytes_per_second", "PCIE_TX_PER_SEC", _MIB),
)
OF_INSTANCE: Final = (GpmMetric("utilization_percent", "GRAPHICS_UTIL"), *OF_ENGINES)
"""Links and the bus are those of the whole board."""
BOARD_NAMES: Final = tuple(metric.name for metric in OF_BOARD)
INSTANCE_NAMES: Final = tuple(metric.name for metric in OF_INSTANCE)
ACTIVITY_NAMES: Final = tuple(metric.name for metric in (*OF_ENGINES, *OF_LINKS))
"""Metrics that only GPM measures."""


class GpmSamples:
    """The newest sample of a board or, with `gpu_instance`, of one of its MIG instances. To be closed before the driver
    is: a sample is memory of the driver's library."""

    def __init__(self, handle: Any, gpu_instance: int | None = None) -> None:
        self._handle, self._gpu_instance = handle, gpu_instance
        self._metrics = OF_BOARD if gpu_instance is None else OF_INSTANCE
        self._newest: Any = None
        self._spare: Any = None
        self._taken_at: float | None = None

    def measure(self, nvml: Any, now: float) -> Measured:
        """The activity since the last call. Raises NVMLError only with a code of FATAL."""
        try:
            self._take_sample(nvml)
            if is_due(self._taken_at, _RESTART_SECONDS, now):
                self._taken_at = now
                return self._unknown(BEING_MEASURED)
            self._taken_at = now
            return self._compare(nvml)
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            return self._unknown(explain(error))

    def close(self, nvml: Any) -> None:
        for sample in (self._newest, self._spare):
            if sample is not None:
                with contextlib.suppress(nvml.NVMLError):  # the driver may be gone
                    nvml.nvmlGpmSampleFree(sample)
        self._newest = self._spare = self._taken_at = None

    def _take_sample(self, nvml: Any) -> None:
        """Into the older of two buffers. One that fails leaves the newest as it was."""
        if self._spare is None:
            self._spare = nvml.nvmlGpmSampleAlloc()
        if self._gpu_instance is None:
            nvml.nvmlGpmSampleGet(self._handle, self._spare)
        else:
            nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, self._spare)
        self._newest, self._spare = self._spare, self._newest

    def _compare(self, nvml: Any) -> Measured:
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._spare, self._newest
        for place, metric in enumerate(self._metrics):
            request.metrics[place] = nvml.c_nvmlGpmMetric_t(getattr(nvml, f"NVML_GPM_METRIC_{metric.constant}"))
        nvml.nvmlGpmMetricsGet(request)
        measured = Measured({}, {})
        for metric, answer in zip(self._metrics, request.metrics, strict=False):
            if answer.nvmlReturn:
                measured.unknown[metric.name] = explain(nvml.NVMLError(answer.nvmlReturn))
            else:
                measured.take(metric.name, _limit(metric.name, answer.value * metric.scale))
        return measured

    def _unknown(self, reason: str) -> Measured:
        return Measured({}, dict.fromkeys((metric.name for metric in self._metrics), reason))


def _limit(name: str, value: float) -> float:
    return min(value, 100.0) if name.endswith("_percent") and value <= _OVERSHOOT else value


class ActivityWatch:
    """The activity of one board, or of its MIG instances, as it was last measured: `of_rows` is by UUID. `reason` is
    why nothing can be measured."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self.reason: str | None = None if is_wanted else NOT_WANTED
        self.of_rows: dict[str, Measured] = {}
        self._is_wanted = is_wanted
        self._samples: dict[str, GpmSamples] = {}

    def explore(self, nvml: Any, handle: Any) -> None:
        """Whether the board supports it. Raises NVMLError only with a code of FATAL."""
        if not self._is_wanted:
            return
        try:
            is_supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
            self.reason = None if is_supported else NEEDS_HOPPER
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self.reason = explain(error)

    def measure(self, nvml: Any, handle: Any, rows: Mapping[str, int | None], now: float) -> None:
        """`rows` are the board, with None, or the GPU instances of its MIG instances. What is no longer there is
        freed. Raises NVMLError only with a code of FATAL."""
        wanted = rows if self.reason is None else {}
        for uuid in self._samples.keys() - wanted.keys():
            self._samples.pop(uuid).close(nvml)
        for uuid in wanted.keys() - self._samples.keys():
            self._samples[uuid] = GpmSamples(handle, wanted[uuid])
        self.of_rows = {uuid: self._samples[uuid].measure(nvml, now) for uuid in wanted}

    def close(self, nvml: Any) -> None:
        for samples in self._samples.values():
            samples.close(nvml)
        self._samples = {}
