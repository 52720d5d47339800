"""The hosts that were added while the hub runs: on the page, or with `gpudeck hosts add`. Kept in the data folder."""

import asyncio
import contextlib
import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec
import yaml
from litestar.exceptions import ClientException, HTTPException, InternalServerException, ValidationException

from gpudeck.api.host_book import NewHost
from gpudeck.app.tokens import replace_file
from gpudeck.auth.token_rules import NAME_LENGTH
from gpudeck.auth.tokens import Tokens
from gpudeck.discovery.static import HostEntry
from gpudeck.model.errors import UsageError
from gpudeck.model.target import AddedHosts, Target

log = logging.getLogger(__name__)

ORIGIN = "hosts added here"
_HEAD = "# Hosts added on the page or with `gpudeck hosts add`. The hub writes this file: stop it before you edit.\n"
_GONE_SECONDS = 5.0
"""Discovery looks at these hosts twice before it believes that none is left."""
_UNREACHABLE = "others cannot reach this hub yet: set `listen: :8042` and `read: open` in its gpudeck.yaml first"


_ADDRESS = re.compile(r"\w(?:[\w.-]*\w)?\.?|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:%[\w.-]+)?")
"""A name, or an address of IPv4 or IPv6. Names of other scripts are left to the name service."""
_USER = re.compile(r"[\w.@\\][\w.@$\\-]*")


class _Conflict(ClientException):
    status_code = 409


class ManagedHosts:
    """The added hosts, as a provider of discovery: `find` answers at once the first time, and then at each change."""

    origin = ORIGIN
    pause = 0.0

    def __init__(self, file: Path) -> None:
        """Raises UsageError when the file is there and makes no sense."""
        self.problems: list[str] = []
        self._file = file
        self._entries = _read_entries(file)
        self._untold = 1
        self._changed = asyncio.Event()
        self._changed.set()

    async def find(self) -> list[Target]:
        await self._changed.wait()
        self._untold -= 1
        if not self._untold:
            self._changed.clear()
        return self.targets()

    async def close(self) -> None:
        """Nothing is open."""

    def targets(self) -> list[Target]:
        return [target for entry in self._entries for target in entry.targets(ORIGIN)]

    @contextlib.contextmanager
    def adding(self, entry: HostEntry) -> Iterator[None]:
        """Another host. It is written before the block, discovery hears of it after, and it is gone again if the block
        raises. Raises OSError."""
        with self._changing([*self._entries, entry]):
            yield

    @contextlib.contextmanager
    def removing(self, names: Collection[str]) -> Iterator[bool]:
        """Whether one of them was there. A range loses those hosts alone. Undone if the block raises. Raises
        OSError."""
        left = self._without(names)
        if left == self._entries:
            yield False
            return
        with self._changing(left):
            yield True

    @contextlib.contextmanager
    def _changing(self, entries: list[HostEntry]) -> Iterator[None]:
        before = self._entries
        self._write(entries)
        try:
            yield
        except BaseException:
            self._undo(before, entries)
            raise
        self._untold = 2  # a list that became empty is believed when it is told twice
        self._changed.set()

    def _undo(self, before: list[HostEntry], entries: list[HostEntry]) -> None:
        """What others changed meanwhile stays."""
        kept = [entry for entry in self._entries if entry in before or entry not in entries]
        try:
            self._write([*kept, *(entry for entry in before if entry not in entries)])
        except OSError:
            log.exception("%s has hosts that should not be there, or misses some", self._file)

    def _without(self, names: Collection[str]) -> list[HostEntry]:
        left: list[HostEntry] = []
        for entry in self._entries:
            own = [target.name for target in entry.targets(ORIGIN)]
            if not any(name in names for name in own):
                left.append(entry)
            else:
                left += [msgspec.structs.replace(entry, name=other) for other in own if other not in names]
        return left

    def _write(self, entries: list[HostEntry]) -> None:
        plain = [_without_defaults(entry) for entry in entries]
        replace_file(self._file, (_HEAD + yaml.safe_dump(plain, sort_keys=False)).encode())
        self._entries = entries


