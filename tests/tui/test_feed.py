"""Where the fleet comes from: a real hub that goes away and comes back, one that wants a token, this machine."""

import threading
from pathlib import Path

import pytest

from fakes.fleets import make
from fakes.hubs import running_hub
from fakes.ports import free_port
from fakes.waiting import wait_until
from gpudeck.client import Client, Forbidden
from gpudeck.client.live_fleet import Delta, FleetRows
from gpudeck.collectors.base import CollectorSettings
from gpudeck.model.errors import Unreachable
from gpudeck.model.view import Fleet
from gpudeck.settings import find_own_token
from gpudeck.tui.feed import FeedLost, HubFeed, LocalFeed, Update
from gpudeck.views.this_machine import watch_locally


def kinds(news: list[Update]) -> set[type]:
    return {type(one) for one in news}


def test_hub_that_is_restarted_is_followed_by_itself(tmp_path: Path) -> None:
    listen = ["--listen", f"127.0.0.1:{free_port()}", "--demo", "3"]
    news: list[Update] = []
    with running_hub(tmp_path, *listen) as hub:
        feed = HubFeed(Client(hub.url, 5.0))
        assert isinstance(feed.first(), Fleet)
        feed.start(news.append)
        wait_until(lambda: Delta in kinds(news), "a delta")
    wait_until(lambda: FeedLost in kinds(news), "the loss")
    news.clear()
    with running_hub(tmp_path, *listen):
        wait_until(lambda: {FleetRows, Delta} <= kinds(news), "the return", 40)
        feed.stop()
        wait_until(lambda: "feed" not in {thread.name for thread in threading.enumerate()}, "the end of the feed")


def test_hub_that_is_not_there_at_first_is_an_error() -> None:
    with pytest.raises(Unreachable, match="no hub answers"):
        HubFeed(Client(f"http://127.0.0.1:{free_port()}")).first()


def test_token_of_this_machine_is_found_where_the_hub_wants_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpudeck.yaml").write_text("read: login\n")
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("GPUDECK_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    with running_hub(tmp_path, "--demo", "3") as hub:
        with pytest.raises(Forbidden):
            HubFeed(Client(hub.url)).first()
        feed = HubFeed(Client(hub.url, find_token=lambda: find_own_token(hub.url)))
        assert isinstance(feed.first(), Fleet)
        feed.stop()


def test_this_machine_is_read_again_and_again() -> None:
    watch = watch_locally(CollectorSettings())
    feed = LocalFeed(watch.read, watch.close, seconds=0.1)
    news: list[Update] = [feed.first()]
    feed.start(news.append)
    wait_until(lambda: len(news) > 2, "three readings")
    feed.stop()
    hosts = [one.hosts for one in news if isinstance(one, Fleet)]
    assert {(len(found), found[0].status, found[0].via) for found in hosts} == {(1, "up", "local")}
    assert hosts[-1][0].last_report_at > hosts[0][0].last_report_at


def test_reading_that_fails_is_told_and_tried_again() -> None:
    fleet = make(Fleet)
    answers = iter([fleet, OSError("no more files")])

    def read() -> Fleet:
        answer = next(answers, fleet)
        if isinstance(answer, OSError):
            raise answer
        return answer

    feed = LocalFeed(read, lambda: None, seconds=0.01)
    news: list[Update] = [feed.first()]
    feed.start(news.append)
    wait_until(lambda: len(news) > 3, "four readings")
    feed.stop()
    assert [type(one) for one in news[:3]] == [Fleet, FeedLost, Fleet]
