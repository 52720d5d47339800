"""Backups: what is in one, what is refused, and that a restore changes everything or nothing."""

import contextlib
import gzip
import hashlib
import io
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec
import pytest

from gpudeck.auth.audit import Audit, AuditEntry
from gpudeck.database.engine import Database
from gpudeck.database.migrations import NEWEST
from gpudeck.history.embedded.tables import VERSION, open_to_write
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.ops.backup import (
    MANIFEST,
    NOTE,
    Manifest,
    describe_file,
    locked,
    make_backup,
    pack,
    record_restore,
    restore,
    unpack,
)
from gpudeck.ops.data_folder import lock_exclusively, lock_for_hub, use_database

Files = dict[str, bytes]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a hub left that has ended, with an account in its database."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    for name in ("GPUDECK_CONFIG", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpudeck.yaml").write_text("demo: never\n")
    fill(folder, "before")
    return folder


def fill(folder: Path, name: str) -> None:
    use_database(None, do_nothing)
    change(folder / "gpudeck.db", f"INSERT INTO accounts (name, role, created_at) VALUES ('{name}', 'admin', 1.0)")
    open_to_write(folder / "history.db").close()
    change(folder / "history.db", f"INSERT INTO words (text) VALUES ('{name}')")
    (folder / "agent.token").write_text(f"agent-{name}\n")
    (folder / "admin.token").write_text(f"admin-{name}\n")
    (folder / "hosts.yaml").write_text("- {name: gpu01, via: ssh}\n")


async def do_nothing(_database: object) -> None:
    """Opening it has made the tables."""


def change(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def ask(file: Path, question: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute(question)]


def accounts(folder: Path) -> list[str]:
    return ask(folder / "gpudeck.db", "SELECT name FROM accounts ORDER BY id")


def snapshot(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def contents(archive: Path) -> Files:
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]


def rewrite(archive: Path, **changes: object) -> None:
    """Another manifest, as somebody could write one by hand."""
    files = contents(archive)
    manifest = msgspec.json.decode(files[MANIFEST]) | changes
    write(archive, files | {MANIFEST: msgspec.json.encode(manifest)})


def write(archive: Path, files: Files) -> None:
    with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT) as opened:
        for name, body in files.items():
            add(opened, name, body)


