"""Put a backup in place of what a stopped hub has. All of the archive is checked first; what was there is kept.

The restore is recorded in the audit log that came with the backup: noted in a file first, as the tables may be of an
older version, and recorded by the hub when it starts.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.ops.backup_archive import AGENT_TOKEN, CONFIG, NAMES, BadBackup, Manifest, open_backup
from gpudeck.ops.data_folder import FILE as LOCK
from gpudeck.ops.data_folder import alone, exchange, staging
from gpudeck.ops.own_database import caller_here
from gpudeck.settings import Settings, choose_data_dir, find_data_dir, find_token_file, load_settings

log = logging.getLogger(__name__)

NOTE = "restored.json"


class Restored(Struct, frozen=True):
    """`aside` is where that lies which was there before, None where nothing was. `apart` are files of the archive that
    lie in the data folder under a name of their own, with the place that they are for, if there is one: a person
    decides about those."""

    manifest: Manifest
    data_dir: Path
    aside: Path | None
    apart: list[tuple[Path, Path | None]]


def restore(file: Path, config: Path | None) -> Restored:
    """Blocks. Raises GpudeckError; then everything is as it was."""
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    try:
        with _made_for_good(settings, data_dir), alone(data_dir), staging(data_dir) as stage:
            manifest = open_backup(file, stage)
            _check_kind(manifest, settings, file)
            elsewhere = _places_elsewhere(settings, config_file)
            apart = _set_apart(stage, elsewhere)
            names = [name for name in NAMES if name not in elsewhere and name not in manifest.left_out]
            write_note(stage, manifest, caller_here().name)
            aside = exchange(data_dir, [*names, NOTE, *(path.name for path, _ in apart)])
    except BadBackup as error:
        raise GpudeckError(f"{file} cannot be restored: {error.message}.", "Nothing was changed.") from error
    except OSError as error:
        raise GpudeckError(
            f"{error.filename or file} cannot be read or written: {(error.strerror or str(error)).lower()}.",
            "Nothing was changed.",
        ) from error
    return Restored(manifest, data_dir, aside, [(data_dir / path.name, place) for path, place in apart])


@contextlib.contextmanager
def _made_for_good(settings: Settings, data_dir: Path) -> Iterator[None]:
    """The data folder, made if it is not there: one that was made here is gone again when this fails."""
    made = [folder for folder in (data_dir, *data_dir.parents) if not folder.exists()]
    try:
        find_data_dir(settings)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if made:
                (data_dir / LOCK).unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()
        raise


def _check_kind(manifest: Manifest, settings: Settings, file: Path) -> None:
    here = "sqlite" if settings.database is None else "postgresql"
    if manifest.database != here:
        raise UsageError(
            f"{file} is of a hub with its tables on {manifest.database}, and this one has them on {here}.",
            "Set `database` in gpudeck.yaml as it was there.",
        )


def _places_elsewhere(settings: Settings, config: Path | None) -> dict[str, Path | None]:
    """Files that do not lie in the data folder. They are other people's to change: often they are in /etc."""
    places: dict[str, Path | None] = {CONFIG: config}
    return places | ({AGENT_TOKEN: find_token_file(settings.token_file)} if settings.token_file else {})


def _set_apart(stage: Path, places: dict[str, Path | None]) -> list[tuple[Path, Path | None]]:
    """Give those a name under which nothing reads them; what is the same in its place already is not needed."""
    apart = []
    for name, place in places.items():
        file = stage / name
        if not file.exists():
            continue
        if place is not None and _is_same(file, place):
            file.unlink()
            continue
        apart.append((file.rename(stage / f"restored-{name}"), place))
    return apart


def _is_same(file: Path, other: Path) -> bool:
    try:
        return other.read_bytes() == file.read_bytes()
    except OSError:
        return False


class RestoreNote(Struct, frozen=True):
    """`who` restored it and when, and of which hub it was. Times are in Unix seconds."""

    who: str
    restored_at: float
    made_at: float
    host: str
    gpudeck: str


def write_note(folder: Path, manifest: Manifest, who: str) -> None:
    """Raises OSError."""
    note = RestoreNote(who, time.time(), manifest.made_at, manifest.host, manifest.gpudeck)
    descriptor = os.open(folder / NOTE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(note))


async def record_restore(audit: Audit, data_dir: Path) -> None:
    """Does nothing where there is no note. One that cannot be read is told in the log, and left."""
    file = data_dir / NOTE
    try:
        note = msgspec.json.decode(file.read_bytes(), type=RestoreNote)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        log.warning("a backup was restored, and %s does not say which: %s", file, error)
        return
    details = f"made {_write(note.made_at)} by gpudeck {note.gpudeck}, restored {_write(note.restored_at)}"
    caller = Caller(kind="local", role="admin", name=note.who)
    await audit.record(caller, "restore backup", f"backup of {note.host}", details=details)
    file.unlink(missing_ok=True)


def _write(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
