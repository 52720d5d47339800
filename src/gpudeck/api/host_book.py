"""Adding and removing hosts while the hub runs: what the routes, the page and `gpudeck hosts add` call."""

import asyncio
import contextlib
import logging
import re
import shlex
from collections.abc import Callable, Collection
from typing import Annotated, Literal

from litestar.di import NamedDependency
from litestar.exceptions import ClientException, HTTPException, InternalServerException, ValidationException
from msgspec import Meta, Struct, field

from gpudeck.auth.token_rules import NAME_LENGTH
from gpudeck.auth.tokens import Tokens
from gpudeck.discovery.managed import ORIGIN, ManagedHosts
from gpudeck.discovery.static import HostEntry
from gpudeck.model.errors import UsageError
from gpudeck.model.report import Word
from gpudeck.model.target import AddedHosts, Target, Via

_Text = Annotated[str, Meta(min_length=1, max_length=1024)]
log = logging.getLogger(__name__)

_GONE_SECONDS = 5.0
"""Discovery looks at these hosts twice before it believes that none is left."""
_UNREACHABLE = "others cannot reach this hub yet: set `listen: :8042` and `read: open` in its gpudeck.yaml first"


_ADDRESS = re.compile(r"\w(?:[\w.-]*\w)?\.?|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(?:%[\w.-]+)?")
"""A name, or an address of IPv4 or IPv6. Names of other scripts are left to the name service."""
_USER = re.compile(r"[\w.@\\][\w.@$\\-]*")


class NewHost(Struct, frozen=True, forbid_unknown_fields=True):
    """A host to be watched, or a range such as gpu[01-16]. Only what its way in needs has to be given.

    No file of the hub's machine can be named here: keys, passwords and tokens are the configuration file's.
    """

    name: Annotated[str, Meta(min_length=1, max_length=253)]
    via: Via = "push"
    address: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    jump: _Text | None = None
    scheme: Literal["http", "https"] = "http"
    path: Annotated[str, Meta(max_length=1024, pattern="^/")] | None = None
    labels: Annotated[dict[Word, Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] = field(
        default_factory=dict
    )


class HostOrigin(Struct, frozen=True):
    """Who named a host: a file, a provider of discovery, an option, or somebody who added it (`is_added`). `origin`
    is None where nobody did, and the host reports by itself. One that is named elsewhere cannot be removed here."""

    id: str
    name: str
    origin: str | None
    is_added: bool


class HostOrigins(Struct, frozen=True):
    hosts: list[HostOrigin]


class _Conflict(ClientException):
    status_code = 409


class HostBook:
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
    for name in ("jump", "path"):
        if not _is_one_word(getattr(new, name) or ""):
            raise ValueError(f"{name} has blanks, or characters that cannot be shown")
    if not all(text.isprintable() for label in new.labels.items() for text in label):
        raise ValueError("labels have characters that cannot be shown")


def _is_one_word(text: str) -> bool:
    return text.isprintable() and not any(character.isspace() for character in text)


def _cannot_write(error: OSError) -> HTTPException:
    return InternalServerException(f"the hub's data folder cannot be written: {error.strerror or error}")


TheBook = NamedDependency[HostBook]
"""The book, as a route's parameter `book`."""