def add(opened: tarfile.TarFile, name: str, body: bytes, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
    header = tarfile.TarInfo(name)
    header.size, header.type, header.linkname = len(body), kind, link
    opened.addfile(header, io.BytesIO(body))


def list_again(files: Files) -> Files:
    """The list made to fit the files, as whoever forges an archive would."""
    manifest = msgspec.json.decode(files[MANIFEST])
    manifest["files"] = [
        {"name": name, "size_bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
        if name != MANIFEST
    ]
    return files | {MANIFEST: msgspec.json.encode(manifest)}


def test_a_backup_has_everything_and_only_its_owner_can_read_it(data_dir: Path, tmp_path: Path) -> None:
    archive = tmp_path / "b.tar.gz"
    manifest = make_backup(archive, None)
    found = contents(archive)
    assert list(found) == [
        MANIFEST,
        "gpudeck.db",
        "history.db",
        "agent.token",
        "admin.token",
        "hosts.yaml",
        "gpudeck.yaml",
    ]
    assert found["agent.token"] == b"agent-before\n"
    assert (manifest.tables, manifest.history, manifest.database) == (NEWEST, VERSION, "sqlite")
    assert msgspec.json.decode(found[MANIFEST], type=Manifest) == manifest
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data", "gpudeck.yaml"]


def test_what_is_not_checkpointed_yet_is_in_the_backup(data_dir: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(data_dir / "gpudeck.db")) as held, held:
        held.execute("INSERT INTO accounts (name, role, created_at) VALUES ('in the wal', 'user', 2.0)")
        held.commit()
        assert (data_dir / "gpudeck.db-wal").stat().st_size > 0
        make_backup(tmp_path / "b.tar.gz", None)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "gpudeck.db").write_bytes(contents(tmp_path / "b.tar.gz")["gpudeck.db"])
    assert accounts(tmp_path / "copy") == ["before", "in the wal"]


def test_a_restore_brings_back_what_was_and_keeps_what_is(data_dir: Path, tmp_path: Path) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    fill(data_dir, "after")
    (data_dir / "hosts.yaml").unlink()
    restored = restore(tmp_path / "b.tar.gz", None)
    assert accounts(data_dir) == ["before"]
    assert ask(data_dir / "history.db", "SELECT text FROM words") == ["before"]
    assert (data_dir / "admin.token").read_text() == "admin-before\n"
    assert (data_dir / "hosts.yaml").exists()
    assert restored.aside is not None
    assert accounts(restored.aside) == ["before", "after"]
    assert (restored.aside / "admin.token").read_text() == "admin-after\n"
    assert restored.apart == []
    assert {stat.S_IMODE((data_dir / name).stat().st_mode) for name in ("gpudeck.db", "admin.token")} == {0o600}
    use_database(None, do_nothing)


def test_the_files_that_sqlite_has_beside_it_do_not_stay(data_dir: Path, tmp_path: Path) -> None:
    """With another database they would be damage."""
    make_backup(tmp_path / "b.tar.gz", None)
    (data_dir / "gpudeck.db-wal").write_bytes(b"of the old one")
    (data_dir / "gpudeck.db-shm").write_bytes(b"of the old one")
    restored = restore(tmp_path / "b.tar.gz", None)
    assert not list(data_dir.glob("gpudeck.db-*"))
    assert restored.aside is not None
    assert (restored.aside / "gpudeck.db-wal").read_bytes() == b"of the old one"


def test_on_a_new_machine_the_configuration_is_put_where_it_can_be_compared(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    (tmp_path / "gpudeck.yaml").unlink()
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path / "new"))
    restored = restore(tmp_path / "b.tar.gz", None)
    assert (restored.aside, restored.apart) == (None, [(tmp_path / "new" / "restored-gpudeck.yaml", None)])
    assert (tmp_path / "new" / "restored-gpudeck.yaml").read_text() == "demo: never\n"
    assert accounts(tmp_path / "new") == ["before"]