class Book:
    """What the API needs to add and remove hosts. `url` is the hub's address for other machines, None if they have
    none; `configured` finds the target of a name among all that discovery knows, and raises UsageError on a hub that
    watches nothing."""

    def __init__(
        self,
        managed: ManagedHosts,
        tokens: Tokens,
        configured: Callable[[str], Target | None],
        *,
        url: str | None,
        url_here: str,
    ) -> None:
        self._managed = managed
        self._tokens = tokens
        self._url = url
        self._url_here = url_here
        self._configured = configured

    async def add(self, new: NewHost, created_by: str) -> AddedHosts:
        try:
            entry = HostEntry(**{name: getattr(new, name) for name in NewHost.__struct_fields__})
            targets = entry.targets(ORIGIN)
            _check_place(new)
        except ValueError as error:
            raise ValidationException(str(error)) from error
        if new.via == "push" and len(targets) > 1:
            raise ValidationException("a token is for one host: add hosts that report by themselves one by one")
        for target in targets:
            self._check_free(target.name)
        try:
            with self._managed.adding(entry):
                token = await self._make_token(entry.name, created_by) if new.via == "push" else None
        except OSError as error:
            raise _cannot_write(error) from error
        names = [target.name for target in targets]
        if token is None:
            return AddedHosts(names, new.via)
        note = None if self._url else _UNREACHABLE
        return AddedHosts(names, new.via, token, self._command(entry.name, token), note)

    async def remove(self, name: str) -> bool:
        target = self._find(name)
        if target is not None and target.origin != ORIGIN:
            raise _Conflict(f"{name} is named by {target.origin}: take it out there")
        return await self._remove({name})

    async def remove_all(self, names: Collection[str]) -> None:
        await self._remove(frozenset(names))

    async def _remove(self, names: Collection[str]) -> bool:
        """Whether one of them had been added."""
        try:
            with self._managed.removing(names) as was_there:
                await self._tokens.revoke_of_hosts(names)
        except OSError as error:
            raise _cannot_write(error) from error
        if was_there:
            await self._wait_until_gone(names)
        return was_there

    async def _wait_until_gone(self, names: Collection[str]) -> None:
        """Whoever adds the host again at once is then not told that it is there, and adds it anew."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_SECONDS):
                # Discovery takes lists in a task of its own, and tells nobody when it has.
                while any(self.has(name) for name in names):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def _make_token(self, host: str, created_by: str) -> str:
        """In place of the one it had."""
        # A host's name may be longer than a token's.
        name = host[:NAME_LENGTH]
        _, secret = await self._tokens.create(name, "agent", hosts=host, created_by=created_by, is_only=True)
        return secret

    def origin_of(self, name: str) -> str | None:
        with contextlib.suppress(UsageError):
            target = self._configured(name)
            return target.origin if target is not None else None
        return None

    def has(self, name: str) -> bool:
        return self.origin_of(name) == ORIGIN

    def _check_free(self, name: str) -> None:
        target = self._find(name) or next((one for one in self._managed.targets() if one.name == name), None)
        if target is not None:
            raise _Conflict(f"{name} is there already, by {target.origin}")

    def _find(self, name: str) -> Target | None:
        try:
            return self._configured(name)
        except UsageError as error:
            raise _Conflict(str(error)) from error

    def _command(self, name: str, token: str) -> str:
        """One line for a shell on the new host. The token goes into a file, not into the list of processes."""
        folder, file = "~/.config/gpudeck", "~/.config/gpudeck/agent.token"
        url = self._url or self._url_here
        return (
            f"(umask 077; mkdir -p {folder}; echo {token} > {file}); "
            f"gpudeck agent --hub {shlex.quote(url)} --name {shlex.quote(name)} --token-file {file}"
        )


def _check_place(new: NewHost) -> None:
    """What is asked of the hub over the network names a place and no more: no login, no path, nothing that a terminal
    obeys. Raises ValueError."""
    if new.address is not None and not _ADDRESS.fullmatch(new.address):
        raise ValueError(f"address: {new.address[:100]!r} is neither a name nor an address of a host")
    if new.user is not None and not _USER.fullmatch(new.user):
        raise ValueError(f"user: {new.user[:100]!r} is no login")
    for field in ("jump", "path"):
        if not _is_one_word(getattr(new, field) or ""):
            raise ValueError(f"{field} has blanks, or characters that cannot be shown")
    if not all(text.isprintable() for label in new.labels.items() for text in label):
        raise ValueError("labels have characters that cannot be shown")


def _is_one_word(text: str) -> bool:
    return text.isprintable() and not any(character.isspace() for character in text)


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


def _cannot_write(error: OSError) -> HTTPException:
    return InternalServerException(f"the hub's data folder cannot be written: {error.strerror or error}")
