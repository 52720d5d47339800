"""The hub's database for commands that are run on its machine: also before the hub ever ran, and while it runs."""

import asyncio
import contextlib
import getpass
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gpudeck.auth.caller import Caller
from gpudeck.database.engine import Database, open_database
from gpudeck.database.errors import Outdated
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.model.errors import UsageError
from gpudeck.ops.data_folder import alone, share
from gpudeck.settings import find_data_dir, load_settings

_T = TypeVar("_T")


def use_database(config: Path | None, work: Callable[[Database], Awaitable[_T]]) -> _T:
    """Do something with the database that the configuration names. Raises UsageError when it cannot be opened.

    Tables of an older gpudeck are updated only while no hub uses them. On a PostgreSQL server a hub on another machine
    may do so unseen: there they are left to the next start of a hub.
    """
    settings, _ = load_settings(config)
    folder = find_data_dir(settings)
    if settings.database is not None:
        return asyncio.run(_use(settings.database, folder, work))
    try:
        return _use_file(folder, work)
    except Outdated as outdated:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(alone(folder))
            except UsageError as error:
                raise outdated from error
            asyncio.run(_update(folder))
    return _use_file(folder, work)


def caller_here() -> Caller:
    """Whoever can write the hub's database may do everything, and is known to the machine alone."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return Caller(kind="local", role="admin", name=f"{user} on the hub's machine")


def _use_file(folder: Path, work: Callable[[Database], Awaitable[_T]]) -> _T:
    # A restore would take the file away from below it, and what is changed would be lost.
    with share(folder, "Try again when it is done."):
        if os.geteuid() == 0:
            _make_for_owner(folder)
        return asyncio.run(_use(None, folder, work))


async def _update(folder: Path) -> None:
    await (await open_database(None, folder)).close()


async def _use(address: str | None, folder: Path, work: Callable[[Database], Awaitable[_T]]) -> _T:
    database = await open_database(address, folder, changes_tables=False)
    try:
        return await work(database)
    finally:
        await database.close()


def _make_for_owner(folder: Path) -> None:
    """A new database that root makes belongs to the owner of its folder: a hub that runs as them could not open it.

    Where it is there already, or cannot be made, opening it is next, and tells what is wrong.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            owner = folder.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        finally:
            os.close(descriptor)