def test_a_token_file_elsewhere_is_backed_up_and_left_alone(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("token_file: elsewhere.token\n")
    (tmp_path / "elsewhere.token").write_text("first\n")
    make_backup(tmp_path / "b.tar.gz", None)
    (tmp_path / "elsewhere.token").write_text("second\n")
    restored = restore(tmp_path / "b.tar.gz", None)
    assert restored.apart == [(data_dir / "restored-agent.token", Path("elsewhere.token"))]
    assert (data_dir / "restored-agent.token").read_text() == "first\n"
    assert (tmp_path / "elsewhere.token").read_text() == "second\n"
    assert (data_dir / "agent.token").read_text() == "agent-before\n"


def test_a_backup_without_history_leaves_the_history_alone(data_dir: Path, tmp_path: Path) -> None:
    make_backup(tmp_path / "b.tar.gz", None, with_history=False)
    fill(data_dir, "after")
    restore(tmp_path / "b.tar.gz", None)
    assert accounts(data_dir) == ["before"]
    assert ask(data_dir / "history.db", "SELECT text FROM words ORDER BY id") == ["before", "after"]


def test_the_tables_of_postgresql_are_left_to_its_own_programs(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("database: postgresql://nowhere/gpudeck\n")
    manifest = make_backup(tmp_path / "b.tar.gz", None)
    assert "gpudeck.db" not in contents(tmp_path / "b.tar.gz")
    assert (manifest.database, manifest.tables, manifest.left_out) == ("postgresql", None, ["gpudeck.db"])
    (tmp_path / "gpudeck.yaml").write_text("demo: never\n")
    with pytest.raises(UsageError, match="of a hub with its tables on postgresql, and this one has them on sqlite"):
        restore(tmp_path / "b.tar.gz", None)


def test_a_hundred_backups_can_all_be_restored(tmp_path: Path) -> None:
    """How much `tarfile` writes after the last file depends on the sizes of all of them."""
    (tmp_path / "files").mkdir()
    for blocks in range(100):
        (tmp_path / "files" / "gpudeck.yaml").write_bytes(b"#" * (512 * blocks + 1))
        listed = [describe_file(tmp_path / "files" / "gpudeck.yaml")]
        manifest = Manifest(1, "1.0", 0.0, "hub", "sqlite", None, None, [], listed)
        with (tmp_path / "b.tar.gz").open("wb") as opened:
            pack(opened, manifest, tmp_path / "files")
        out = tmp_path / f"out{blocks}"
        out.mkdir()
        assert unpack(tmp_path / "b.tar.gz", out) == manifest


def test_an_archive_is_read_by_a_python_without_filters(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3.11.0 to 3.11.3, as on Debian 12."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    make_backup(tmp_path / "b.tar.gz", None)
    fill(data_dir, "after")
    restore(tmp_path / "b.tar.gz", None)
    assert accounts(data_dir) == ["before"]


def spoil_page(file: Path) -> None:
    """A page of it written over, as a disk does it. SQLite's own copy takes it as it is."""
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany("INSERT INTO words (text) VALUES (?)", [(f"word {n}" * 50,) for n in range(200)])
    with file.open("r+b") as opened:
        opened.seek(-4096, 2)
        opened.write(b"\xff" * 4096)


def test_a_backup_that_could_not_be_restored_is_not_made(data_dir: Path, tmp_path: Path) -> None:
    spoil_page(data_dir / "history.db")
    with pytest.raises(GpudeckError, match=r"was read back and cannot be restored: .*history\.db is damaged"):
        make_backup(tmp_path / "b.tar.gz", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "gpudeck.yaml"]
    make_backup(tmp_path / "b.tar.gz", None, with_history=False)


def test_what_was_not_written_as_it_should_be_is_noticed(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack_badly(target: IO[bytes], manifest: Manifest, folder: Path) -> None:
        (folder / "agent.token").write_bytes(b"x" * (folder / "agent.token").stat().st_size)
        pack(target, manifest, folder)

    monkeypatch.setattr("gpudeck.ops.backup.pack", pack_badly)
    with pytest.raises(GpudeckError, match=r"read back and cannot be restored: agent\.token in it is not what"):
        make_backup(tmp_path / "b.tar.gz", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "gpudeck.yaml"]


@pytest.mark.parametrize("body", [None, b"", b"no database" * 1000])
def test_a_hub_without_a_database_is_not_backed_up(data_dir: Path, tmp_path: Path, body: bytes | None) -> None:
    """Restored, it would leave a hub without accounts."""
    (data_dir / "gpudeck.db").unlink()
    if body is not None:
        (data_dir / "gpudeck.db").write_bytes(body)
    with pytest.raises(GpudeckError, match=r"gpudeck\.db|gpudeck_version"):
        make_backup(tmp_path / "b.tar.gz", None)
    assert not (tmp_path / "b.tar.gz").exists()


def test_no_backup_is_made_while_one_is_restored(data_dir: Path, tmp_path: Path) -> None:
    with lock_exclusively(data_dir), pytest.raises(UsageError, match=r"a backup is being restored .*Try again"):
        make_backup(tmp_path / "b.tar.gz", None)


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from gpudeck.ops import data_folder as exchange
from gpudeck.ops.backup import restore

def killed_at(step):
    count = itertools.count()
    def dies(work):
        def wrapped(*args, **options):
            if next(count) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **options)
        return wrapped
    for owner, name in ((Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (exchange.shutil, "rmtree")):
        setattr(owner, name, dies(getattr(owner, name)))
    restore(Path(sys.argv[1]), None)
    os._exit(0)

for step in itertools.count():
    if not (pid := os.fork()):
        os.environ["GPUDECK_DATA_DIR"] = f"{sys.argv[2]}-{step}"
        exchange.shutil.copytree(sys.argv[2], os.environ["GPUDECK_DATA_DIR"])
        killed_at(step)
    if os.waitpid(pid, 0)[1] == 0:
        break
"""


def test_a_restore_that_is_killed_leaves_the_old_or_the_new(data_dir: Path, tmp_path: Path) -> None:
    """At each step that changes a name, in a process of its own: only that can be killed."""
    make_backup(tmp_path / "b.tar.gz", None)
    fill(data_dir, "after")
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "b.tar.gz", data_dir], check=True, timeout=120)
    states = []
    for step in range(len(list(tmp_path.glob("data-*")))):
        folder = tmp_path / f"data-{step}"
        lock_for_hub(folder).close()  # as a hub does when it starts
        words = ask(folder / "history.db", "SELECT text FROM words ORDER BY id")
        assert accounts(folder) == words
        assert (folder / "admin.token").read_text() == f"admin-{words[-1]}\n"
        assert not list(folder.glob(".restor*"))
        states.append(words)
    assert states == sorted(states, key=len, reverse=True)
    assert (states[0], states[-2]) == (["before", "after"], ["before"])
    assert len(states) > 10


def test_what_a_killed_backup_left_is_gone_after_the_next_and_one_at_work_is_left_alone(
    data_dir: Path, tmp_path: Path
) -> None:
    killed = (
        "import os, signal; from pathlib import Path; from gpudeck.ops import backup; "
        "backup.open_backup = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
        "backup.make_backup(Path('b.tar.gz'), None)"
    )
    subprocess.run([sys.executable, "-c", killed], check=False, timeout=120)
    (left,) = tmp_path.glob(".gpudeck-backup-*")
    at_work = tmp_path / ".gpudeck-backup-other"
    at_work.mkdir()
    with locked(at_work):
        make_backup(tmp_path / "b.tar.gz", None)
    assert not left.exists()
    assert at_work.exists()


def test_a_restore_that_fails_leaves_no_new_data_folder(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.tar.gz").write_text("no backup")
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path / "srv" / "gpudeck"))
    with pytest.raises(GpudeckError, match="Nothing was changed"):
        restore(tmp_path / "b.tar.gz", None)
    assert not (tmp_path / "srv").exists()


def test_a_file_that_is_there_is_not_written_over(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("precious")
    with pytest.raises(UsageError, match="is there already"):
        make_backup(tmp_path / "b.tar.gz", None)
    assert (tmp_path / "b.tar.gz").read_text() == "precious"


def test_where_no_hub_ever_ran_there_is_no_backup(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"there is no hub's data in .*nothing"):
        make_backup(tmp_path / "b.tar.gz", None)
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_running_hub_is_not_restored_under(data_dir: Path, tmp_path: Path) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    with lock_for_hub(data_dir), lock_for_hub(data_dir):
        before = snapshot(data_dir)
        with pytest.raises(UsageError, match=r"a hub runs on .*Stop it first"):
            restore(tmp_path / "b.tar.gz", None)
        assert snapshot(data_dir) == before
    restore(tmp_path / "b.tar.gz", None)


def test_lock_ends_with_its_holder_even_if_a_child_process_has_the_descriptor(data_dir: Path) -> None:
    held = lock_for_hub(data_dir)
    descriptor = os.dup(held.fileno())  # as in a child process until it runs its program
    try:
        held.close()
        with lock_exclusively(data_dir):
            pass
    finally:
        os.close(descriptor)


def test_no_hub_starts_while_a_backup_is_restored(data_dir: Path) -> None:
    with lock_exclusively(data_dir), pytest.raises(UsageError, match="a backup is being restored"):
        lock_for_hub(data_dir)
    lock_for_hub(data_dir).close()


def test_no_command_changes_what_is_being_restored(data_dir: Path) -> None:
    with lock_exclusively(data_dir), pytest.raises(UsageError, match=r"a backup is being restored .*Try again"):
        use_database(None, do_nothing)
    use_database(None, do_nothing)


def test_nothing_is_restored_while_a_command_changes_it(data_dir: Path, tmp_path: Path) -> None:
    make_backup(tmp_path / "b.tar.gz", None)

    async def try_to_restore(_database: object) -> None:
        with pytest.raises(UsageError, match="a command is changing"):
            restore(tmp_path / "b.tar.gz", None)

    use_database(None, try_to_restore)


async def note_and_list(database: Database, data_dir: Path) -> list[AuditEntry]:
    audit = Audit(database)
    await record_restore(audit, data_dir)
    return [entry for entry in await audit.list() if entry.action == "restore backup"]


def test_a_hub_that_starts_after_a_restore_has_it_in_its_audit_log_once(data_dir: Path, tmp_path: Path) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    assert use_database(None, lambda database: note_and_list(database, data_dir)) == []
    restore(tmp_path / "b.tar.gz", None)
    assert stat.S_IMODE((data_dir / NOTE).stat().st_mode) == 0o600
    (entry,) = use_database(None, lambda database: note_and_list(database, data_dir))
    assert entry.who.endswith("on the hub's machine")
    assert entry.subject == f"backup of {socket.gethostname()}"
    assert "restored 20" in entry.details
    assert not (data_dir / NOTE).exists()
    assert use_database(None, lambda database: note_and_list(database, data_dir)) == [entry]


def test_a_note_that_makes_no_sense_keeps_no_hub_from_starting(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / NOTE).write_text("[]")
    assert use_database(None, lambda database: note_and_list(database, data_dir)) == []
    assert "does not say which" in caplog.text


def test_a_restore_that_fails_halfway_is_undone(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    fill(data_dir, "after")
    lock_for_hub(data_dir).close()
    before = snapshot(data_dir)
    real_rename = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if target == data_dir / "admin.token" and "before-restore" not in str(source):
            raise OSError(28, "No space left on device", str(target))
        return real_rename(source, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(GpudeckError, match=r"admin\.token cannot be read or written: no space left on device"):
        restore(tmp_path / "b.tar.gz", None)
    monkeypatch.undo()
    assert snapshot(data_dir) == before
    assert not list(data_dir.glob("before-restore-*"))


def put(name: str, body: bytes) -> Callable[[Path], None]:
    return lambda archive: write(archive, list_again(contents(archive) | {name: body}))


def append(name: str, body: bytes = b"") -> Callable[[Path], None]:
    """A member that the list does not have."""

    def work(archive: Path) -> None:
        files = contents(archive)
        with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT) as opened:
            for known, content in [*files.items(), (name, body)]:
                add(opened, known, content)

    return work


def swap(name: str, kind: bytes, link: str) -> Callable[[Path], None]:
    """A link where the list has a file."""

    def work(archive: Path) -> None:
        files = contents(archive)
        with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT) as opened:
            for known, content in files.items():
                add(opened, known, b"" if known == name else content, kind if known == name else tarfile.REGTYPE, link)

    return work


def cut(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-200])


def flip(archive: Path) -> None:
    """One byte of a token, with tar and gzip around it as they should be."""
    plain = gzip.decompress(archive.read_bytes())
    archive.write_bytes(gzip.compress(plain.replace(b"agent-before", b"agent-xefore")))


def bomb(archive: Path) -> None:
    """Ten kilobytes that unpack to ten megabytes after the list's end."""
    plain = gzip.decompress(archive.read_bytes())
    archive.write_bytes(gzip.compress(plain + bytes(10_000_000)))


def garbage_in_tar(archive: Path) -> None:
    """In place of the zeros at the end, which tarfile takes for the end of the archive."""
    plain = gzip.decompress(archive.read_bytes())
    end = -(-len(plain.rstrip(b"\0")) // 512) * 512  # of the last file's last block; how many zeros follow depends
    archive.write_bytes(gzip.compress(plain[:end] + b"garbage" + bytes(2041)))


def garbage_after_gzip(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes() + b"garbage")


def sparse(archive: Path) -> None:
    """A file that takes no room in the archive and any in the folder."""
    swap("agent.token", tarfile.GNUTYPE_SPARSE, "")(archive)


def extended_header(archive: Path) -> None:
    """A header that tarfile would read into memory whatever its size."""
    files = contents(archive)
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 100_000}) as opened:
        for name, body in files.items():
            add(opened, name, body)


def with_trigger(archive: Path) -> None:
    files = contents(archive)
    copy = archive.with_name("forged.db")
    copy.write_bytes(files["gpudeck.db"])
    change(copy, "CREATE TRIGGER t AFTER INSERT ON tokens BEGIN UPDATE accounts SET role = 'admin'; END")
    write(archive, list_again(files | {"gpudeck.db": copy.read_bytes()}))
    copy.unlink()


def without_tables(archive: Path) -> None:
    files = contents(archive)
    copy = archive.with_name("forged.db")
    copy.write_bytes(files["gpudeck.db"])
    change(copy, "DROP TABLE audit")
    write(archive, list_again(files | {"gpudeck.db": copy.read_bytes()}))
    copy.unlink()


def list_huge(archive: Path) -> None:
    files = contents(archive)
    manifest = msgspec.json.decode(files[MANIFEST])
    manifest["files"][1]["size_bytes"] = 2**59
    write(archive, files | {MANIFEST: msgspec.json.encode(manifest)})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda archive: archive.write_bytes(b""), "it is no backup, or damaged"),
        (lambda archive: archive.write_bytes(b"rubbish" * 1000), "it is no backup, or damaged"),
        (lambda archive: archive.write_bytes(gzip.compress(b"x" * 5000)), "it is no backup, or damaged"),
        (lambda archive: write(archive, {"a": b"1"}), "does not begin with manifest.json"),
        (lambda archive: write(archive, {MANIFEST: b"[]"}), "its manifest.json is invalid"),
        (lambda archive: write(archive, {MANIFEST: b"[" * 60_000}), "its manifest.json is invalid"),
        (lambda archive: write(archive, {MANIFEST: b" " * 70_000}), "does not begin with manifest.json"),
        (lambda archive: rewrite(archive, format=2, gpudeck="9.9"), r"from a newer gpudeck \(9\.9\)"),
        (lambda archive: rewrite(archive, tables="9999", gpudeck="9.9"), r"newer gpudeck \(9\.9\); install that"),
        (lambda archive: rewrite(archive, history=99, gpudeck="9.9"), r"newer gpudeck \(9\.9\); install that"),
        (lambda archive: rewrite(archive, tables="0001"), "gpudeck.db is of another version than listed"),
        (lambda archive: rewrite(archive, files=[]), "holds more than it lists"),
        (put("../../etc/cron.d/x", b"* * * * * root sh"), "which is no part of a backup"),
        (put("/etc/passwd", b"root::0:0"), "which is no part of a backup"),
        (put("gpudeck.db", b"no database" * 1000), "a database in it cannot be used"),
        (put("hosts.yaml", b"- [nonsense"), "its hosts.yaml is invalid"),
        (append("../escaped"), "holds more than it lists"),
        (append("agent.token", b"other\n"), "holds more than it lists"),
        (swap("agent.token", tarfile.SYMTYPE, "/etc/passwd"), "'agent.token' in it is no plain file"),
        (swap("agent.token", tarfile.LNKTYPE, "gpudeck.db"), "'agent.token' in it is no plain file"),
        (swap("agent.token", tarfile.DIRTYPE, ""), "'agent.token' in it is no plain file"),
        (swap("agent.token", tarfile.FIFOTYPE, ""), "'agent.token' in it is no plain file"),
        (extended_header, "is no plain file"),
        (sparse, "'agent.token' in it is no plain file"),
        (garbage_in_tar, "holds more than it lists"),
        (garbage_after_gzip, "it is no backup, or damaged"),
        (cut, "it is no backup, or damaged"),
        (flip, "agent.token in it is not what was put in"),
        (bomb, "holds more than it lists"),
        (list_huge, "MiB are free"),
        (with_trigger, "the trigger t"),
        (without_tables, "gpudeck.db has no table audit"),
    ],
)  # fmt: skip
def test_what_is_no_honest_backup_changes_nothing(
    data_dir: Path, tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    make_backup(tmp_path / "b.tar.gz", None)
    spoil(tmp_path / "b.tar.gz")
    lock_for_hub(data_dir).close()
    before = snapshot(tmp_path)
    with pytest.raises(GpudeckError, match=told):
        restore(tmp_path / "b.tar.gz", None)
    assert snapshot(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data", "gpudeck.yaml"]
