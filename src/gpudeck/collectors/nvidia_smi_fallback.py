"""NVML first, and nvidia-smi where NVML cannot be used: both read the same GPUs, so only one of them may report.

nvidia-smi brings its own way to the driver. It helps where the Python package or the library cannot be loaded, and
where a driver breaks our reading of NVML. It costs a hundred times as much (0.1 s a reading on an H200, driver 580).
"""

import msgspec

from gpudeck.collectors.base import Collector
from gpudeck.model.errors import Absent, PluginError, Wrong
from gpudeck.model.report import Report

# While nvidia-smi does the work, NVML is tried again only now and then: it was not there, or broken.
_AGAIN_SECONDS = 60.0


class NvidiaFallback:
    """GPUs as `first` reads them, or else as `second` does; then the report says so among its problems.

    `second` is asked when `first` is Absent or Wrong. A driver that does not answer, or not us (Temporary, Refused),
    would not answer nvidia-smi either, and one more process would hang. What `first` raised is raised again where
    `second` fails too. Closes both.
    """

    def __init__(self, first: Collector, second: Collector) -> None:
        self.name = first.name
        self._first = first
        self._second = second
        self._failure: PluginError | None = None
        self._failed_at = 0.0

    def collect(self, now: float) -> Report:
        failure, self._failure = self._failure, None
        if failure is None or abs(now - self._failed_at) >= _AGAIN_SECONDS:
            try:
                return self._first.collect(now)
            except (Absent, Wrong) as error:
                failure, self._failed_at = error, now
        return self._ask_second(now, failure)

    def close(self) -> None:
        self._first.close()
        self._second.close()

    def _ask_second(self, now: float, failure: PluginError) -> Report:
        try:
            report = self._second.collect(now)
        except PluginError as error:
            raise failure from error
        self._failure = failure
        return _gpus_only(report, f"NVIDIA GPUs are read through nvidia-smi, because NVML cannot be used: {failure}")


def _gpus_only(report: Report, problem: str) -> Report:
    """`report` without the host's figures: on this machine another collector reads them, and more of them."""
    return msgspec.structs.replace(
        report, metrics={}, unknown={}, os=None, labels={}, problems=[*report.problems, problem[:1000]]
    )
