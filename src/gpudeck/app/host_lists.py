"""The lists of hosts that the settings name. When other settings count, a list that they name as well goes on as it is:
nobody looks away from its hosts."""

from collections.abc import Sequence

from gpudeck.compat.ways import make_providers as make_compat_providers
from gpudeck.discovery.base import Provider
from gpudeck.discovery.registry import PROVIDERS, DiscoverySettings, make_providers
from gpudeck.discovery.static import HostEntry
from gpudeck.settings import Settings


class HostLists:
    """`first` are lists that count before those of the settings, `last` those that count after them. `origin` is what
    the file is called that names hosts by itself."""

    def __init__(self, settings: Settings, origin: str, *, first: Sequence[Provider], last: Sequence[Provider]) -> None:
        self._origin = origin
        self._first = first
        self._last = [*make_compat_providers(settings.compat), *last]
        self._named: list[tuple[object, Provider]] = []
        self.change(settings)

    @property
    def providers(self) -> list[Provider]:
        return [*self._first, *(provider for _, provider in self._named), *self._last]

    def change(self, settings: Settings) -> None:
        """What `hosts` and `discovery` name from now on. Opens nothing, closes nothing."""
        wanted: list[object] = [settings.hosts] if settings.hosts else []
        wanted += [(name, entry) for name in PROVIDERS for entry in getattr(settings.discovery, name)]
        before = list(self._named)
        self._named = [_take_out(before, key) or (key, self._make(key)) for key in wanted]

    def _make(self, key: object) -> Provider:
        hosts: list[HostEntry] = key if isinstance(key, list) else []
        discovery = DiscoverySettings(**{key[0]: [key[1]]}) if isinstance(key, tuple) else DiscoverySettings()
        (provider,) = make_providers(hosts, discovery, self._origin)
        return provider


def _take_out(known: list[tuple[object, Provider]], key: object) -> tuple[object, Provider] | None:
    """The same list twice is two lists."""
    found = next((one for one in known if one[0] == key), None)
    if found is not None:
        known.remove(found)
    return found
