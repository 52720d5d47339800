"""Messages until they arrive: once, whatever happens between, and no channel waits for another."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from alerts.notifiers.sinks import make_message
from fakes.tables import open_file, put_tables
from fakes.waiting import until
from gpudeck.alerts.notifiers import outbox as outboxes
from gpudeck.alerts.notifiers.outbox import MessageOutbox, OnFailure
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import Destination
from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.alerts.notifiers.store import OutboxStore
from gpudeck.database import sqlite
from gpudeck.database.engine import Database
from gpudeck.model.errors import GpudeckError, Refused, Temporary


class FakePost:
    """Takes messages, unless `trouble` says why not; `hangs` as long as it does."""

    def __init__(self, trouble: GpudeckError | None = None, *, hangs: bool = False) -> None:
        self.trouble = trouble
        self.hangs = hangs
        self.tries = 0
        self.taken: list[str] = []

    async def send(self, message: Message, account: str | None) -> None:
        self.tries += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.trouble is not None and (not isinstance(self.trouble, Unreached) or account == "eve"):
            raise self.trouble
        self.taken.append(f"{message.key} {account or ''}".strip())

    async def release(self) -> None: ...


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again at once, and what hangs is left soon."""
    monkeypatch.setattr(outboxes, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(outboxes, "MAX_PAUSE", 0.05)
    monkeypatch.setattr(outboxes, "MAX_REST", 0.05)
    monkeypatch.setattr(outboxes, "STOP_SECONDS", 0.5)


def run(
    database: Database,
    posts: dict[str, FakePost],
    work: Callable[[MessageOutbox], Awaitable[None]],
    *,
    give_up: float = 86_400.0,
    on_failure: OnFailure | None = None,
    fleet: str = "real",
) -> None:
    """An outbox from its start to its end; every message goes to all channels, and to its people through the first."""

    def find(message: Message) -> list[Destination]:
        names = list(posts)
        people = [Destination(names[0], account) for account in message.accounts]
        return people if message.is_personal else [Destination(name) for name in names] + people

    async def live() -> None:
        outbox = MessageOutbox(OutboxStore(database, fleet), posts, find, give_up=give_up, on_failure=on_failure)
        await outbox.open()
        outbox.start()
        try:
            await work(outbox)
        finally:
            await outbox.stop()

    asyncio.run(live())


def test_same_news_goes_to_a_place_once_also_after_a_restart(database: Database) -> None:
    post = FakePost()

    async def put_twice(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1"))
        outbox.put(make_message("news 1"))
        await until(lambda: post.taken)

    async def put_both(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1"))
        outbox.put(make_message("news 2"))
        await until(lambda: len(post.taken) > 1)

    run(database, {"ops": post}, put_twice)
    run(database, {"ops": post}, put_both)
    assert post.taken == ["news 1", "news 2"]


def test_each_fleet_has_its_own_messages(database: Database) -> None:
    post = FakePost()

    async def put(outbox: MessageOutbox) -> None:
        before = len(post.taken)
        outbox.put(make_message("news 1"))
        await until(lambda: len(post.taken) > before)

    run(database, {"ops": post}, put, fleet="demo-6")
    run(database, {"ops": post}, put)
    assert post.taken == ["news 1", "news 1"]


async def leave_behind(database: Database, claimed: float) -> None:
    """As a hub that is killed while it sends: the claim stays."""
    store, now = OutboxStore(database), time.time()
    await store.add([(make_message("news 1"), Destination("ops"))], now)
    assert await store.take("ops", now, now + claimed) is not None
    assert await store.take("ops", now, now + claimed) is None


def test_what_a_killed_hub_was_sending_is_sent_by_the_next(database: Database) -> None:
    post = FakePost()

    async def wait(_: MessageOutbox) -> None:
        await until(lambda: post.taken)

    # On a shared database another hub may be sending it still: until its claim is over.
    asyncio.run(leave_behind(database, {"sqlite": 3600.0, "postgresql": 0.5}[database.kind]))
    run(database, {"ops": post}, wait)
    assert post.taken == ["news 1"]


@pytest.mark.parametrize("trouble", ["failing", "refusing", "hanging"])
def test_channel_in_trouble_holds_no_other_up(database: Database, trouble: str) -> None:
    bad = {
        "failing": FakePost(Temporary("it has trouble.")),
        "refusing": FakePost(Refused("it refuses the token.")),
        "hanging": FakePost(hangs=True),
    }[trouble]
    good = FakePost()

    async def put(outbox: MessageOutbox) -> None:
        for number in range(20):
            outbox.put(make_message(f"news {number}"))
        await until(lambda: len(good.taken) == 20 and bad.tries)
        bad.hangs = False

    run(database, {"bad": bad, "good": good}, put)
    assert good.taken == [f"news {number}" for number in range(20)]
    assert bad.taken == []


def test_channel_that_recovers_gets_all_that_waited_and_its_problem_is_over(database: Database) -> None:
    post = FakePost(Temporary("it has trouble of its own."))
    problems = []

    async def put(outbox: MessageOutbox) -> None:
        for number in range(5):
            outbox.put(make_message(f"news {number}"))
        await until(lambda: outbox.problems)
        problems.extend(outbox.problems)
        post.trouble = None
        await until(lambda: len(post.taken) == 5)
        await until(lambda: outbox.waiting == {"ops": 0})
        assert outbox.problems == []
        assert outbox.counters["ops"]["sent"] == 5

    run(database, {"ops": post}, put)
    assert problems == ["the channel ops does not take messages: it has trouble of its own."]
    assert sorted(post.taken) == [f"news {number}" for number in range(5)]


def test_channel_that_fails_is_tried_with_one_message_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "FIRST_PAUSE", 60.0)
    monkeypatch.setattr(outboxes, "MAX_REST", 60.0)
    post = FakePost(Temporary("it has trouble."))

    async def put(outbox: MessageOutbox) -> None:
        for number in range(50):
            outbox.put(make_message(f"news {number}"))
        await outbox.flush()
        await until(lambda: post.tries)
        await until(lambda: outbox.waiting == {"ops": 50})

    run(database, {"ops": post}, put)
    assert post.tries == 1


def test_message_that_never_arrives_is_given_up_and_told(database: Database) -> None:
    post, told = FakePost(Refused("it does not know this address.")), list[tuple[Message, Destination, str]]()

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1"))
        await until(lambda: told)
        await until(lambda: outbox.waiting == {"ops": 0})
        assert outbox.problems == ["the channel ops does not take messages: 1 given up; it does not know this address."]
        assert outbox.counters["ops"]["given_up"] == 1

    run(database, {"ops": post}, put, give_up=0.2, on_failure=lambda *failure: told.append(failure))
    assert [(message.key, to.name, why) for message, to, why in told] == [
        ("news 1", "ops", "it does not know this address.")
    ]


def test_channel_that_is_back_gets_all_that_waited_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    post = FakePost(Temporary("it is away."))

    async def wait_long(self: OutboxStore, number: int, _: float, trouble: str) -> None:
        await self._change(number, due_at=time.time() + 3600, claimed_until=None, trouble=trouble)

    monkeypatch.setattr(OutboxStore, "note_trouble", wait_long)

    async def put(outbox: MessageOutbox) -> None:
        for number in range(3):
            outbox.put(make_message(f"news {number}"))
        await until(lambda: post.tries == 3)
        post.trouble = None
        outbox.put(make_message("news 3"))
        await until(lambda: len(post.taken) == 4)

    run(database, {"ops": post}, put)
    assert post.taken[0] == "news 3"
    assert sorted(post.taken) == [f"news {number}" for number in range(4)]


def test_channel_that_fails_is_asked_again_soon_and_a_person_who_cannot_be_reached_later(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many tries: what is for somebody else may be as old as it likes."""
    monkeypatch.setattr(outboxes, "MAX_PAUSE", 3600.0)
    monkeypatch.setattr(outboxes, "MAX_REST", 0.05)
    away, strict = FakePost(Temporary("it is away.")), FakePost(Unreached("it refuses the recipient."))

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1", accounts=("eve",), is_personal=True))
        outbox.put_to(make_message("news 2"), Destination("away"))
        await until(lambda: away.tries >= 20)

    run(database, {"strict": strict, "away": away}, put)
    assert 1 <= strict.tries < away.tries


def test_person_who_cannot_be_reached_stops_nobody_else(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "MAX_REST", 60.0)
    monkeypatch.setattr(outboxes, "FIRST_PAUSE", 60.0)
    post = FakePost(Unreached("it refuses the recipient."))

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1", accounts=("eve", "ada", "bob"), is_personal=True))
        await until(lambda: len(post.taken) == 2)
        assert outbox.problems == []

    run(database, {"mail": post}, put)
    assert sorted(post.taken) == ["news 1 ada", "news 1 bob"]


def test_channel_that_refuses_its_token_is_told_of_though_only_people_are_written_to(database: Database) -> None:
    post = FakePost(Refused("it refuses the token."))

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1", accounts=("ada",), is_personal=True))
        await until(lambda: outbox.problems)
        assert outbox.problems == ["the channel mail does not take messages: it refuses the token."]

    run(database, {"mail": post}, put)


@contextlib.asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """Another process writes to the file, and does not end."""
    other = sqlite3.connect(folder / sqlite.FILE_NAME, isolation_level=None, check_same_thread=False)
    with contextlib.closing(other):
        await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
        yield


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(outboxes, "RETRY_SECONDS", 0.05)
    put_tables(tmp_path)
    return open_file(tmp_path)


def test_messages_go_out_once_while_the_file_is_locked(file: Database, tmp_path: Path) -> None:
    post, slow = FakePost(), FakePost(Temporary("it is away."))

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1"))
        await until(lambda: len(post.taken) == 1)
        async with locked(tmp_path):
            outbox.put(make_message("news 1"))
            outbox.put(make_message("news 2"))
            await until(lambda: len(post.taken) == 2)
            assert outbox.problems[0] == "messages are kept in memory only: the hub's database does not take them now."
            with pytest.raises(Temporary):
                await outbox.flush()
        await until(lambda: not outbox.problems or "memory" not in outbox.problems[0])
        slow.trouble = None
        await until(lambda: len(slow.taken) == 2)

    async def again(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 2"))
        outbox.put(make_message("news 3"))
        await until(lambda: len(post.taken) == 3 == len(slow.taken))

    run(file, {"ops": post, "slow": slow}, put)
    run(file, {"ops": post, "slow": slow}, again)
    assert post.taken == ["news 1", "news 2", "news 3"]
    assert sorted(slow.taken) == post.taken


def test_message_that_arrived_as_the_file_was_locked_is_not_sent_again(
    file: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "CLAIM_SECONDS", 0.0)
    lock = contextlib.AsyncExitStack()

    class LockingPost(FakePost):
        async def send(self, message: Message, account: str | None) -> None:
            await super().send(message, account)
            if message.key == "news 1":
                await lock.enter_async_context(locked(tmp_path))

    post = LockingPost()

    async def put(outbox: MessageOutbox) -> None:
        outbox.put(make_message("news 1"))
        await until(lambda: post.taken)
        await asyncio.sleep(0.2)  # longer than its claim
        await lock.aclose()
        outbox.put(make_message("news 2"))
        await until(lambda: "news 2" in post.taken)
        await until(lambda: outbox.waiting == {"ops": 0})

    run(file, {"ops": post}, put)
    assert post.taken == ["news 1", "news 2"]


def test_message_to_a_channel_that_is_not_there_is_nobodys(database: Database) -> None:
    async def put(outbox: MessageOutbox) -> None:
        outbox.put_to(make_message("news 1"), Destination("gone"))
        await outbox.flush()
        assert outbox.waiting == {"ops": 0}

    post = FakePost()
    run(database, {"ops": post}, put)
    assert post.tries == 0
    assert asyncio.run(OutboxStore(database).next_due("gone")) is None
