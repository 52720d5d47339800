"""That a backup was restored goes into the audit log that came with it: noted in a file by the restore, which may have
tables of an older version before it, and recorded by the hub when it starts."""

import logging
import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.app.backup_archive import Manifest
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller

log = logging.getLogger(__name__)

NOTE = "restored.json"


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
