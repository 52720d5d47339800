"""The hub's history file, for commands on the hub's machine."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace

from gpudeck.fleet.clock_monitor import write_certain
from gpudeck.history.base import HistoryRefused, SamplePage, SamplesQuery
from gpudeck.history.embedded.export import read_page
from gpudeck.history.embedded.repair import RepairReport, find_damage
from gpudeck.history.embedded.repair import repair as repair_file
from gpudeck.history.embedded.store import view_file
from gpudeck.history.embedded.tables import is_damage, open_to_read
from gpudeck.history.embedded.view import HistoryView
from gpudeck.history.export import make_encoder, sample_fields
from gpudeck.history.settings import DEMO_FILE, FILE
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.times import show_utc
from gpudeck.settings import choose_data_dir, load_settings


def find_path(file: Path | None, config: Path | None) -> Path:
    path = file or choose_data_dir(load_settings(config)[0]) / FILE
    if not path.is_file():
        demo = next(path.parent.glob(DEMO_FILE.format("*")), None) if file is None else None
        raise UsageError(
            f"there is no history in {path}.",
            "Name another file with --file, or the hub's configuration with --config."
            + (f" A demo's is in {demo}." if demo else ""),
        )
    return path


@contextmanager
def opened(file: Path | None, config: Path | None) -> Iterator[tuple[HistoryView, Path]]:
    """A view of that file, or of the hub's own. Raises UsageError if there is none, or if it cannot be read."""
    path = find_path(file, config)
    try:
        with view_file(path) as view:
            yield view, path
    except sqlite3.Error as error:
        raise _cannot_read(path, error) from error
    except HistoryRefused as error:
        raise UsageError(f"{error.message}.", error.hint) from error


def verify(path: Path) -> Iterator[str]:
    try:
        with closing(open_to_read(path)) as connection:
            connection.execute("BEGIN")
            for damage in find_damage(connection):
                yield damage.text
    except sqlite3.Error as error:
        if not is_damage(error):
            raise _cannot_read(path, error) from error
        yield f"the file: {error}"


def repair(path: Path) -> RepairReport:
    """Set the damaged parts of that file aside. Raises UsageError if a hub is running, or if it cannot be written."""
    try:
        return repair_file(path, time.time())
    except (sqlite3.Error, OSError, Temporary) as error:
        raise UsageError(f"{path} cannot be repaired: {error}.", "Nothing of it was deleted.") from error


def _cannot_read(path: Path, error: sqlite3.Error) -> UsageError:
    hint = "`gpudeck history verify` names what is damaged." if is_damage(error) else "May you read it?"
    return UsageError(f"{path} cannot be read: {error}.", f"Is it a history of gpudeck? {hint}")


def accept_clock(config: Path | None) -> str:
    """Record that this machine's clock is right; returns a message. Raises UsageError."""
    data_dir, now = choose_data_dir(load_settings(config)[0]), time.time()
    try:
        write_certain(data_dir, now)
    except OSError as error:
        raise UsageError(
            f"{data_dir} cannot be written: {(error.strerror or str(error)).lower()}.",
            "Name the hub's configuration with --config, and run this as the hub's user.",
        ) from error
    return show_utc(now)


def export(view: HistoryView, query: SamplesQuery) -> Iterator[str]:
    """Samples as CSV, in parts. Raises HistoryRefused."""
    encoder = make_encoder("csv", sample_fields(query.metrics))
    page = SamplePage([], None, 0.0)
    while page.share < 1.0:
        page = read_page(view, replace(query, after=page.next))
        yield encoder.add(page.columns).decode()
    yield encoder.finish().decode()
