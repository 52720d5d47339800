"""`my runs`: the asker's own, under all of their logins, and nobody else's."""

import asyncio
from pathlib import Path

from fakes.chats import ADA, BOB, Lab
from fakes.store import FakeStore
from gpudeck.chat.bot import Question
from gpudeck.chat.commands import Command, read_command
from gpudeck.history.base import RunsQuery, VerdictQuery


def test_words_for_it() -> None:
    assert [read_command(text) for text in ("my runs", "Runs", "MY RUNS")] == [Command("runs")] * 3


def test_each_run_has_its_verdict_and_one_suggestion(tmp_path: Path) -> None:
    store = FakeStore()
    lab = Lab(tmp_path, history=store)
    answer = asyncio.run(lab.bot.answer(Question(text="my runs", slack_id=ADA)))
    assert answer is not None
    assert answer.is_private
    lines = answer.blocks[0]["text"]["text"].splitlines()
    assert lines[0] == "*Your newest runs*"
    assert lines[1].startswith("🔴 *gpu01:0*")
    assert lines[1].endswith("running: poor")
    assert lines[2].strip() == "It was idle: 72 % of 2h. End it."
    assert {one.user for one in store.asked if isinstance(one, RunsQuery)} == {"ada"}
    assert [one.run for one in store.asked if isinstance(one, VerdictQuery)] == [7]


def test_the_logins_of_a_user_are_asked_about_not_the_account(tmp_path: Path) -> None:
    store = FakeStore()
    asyncio.run(Lab(tmp_path, history=store).bot.answer(Question(text="my runs", slack_id=BOB)))
    assert {one.user for one in store.asked if isinstance(one, RunsQuery)} == {"bobby"}


def test_who_is_unknown_has_no_runs(tmp_path: Path) -> None:
    store = FakeStore()
    answer = asyncio.run(Lab(tmp_path, history=store).bot.answer(Question(text="my runs", slack_id="U0EVE0000")))
    assert answer is not None
    assert "I do not know you yet" in answer.blocks[0]["text"]["text"]
    assert store.asked == []
