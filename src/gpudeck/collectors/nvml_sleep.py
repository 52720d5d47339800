"""NVIDIA GPUs of laptops and other hybrid machines, which the kernel puts to sleep while unused.

Any call of NVML wakes them, and while it is asked on every beat they do not fall asleep. So NVML is left alone while
all of them sleep, and closed when they have been unused for a minute. NVML touches every GPU when it is opened: where
one is in use, those beside it that sleep are woken. The GPUs of servers never sleep (power/control is `on`): there all
this costs one small file every five seconds.

What is looked at, in sysfs and in /proc/driver/nvidia, wakes nothing.
"""

from gpudeck.collectors.base import is_due
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.sysfs import list_names, read_if_there, read_word
from gpudeck.model.report import GpuReading

ASLEEP = "asleep: reading it would wake it"
IDLE_SECONDS = 60.0
"""NVML is closed after all GPUs have been unused for so long, so that they can fall asleep."""
REST_SECONDS = 20.0
"""So long they are given to do so."""
AGAIN_SECONDS = 3600.0
"""After this long it is tried again where they did not."""

# A little less than five seconds and a minute, so that a beat that comes a moment early is not left out.
_LOOK_SECONDS = 4.5
_LIST_SECONDS = 59.5
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"
_STAYS_AWAKE = ("disabled", "not supported")
_LENGTH = 256


class SleepWatch:
    """Whether NVML may be called now. Nothing here raises or waits. `root` is where /sys and /proc are.

    Before a reading ask `keeps_away`. After it ask `wants_rest`; if so, close NVML and say `begin_rest`.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._addresses: list[str] = []
        self._listed_at: float | None = None
        self._looked_at: float | None = None
        self._is_asleep = False
        self._unused_since: float | None = None
        self._rest_began_at: float | None = None
        self._tried_at: float | None = None
        self._patience = IDLE_SECONDS
        self._users_then = 0

    def keeps_away(self, now: float) -> bool:
        """Whether all GPUs sleep, or NVML was closed for them to fall asleep and is still unused."""
        if self._rest_began_at is not None:
            return self._is_at_rest(now, self._rest_began_at)
        if self._is_asleep or is_due(self._looked_at, _LOOK_SECONDS, now):
            self._look(now)
        return self._is_asleep

    def wants_rest(self, in_use: bool, now: float) -> bool:
        """Whether NVML is to be closed after this reading. `in_use`: a GPU is, or may be, in use."""
        if in_use or self._unused_since is None or self._unused_since > now:
            self._unused_since = None if in_use else now
            return False
        if now - self._unused_since < IDLE_SECONDS or not is_due(self._tried_at, self._patience, now):
            return False
        self._tried_at, self._patience = now, IDLE_SECONDS
        return self._can_fall_asleep()

    def begin_rest(self, now: float) -> None:
        """NVML is closed: any use of the driver from here on is by other programs."""
        self._rest_began_at, self._users_then = now, self._count_users() or 0

    def find_gpus(self) -> list[GpuReading]:
        """All of them as the kernel knows them while they sleep, or none where it does not know them all: it has UUIDs
        after their first use. Their indexes are those of NVML, which counts by PCI address."""
        found = [self._identify(index, address) for index, address in enumerate(self._addresses)]
        gpus = [gpu for gpu in found if gpu is not None]
        return gpus if len(gpus) == len(found) else []

    def find_driver_version(self) -> str | None:
        return read_word(f"{self._root}/sys/module/nvidia/version")[:_LENGTH] or None

    def allow_waking(self) -> None:
        """They are about to be read all the same."""
        self._is_asleep = False

    def _look(self, now: float) -> None:
        self._looked_at = now
        if is_due(self._listed_at, _LIST_SECONDS, now):
            self._addresses, self._listed_at = self._list_addresses(), now
        self._is_asleep = bool(self._addresses) and self._have_all("power/runtime_status", "suspended")
        if self._is_asleep:
            self._unused_since = None

    def _is_at_rest(self, now: float, began_at: float) -> bool:
        self._look(now)
        users = self._count_users()
        is_in_use = users is None or users > self._users_then
        is_too_long = not 0 <= now - began_at < REST_SECONDS
        if not self._is_asleep and not is_in_use and not is_too_long:
            return True
        self._rest_began_at = self._unused_since = None
        if is_too_long and not self._is_asleep:
            self._tried_at, self._patience = now, AGAIN_SECONDS
        return self._is_asleep

    def _can_fall_asleep(self) -> bool:
        """Whether the kernel may and the driver can put them to sleep, and a new user would be seen."""
        return (
            bool(self._addresses)
            and self._have_all("power/control", "auto")
            and not any(self._stays_awake(address) for address in self._addresses)
            and self._count_users() is not None
        )

    def _have_all(self, name: str, word: str) -> bool:
        return all(self._read(address, name) == word for address in self._addresses)

    def _stays_awake(self, address: str) -> bool:
        """As the driver says ("Runtime D3 status: Disabled by default"); older ones say nothing."""
        return self._describe(address, "power").get("runtime d3 status", "").lower().startswith(_STAYS_AWAKE)

    def _list_addresses(self) -> list[str]:
        """Those that the NVIDIA driver has: one that was given to a virtual machine is no concern of NVML's."""
        return [
            address
            for address in list_names(f"{self._root}/proc/driver/nvidia/gpus")
            if self._read(address, "vendor") == _NVIDIA and self._read(address, "class").startswith(_DISPLAY_CLASS)
        ]

    def _read(self, address: str, name: str) -> str:
        return read_word(f"{self._root}/sys/bus/pci/devices/{address}/{name}")

    def _count_users(self) -> int | None:
        """How many files of the driver are open, others that build upon it included; None where unknown."""
        users = read_word(f"{self._root}/sys/module/nvidia/refcnt")
        return int(users[:18]) if users.isdecimal() else None

    def _identify(self, index: int, address: str) -> GpuReading | None:
        lines = self._describe(address, "information")
        uuid, name = lines.get("gpu uuid", ""), lines.get("model", "")
        # Before a GPU was first used the driver writes question marks.
        if not uuid or "?" in uuid:
            return None
        return GpuReading(uuid, index, name or "NVIDIA GPU", "nvidia", pci_address=address)

    def _describe(self, address: str, name: str) -> dict[str, str]:
        """The lines `Name: value` of one of the driver's files, the names in small letters."""
        text = read_if_there(f"{self._root}/proc/driver/nvidia/gpus/{address}/{name}")
        pairs = [line.partition(":") for line in text.splitlines()]
        return {key.strip().lower(): clean(value).strip()[:_LENGTH] for key, _, value in pairs}
