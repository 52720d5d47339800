"""A stream ends when its viewer may no longer look, or may see something else."""

import asyncio
from typing import Any

import pytest

from fakes.clock import FakeClock
from gpudeck.api.access import Commands, Policy
from gpudeck.api.stream import StreamRoute
from gpudeck.auth.caller import NOBODY, Caller
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import Temporary

ADA = Caller(kind="account", role="user", name="ada", account_id=1, logins=frozenset({"ada"}))
ROOT = Caller(kind="account", role="admin", name="ada", account_id=1, logins=frozenset({"ada"}))


def watch(
    answers: list[Caller | Exception], *, is_readable: bool = False, commands: Commands = "everyone"
) -> list[Any]:
    """What a viewer who was ADA at first gets, until the stream ends, or until nothing more is known of them."""

    async def play() -> list[Any]:
        sent: list[Any] = []
        over = asyncio.Event()
        left = iter(answers)

        async def identify(_: Any) -> Caller:
            answer = next(left, None)
            if answer is None:
                over.set()
                return ADA
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def receive() -> dict[str, str]:
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        policy = Policy(is_readable=is_readable, commands=commands)
        route = StreamRoute(Hub(now=FakeClock()), policy, identify, every=0.01)
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "caller": ADA}
        async with asyncio.timeout(10):
            await route(scope, receive, send)
        return [*sent, over.is_set()]

    return asyncio.run(play())


@pytest.mark.parametrize("later", [NOBODY, Caller(kind="token", role="agent", name="a")])
def test_session_that_ended_ends_its_stream(later: Caller) -> None:
    assert watch([ADA, later])[-1] is False


def test_stream_that_everybody_may_see_goes_on_without_a_session() -> None:
    assert watch([ADA, NOBODY, NOBODY], is_readable=True)[-1] is True


def test_viewer_who_may_see_more_or_less_has_to_come_again() -> None:
    assert watch([ROOT], commands="admin")[-1] is False


def test_database_that_is_away_ends_no_stream() -> None:
    assert watch([Temporary("away"), Temporary("away"), ADA])[-1] is True
