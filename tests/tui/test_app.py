"""Top as people have it, driven by Textual's pilot: keys, sizes, a stream that breaks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from textual.pilot import Pilot

from fakes import waiting
from fakes.tops import FakeFeed, delta_of, some_fleet
from gpudeck.tui.app import Canvas, TopApp
from gpudeck.tui.feed import FeedLost


def seen(app: TopApp) -> str:
    """What is on the screen."""
    canvas = app.query_one(Canvas)
    return "\n".join(canvas.render_line(y).text for y in range(canvas.size.height))


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    async def look() -> object:
        await pilot.pause()
        return condition()

    await waiting.until(look, what)


def run(
    app: TopApp, work: Callable[[Pilot[None]], Coroutine[Any, Any, None]], size: tuple[int, int] = (100, 30)
) -> None:
    async def drive() -> None:
        async with app.run_test(size=size) as pilot:
            await work(pilot)

    asyncio.run(drive())


def make_app(feed: FakeFeed | None = None, **others: Any) -> tuple[TopApp, FakeFeed]:
    feed = feed or FakeFeed()
    return TopApp(feed, feed.first(), **others), feed


def test_first_picture_needs_no_news() -> None:
    app, _ = make_app(words="bob")

    async def work(_: Pilot[None]) -> None:
        assert "gpu02   1 A100-SXM4-80GB ■ busy     99%" in seen(app)
        assert "alice" not in seen(app)

    run(app, work)


def test_keys_reach_the_picture() -> None:
    app, _ = make_app()

    async def work(pilot: Pilot[None]) -> None:
        await pilot.press("g", "g", "g", "P")
        assert "sorted by utilization" in seen(app)
        assert seen(app).splitlines()[3].startswith("gpu02   1")
        await pilot.press("slash", *"alice", "space", *"-h200", "enter")
        assert "filter: alice -h200 · 1 row," in seen(app)
        await pilot.press("escape", "question_mark")
        assert "Keys, as in htop" in seen(app)
        await pilot.press("escape", "u")
        assert "WHERE" in seen(app)

    run(app, work)


def test_terminal_may_change_its_size() -> None:
    app, _ = make_app()

    async def work(pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert "NOTE" in seen(app)
        await pilot.resize_terminal(60, 10)
        await pilot.pause()
        assert ("NOTE" in seen(app), len(seen(app).splitlines())) == (False, 10)

    run(app, work)


def test_delta_changes_the_picture() -> None:
    app, feed = make_app()

    async def work(pilot: Pilot[None]) -> None:
        bob = {"uuid": "GPU-b", "utilization_percent": 13}
        change = {"id": "gpu02", "gpus": [bob]}
        feed.tell(delta_of(app.top, changes=[change]))
        await until(pilot, lambda: "■ busy     13%" in seen(app), "the change")

    run(app, work)


def test_hub_that_goes_away_is_said_to_and_comes_back() -> None:
    app, feed = make_app()

    async def work(pilot: Pilot[None]) -> None:
        feed.tell(FeedLost("no hub answers at http://hub:8042."))
        await until(pilot, lambda: "OUT OF REACH since" in seen(app), "the loss")
        assert "● free" not in seen(app)
        feed.tell(some_fleet())
        await until(pilot, lambda: "OUT OF REACH" not in seen(app), "the return")
        assert "● free" in seen(app)

    run(app, work)


@pytest.mark.parametrize("key", ["q", "ctrl+c", "f10"])
def test_leaving_stops_the_feed(key: str) -> None:
    app, feed = make_app()

    async def work(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark", "escape", key)
        await until(pilot, lambda: not app.is_running, "the end")

    run(app, work)
    assert (feed.is_stopped, app.return_code) == (True, 0)


def test_terminal_that_knows_ascii_alone_gets_no_other_signs() -> None:
    app, _ = make_app(plain=True)

    async def work(pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        assert seen(app).isascii()

    run(app, work)
