"""Hosts that were added at run time, on the page or with `gpudeck hosts add`. Stored in the data folder."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import yaml

from gpudeck.agent.token_file import replace_file
from gpudeck.discovery.inputs import Provider
from gpudeck.discovery.static import HostEntry
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target

log = logging.getLogger(__name__)

ORIGIN = "hosts added here"
_HEAD = "# Hosts added on the page or with `gpudeck hosts add`. The hub writes this file: stop it before you edit.\n"


class ManagedHostList(msgspec.Struct, frozen=True):
    """All hosts that were added, and when the last change was."""

    changed_at: float
    entries: list[HostEntry]


class ManagedHosts(Provider):
    """The added hosts, as a provider of discovery: `find` answers at once the first time, and then at each change."""

    origin = ORIGIN
    pause = 0.0

    def __init__(self, file: Path) -> None:
        """Raises UsageError for an invalid file."""
        self._file = file
        self._entries = _read_entries(file)
        self._unreported = 1
        self._on_change: Callable[[ManagedHostList], None] | None = None
        self._changed = asyncio.Event()
        self._changed.set()

    async def find(self) -> list[Target]:
        await self._changed.wait()
        self._unreported -= 1
        if not self._unreported:
            self._changed.clear()
        return self.targets()

    def targets(self) -> list[Target]:
        return [target for entry in self._entries for target in entry.targets(ORIGIN)]

    def add(self, entry: HostEntry) -> None:
        """Raises OSError."""
        self._change([*self._entries, entry])

    def remove(self, names: Collection[str]) -> bool:
        """Whether one of them was there. A range loses those hosts alone. Raises OSError."""
        left: list[HostEntry] = []
        for entry in self._entries:
            own = [target.name for target in entry.targets(ORIGIN)]
            if not any(name in names for name in own):
                left.append(entry)
            else:
                left += [msgspec.structs.replace(entry, name=other) for other in own if other not in names]
        if left == self._entries:
            return False
        self._change(left)
        return True

    def _change(self, entries: list[HostEntry]) -> None:
        self._write(entries)
        self._notify()
        if self._on_change is not None:
            self._on_change(self.all)

    def call_with_changes(self, on_change: Callable[["ManagedHostList"], None]) -> None:
        """`on_change` is called with all of them after each change here: other hubs have the same."""
        self._on_change = on_change

    @property
    def all(self) -> "ManagedHostList":
        try:
            return ManagedHostList(self._file.stat().st_mtime, self._entries)
        except OSError:
            return ManagedHostList(0.0, self._entries)

    def adopt(self, added: "ManagedHostList") -> None:
        if added.changed_at <= self.all.changed_at or added.entries == self._entries:
            return
        try:
            self._write(added.entries)
            os.utime(self._file, (added.changed_at, added.changed_at))
        except OSError:
            log.exception("%s does not have the hosts that were added on another hub", self._file)
            return
        self._notify()

    def _notify(self) -> None:
        self._unreported = 2  # an empty list counts only when it is reported twice
        self._changed.set()

    def _write(self, entries: list[HostEntry]) -> None:
        plain = [_without_defaults(entry) for entry in entries]
        replace_file(self._file, (_HEAD + yaml.safe_dump(plain, sort_keys=False)).encode())
        self._entries = entries


def _without_defaults(entry: HostEntry) -> dict[str, object]:
    defaults = HostEntry(entry.name)
    plain = msgspec.to_builtins(entry)
    return {key: value for key, value in plain.items() if key in {"name", "via"} or value != getattr(defaults, key)}


def _read_entries(file: Path) -> list[HostEntry]:
    try:
        written = yaml.safe_load(file.read_text()) or []
        return msgspec.convert(written, list[HostEntry])
    except FileNotFoundError:
        return []
    except (OSError, UnicodeError, yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise UsageError(
            f"the added hosts in {file} cannot be read: {error}.", "Mend the file, or delete it."
        ) from error
