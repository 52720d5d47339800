"""The hub's own files and its port, as they are on this machine, whether it runs or not."""

import os
import shutil
import socket
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gpudeck.history.settings import DEMO_FILE, FILE
from gpudeck.model.address import open_socket
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Address
from gpudeck.ops.doctor import Area, Finding
from gpudeck.server.tls import make_context, validity_problem
from gpudeck.settings import Settings, choose_data_dir

_AREA = Area("hub")
_DATABASE = "gpudeck.db"
_ROOM_WARN, _ROOM_FAIL = 2 * 1024**3, 200 * 1024**2
_CHECKED_WHOLE = 256 * 1024**2
"""A larger file is only opened: to read all of it may take minutes."""
_RESTORE = "Stop the hub, and restore a backup with gpudeck restore (docs/database.md)."


def check_hub_files(settings: Settings) -> Iterator[Finding]:
    folder = choose_data_dir(settings)
    yield check_port(settings.listen)
    finding = check_folder(folder)
    yield finding
    if finding.verdict != "fail":
        yield check_room(folder)
        yield from check_secrets(folder)
        yield check_database(settings, folder)
        yield check_history(settings, folder)
    if settings.tls is not None:
        yield check_certificate(Path(settings.tls.cert_file).expanduser(), Path(settings.tls.key_file).expanduser())


def check_port(listen: Address) -> Finding:
    """A port in use is right if the hub itself listens there: the listener is asked."""
    try:
        open_socket(listen).close()
    except UsageError as error:
        if _answers(listen):
            return _AREA.ok("port", f"a program listens on {listen}")
        return _AREA.fail("port", error.message.rstrip("."), error.hint)
    return _AREA.warn("port", f"no hub listens on {listen}", "Start it with gpudeck up, or as a service.")


def _answers(listen: Address) -> bool:
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104
    try:
        socket.create_connection((host, listen.port), timeout=3).close()
    except OSError:
        return False
    return True


def check_folder(folder: Path) -> Finding:
    if not folder.is_dir():
        return _AREA.fail("data folder", f"{folder} does not exist", "Start the hub once, or correct data_dir.")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        step = f"Run this as the hub's user, or make that user the owner: chown -R USER {folder}"
        return _AREA.fail("data folder", f"this user cannot write to {folder}", step)
    return _AREA.ok("data folder", f"{folder} is writable")


def check_room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    told = f"{free / 1024**3:.1f} GiB are free on the disk of {folder}"
    step = "Free some space there, lower history.max_size, or move data_dir."
    if free < _ROOM_FAIL:
        return _AREA.fail("disk", told, step)
    return _AREA.warn("disk", told, step) if free < _ROOM_WARN else _AREA.ok("disk", told)


def check_secrets(folder: Path) -> Iterator[Finding]:
    for file in (folder / "agent.token", folder / "admin.token", folder / _DATABASE):
        if file.exists() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o007:
            told = f"every user of this machine can read {file} (mode {mode:04o})"
            yield _AREA.fail("secrets", told, f"chmod 600 {file}; if others use this machine, create new tokens.")


def check_database(settings: Settings, folder: Path) -> Finding:
    if settings.database is not None:
        return _AREA.skip("database", "it is on a PostgreSQL server, and is checked through the running hub")
    file = folder / _DATABASE
    if not file.exists():
        return _AREA.skip("database", f"there is none yet in {folder}", "The hub creates it at its start.")
    try:
        version = _inspect(file, "SELECT version_num FROM gpudeck_version")
    except sqlite3.Error as error:
        return _AREA.fail("database", f"{file} cannot be read: {error}", _RESTORE)
    return judge_version(file, version, _newest_version())


def judge_version(file: Path, found: str, newest: str | None) -> Finding:
    if newest is not None and found > newest:
        told = f"{file} is from a newer gpudeck: version {found}, this one knows {newest}"
        return _AREA.fail(
            "database", told, "Install that version again, or restore the backup from before the upgrade."
        )
    if newest is not None and found < newest:
        told = f"{file} has version {found}, this gpudeck has {newest}"
        return _AREA.warn("database", told, "The hub upgrades it at its next start, and keeps a copy.")
    return _AREA.ok("database", f"{file} is intact (version {found})")


def _newest_version() -> str | None:
    """None on an install without the hub's parts."""
    try:
        from gpudeck.database.migrations import NEWEST  # noqa: PLC0415 - a base install has no SQLAlchemy
    except ImportError:
        return None
    return NEWEST


def check_history(settings: Settings, folder: Path) -> Finding:
    if settings.history.kind != "embedded":
        return _AREA.skip("history", f"its kind is {settings.history.kind}, which is checked through the running hub")
    file, what = folder / FILE, ""
    if not file.exists():
        demos = sorted(folder.glob(DEMO_FILE.format("*")), key=lambda demo: demo.stat().st_mtime)
        if not demos:
            return _AREA.skip("history", f"there is none yet in {folder}", "The hub creates it at its start.")
        file, what = demos[-1], f": the simulated history of a demo; {FILE} is created with the first real host"
    try:
        _inspect(file, "SELECT count(*) FROM sqlite_master")
    except sqlite3.Error as error:
        step = f"Stop the hub, and run gpudeck history verify --file {file}, or move the file away for a new history."
        return _AREA.fail("history", f"{file} cannot be read: {error}", step)
    return _AREA.ok("history", f"{file} is intact, {file.stat().st_size / 1024**2:.1f} MiB{what}")


def _inspect(file: Path, question: str) -> str:
    """What the file answers, once it was found sound. Raises sqlite3.Error. Changes nothing."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
        if file.stat().st_size <= _CHECKED_WHOLE:
            (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(" ".join(said.split()))
        found = connection.execute(question).fetchone()
        return str(found[0]) if found else ""


def check_certificate(cert_file: Path, key_file: Path) -> Finding:
    try:
        make_context(cert_file, key_file)
    except UsageError as error:
        return _AREA.fail("certificate", error.message, error.hint or "Name other files in the section tls.")
    problem = validity_problem(cert_file, key_file)
    if problem is None:
        return _AREA.ok("certificate", f"{cert_file} is valid, and does not expire soon")
    judge = _AREA.warn if "expires in" in problem else _AREA.fail
    return judge("certificate", problem, "Renew it. The hub reads the new file without a restart.")
