"""The past of a host is taken once, however often it is imported and however old it is."""

import json
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

from compat.vesta.test_history_import import BEGIN, FakeClient, make_database, stored_rows
from fakes.vesta import VestaHub, make_post
from gpudeck.compat.importing import ImportContext, ImportResult, ImportTarget, apply_steps, check_steps
from gpudeck.compat.vesta import import_database as importer
from gpudeck.compat.vesta.import_database import read
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.model.errors import GpudeckError

LATER = (BEGIN + timedelta(days=400)).timestamp()
"""Long after the history has let go of single samples from then."""
MACHINES = [("abc1", "gpu1", "")]


class EndingClient(FakeClient):
    """A hub that goes away after so many posts."""

    def __init__(self, vesta: VestaHub, posts: int) -> None:
        super().__init__(vesta)
        self._left = posts

    def post(self, path: str, told: dict[str, Any]) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise GpudeckError("the hub is gone.")
        return super().post(path, told)


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "ROWS_AT_ONCE", 10)


@pytest.fixture
def here() -> ImportContext:
    return ImportContext(LATER, UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(tmp_path / "history.db", now=lambda: LATER)
    yield opened
    opened.close()


@pytest.fixture
def vesta(tmp_path: Path, store: EmbeddedStore) -> VestaHub:
    return open_hub(tmp_path, store)


def open_hub(folder: Path, store: EmbeddedStore, **options: Any) -> VestaHub:
    hub = VestaHub(folder, history=store, **options)
    hub.clock.now = LATER
    return hub


def carry(file: Path, here: ImportContext, client: FakeClient) -> ImportResult:
    """How the history of the one host in that database went."""
    *_, past = apply_steps(read(file, here).steps, ImportTarget(client))  # type: ignore[arg-type]
    return past


def count(store: EmbeddedStore) -> int:
    store.flush()
    return store.stats().samples_taken


def test_a_second_import_sends_nothing(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(30)}, MACHINES)
    assert carry(file, here, FakeClient(vesta)).outcome == "new"
    assert count(store) == 30
    vesta.start()
    again = carry(file, here, FakeClient(vesta))
    assert (again.outcome, again.detail) == ("there", "they were taken before, or are older than the history keeps")
    assert count(store) == 30


def test_only_what_was_stored_since_is_sent(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    carry(make_database(tmp_path / "a.db", {"gpu1": stored_rows(30)}, MACHINES), here, FakeClient(vesta))
    later = make_database(tmp_path / "b.db", {"gpu1": stored_rows(45)}, MACHINES)
    past = carry(later, here, FakeClient(vesta))
    assert (past.outcome, past.what) == (
        "new",
        "keep 15 samples of gpu1, 2026-11-10 12:30 to 2026-11-10 12:44 "
        "(30 older ones are there, or older than the history keeps)",
    )
    assert count(store) == 45


def test_rows_older_than_what_was_imported_are_not_taken(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    carry(make_database(tmp_path / "a.db", {"gpu1": stored_rows(30)[20:]}, MACHINES), here, FakeClient(vesta))
    older = make_database(tmp_path / "b.db", {"gpu1": stored_rows(30)[:25]}, MACHINES)
    assert carry(older, here, FakeClient(vesta)).outcome == "there"
    assert count(store) == 10


@pytest.mark.parametrize("posts", [1, 2, 3])
def test_an_import_that_ends_halfway_goes_on_where_it_stopped(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore, posts: int
) -> None:
    file = make_database(tmp_path / "a.db", {"gpu1": stored_rows(30)}, MACHINES)
    carry(file, here, EndingClient(vesta, posts + 1))
    before = count(store)
    assert before < 30
    longer = make_database(tmp_path / "b.db", {"gpu1": stored_rows(55)}, MACHINES)
    assert carry(longer, here, EndingClient(vesta, 3)).outcome == "failed"
    assert carry(longer, here, FakeClient(vesta)).outcome == "new"
    assert count(store) == 55


def test_what_is_older_than_the_history_keeps_is_told_and_not_sent(
    tmp_path: Path, here: ImportContext, store: EmbeddedStore
) -> None:
    edge = (BEGIN + timedelta(minutes=20)).timestamp()
    vesta = open_hub(tmp_path, store, keeps=LATER - edge)
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(30)}, MACHINES)
    words = (
        "keep 9 samples of gpu1, 2026-11-10 12:21 to 2026-11-10 12:29 "
        "(21 older ones are there, or older than the history keeps)"
    )
    *_, planned = check_steps(read(file, here).steps, ImportTarget(FakeClient(vesta)))  # type: ignore[arg-type]
    assert (planned.outcome, planned.what) == ("new", words)
    assert carry(file, here, FakeClient(vesta)).what == words
    assert count(store) == 9
    assert carry(file, here, FakeClient(vesta)).outcome == "there"


def test_a_past_that_is_too_old_altogether_needs_no_taking(
    tmp_path: Path, here: ImportContext, store: EmbeddedStore
) -> None:
    vesta = open_hub(tmp_path, store, keeps=3600.0)
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(5)}, MACHINES)
    past = carry(file, here, FakeClient(vesta))
    assert (past.outcome, past.detail) == ("there", "they were taken before, or are older than the history keeps")
    assert count(store) == 0


def test_what_is_not_on_the_disk_is_sent_again(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "FLUSH_ATTEMPTS", 1)
    monkeypatch.setattr(store, "flush", lambda *_: False)
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(5)}, MACHINES)
    assert carry(file, here, FakeClient(vesta)).outcome == "failed"
    monkeypatch.undo()
    assert carry(file, here, FakeClient(vesta)).outcome == "new"
    assert carry(file, here, FakeClient(vesta)).outcome == "there"


def test_a_row_in_the_future_hides_nothing_that_is_stored_until_then(
    tmp_path: Path, vesta: VestaHub, store: EmbeddedStore
) -> None:
    here = ImportContext((BEGIN + timedelta(minutes=20)).timestamp(), UTC)
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(40)}, MACHINES)
    assert carry(file, here, FakeClient(vesta)).outcome == "new"
    assert count(store) == 22
    assert carry(file, ImportContext(LATER, UTC), FakeClient(vesta)).outcome == "new"
    assert count(store) == 40


def test_rows_that_were_taken_are_not_taken_from_whoever_posts_them(vesta: VestaHub, store: EmbeddedStore) -> None:
    client = FakeClient(vesta)
    at = BEGIN.timestamp()
    body = {"id": "abc1", "name": "gpu1", "interval": 60.0, "rows": [[at, make_post()], [at + 60, make_post()]]}
    told = [json.loads(client.post("/api/v1/compat/vesta/import", body)) for _ in range(2)]
    assert [one["taken"] for one in told] == [2, 0]
    assert told[1]["since"] == at + 60
    assert count(store) == 2


def test_the_past_of_a_sender_that_registered_anew_is_its_past(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    vesta.post(vesta.add("gpu1")["id"], make_post(2))
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(30)}, MACHINES)
    sender, past = apply_steps(read(file, here).steps, ImportTarget(FakeClient(vesta)))  # type: ignore[arg-type]
    assert (sender.outcome, sender.detail) == ("there", "gpu1 is registered")
    assert past.outcome == "new"
    assert count(store) == 30
    assert carry(file, here, FakeClient(vesta)).outcome == "there"
