"""The interface of a collector, its settings, the registry of GPU collectors, and the parts that all of them use.
`package.module:factory` names a collector that is not built in."""

import importlib
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from gpudeck.collectors.redaction import Commands
from gpudeck.model.catalog import GPU_METRICS, Rollup
from gpudeck.model.errors import UsageError
from gpudeck.model.plugins import Plugin, find_plugins
from gpudeck.model.report import Number, Report

DISPLAY_SERVERS = (
    *("X", "Xorg", "Xvnc", "Xwayland"),
    *("cinnamon", "compiz", "cosmic-comp", "gnome-shell", "Hyprland", "kwin_wayland", "kwin_x11", "labwc"),
    *("marco", "muffin", "mutter", "niri", "plasmashell", "sway", "weston", "xfwm4"),
    *("lightdm-gtk-greeter", "sddm-greeter"),
)
COLLECTORS: dict[str, str] = {
    "nvml": "gpudeck.collectors.nvml:make",
    "drm": "gpudeck.collectors.drm:make",
}
WORK_PERCENT = 5.0
WATCHED_SECONDS = 60.0
"""A longer gap between two readings was not watched: it does not count as idle time, nor does a jump of the clock."""

UNSUPPORTED = "not supported by this GPU"
NO_VALUE = "the driver gives no value"
NEEDS_TWO = "needs two readings"
WHOLE_BOARD = "measured on the whole board, not by MIG instance"
NO_INSTANCES = "in MIG mode, but without instances: nothing can run on it"
_LOADS = {name for name, metric in GPU_METRICS.items() if metric.unit == "percent"} - {"fan_percent"}
SHARED_BY_INSTANCES = frozenset(
    name for name, metric in GPU_METRICS.items() if metric.rollup is not Rollup.SUM and name not in _LOADS
)
"""The chip's temperature and clocks are every MIG instance's; a sum would count them once for each, and a load is that
of all instances together."""
# For every metric at every reading: a tuple instead of a metric's four attributes.
_RULES = {name: (m.low, m.high, m.precision == 1, m.round) for name, m in GPU_METRICS.items()}


class Collector(Protocol):
    """Reads one kind of thing on this machine.

    `collect` returns a partial report. It may block, but never sleeps. It raises Absent when there is nothing to read
    here, Temporary when it may work later, Refused when permissions are missing. A single device or value that cannot
    be read goes into the report as unknown, with its reason.
    """

    name: str

    def collect(self, now: float) -> Report: ...

    def close(self) -> None:
        return


class KubernetesSettings(Struct, frozen=True, omit_defaults=True):
    """Which information the agent reads on a node of Kubernetes."""

    socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """The kubelet's PodResources socket. It is read if its folder exists; empty: never."""
    user_label: str | None = None
    """The label or annotation of a pod that names its user, such as hub.jupyter.org/username. All who may create pods
    may write it."""


class CollectorSettings(Struct, frozen=True, omit_defaults=True):
    """What is sent about processes, and which expensive values are read."""

    commands: Commands = "redacted"
    """How much of a process's command line leaves this machine: full, redacted (secrets hidden), its name, or none."""
    display_servers: list[str] = field(default_factory=lambda: list(DISPLAY_SERVERS))
    """Programs that draw the desktop: with graphics alone on a GPU they do not make it busy."""
    activity: bool = True
    """Whether the activity of SMs, tensor cores, memory and links is measured on NVIDIA GPUs, Hopper and newer.
    It takes up to 8 ms a GPU, every ten seconds."""
    pcie_throughput: bool = False
    """Whether the PCIe traffic of NVIDIA GPUs is read where `activity` does not measure it: it takes 40 ms a GPU, every
    ten seconds."""
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    """Which pods have been given GPUs."""


def display_matcher(display_servers: Iterable[str]) -> Callable[[str], bool]:
    """Whether a program draws the desktop, by its name: the kernel keeps 15 bytes of it."""
    names = frozenset(name[:15] for name in display_servers)
    return lambda name: name[:15] in names


Factory = Callable[[CollectorSettings], Collector]


def find_collector_plugin(name: str) -> Plugin | None:
    """The plugin that brings this collector; None for a built-in one."""
    return None if name in COLLECTORS else find_plugins("collectors").get(name)


def find_factory(name: str) -> Factory:
    """Imports the collector's module. Raises UsageError if there is none, Wrong for a plugin that cannot be loaded."""
    made: Factory
    if plugin := find_collector_plugin(name):
        made = plugin.load()
        return made
    module_name, _, factory_name = COLLECTORS.get(name, name).partition(":")
    try:
        made = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"There is no collector {name!r}: {error}.", f"Known: {', '.join(COLLECTORS)}.") from error
    return made


def plugin_names() -> list[str]:
    """The names of the collectors of installed plugins."""
    return [name for name in find_plugins("collectors") if name not in COLLECTORS]


def is_due(last: float | None, seconds: float, now: float) -> bool:
    """Whether `seconds` have passed since `last`. A clock that was set back makes everything due."""
    return last is None or abs(now - last) >= seconds


class Measured(NamedTuple):
    """Metrics with their values, rounded as the catalog says, and the unknown ones with their reasons."""

    metrics: dict[str, Number]
    unknown: dict[str, str]

    def take(self, name: str, value: Number | None, reason: str = NO_VALUE) -> None:
        """Set a metric of a GPU. None and values out of range, such as a driver's "not available", become unknown."""
        low, high, is_whole, round_ = _RULES[name]
        if value is None or not low <= value <= high:
            self.unknown[name] = reason
            self.metrics.pop(name, None)
        else:
            self.metrics[name] = value if is_whole and type(value) is int else round_(value)
            self.unknown.pop(name, None)

    def add_up_memory(self, used: list[int | None]) -> None:
        """Use the sum of the processes if the driver has no figure, as for a GPU that shares the host's memory."""
        known = [memory for memory in used if memory is not None]
        if known and len(known) == len(used) and self.unknown.get("memory_used_bytes") in {UNSUPPORTED, NO_VALUE}:
            self.take("memory_used_bytes", sum(known))


class IdleWatch:
    """Seconds without work by GPU. Gaps between readings do not count."""

    def __init__(self) -> None:
        self._idle_seconds: dict[str, float] = {}
        self._read_at: dict[str, float] = {}

    def track(self, uuid: str, utilization_percent: float | None, now: float) -> float | None:
        """How long there was no work; None, and from the start again, where the utilization is unknown."""
        watched = min(max(0.0, now - self._read_at.get(uuid, now)), WATCHED_SECONDS)
        idle = 0.0
        if utilization_percent is not None and utilization_percent < WORK_PERCENT:
            idle = self._idle_seconds.get(uuid, 0.0) + watched
        self._idle_seconds[uuid], self._read_at[uuid] = idle, now
        return None if utilization_percent is None else round(idle, 1)


class ProcessStarts:
    """When processes started, kept stable where each reading knows it only roughly ("has been running for")."""

    def __init__(self, jitter_seconds: float) -> None:
        self._jitter = jitter_seconds
        self._kept: dict[tuple[int, str | None], float] = {}
        self._seen: dict[tuple[int, str | None], float] = {}

    def settle(self, pid: int, user: str | None, started_at: float) -> float:
        kept = self._kept.get((pid, user), started_at)
        self._seen[pid, user] = kept if abs(kept - started_at) < self._jitter else started_at
        return self._seen[pid, user]

    def end_reading(self) -> None:
        self._kept, self._seen = self._seen, {}
