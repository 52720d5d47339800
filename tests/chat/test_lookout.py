"""Who watches from Slack is told in Slack: once, and not of what is long past."""

import asyncio
from pathlib import Path

from fakes.chats import ADA, Lab, words_of
from fakes.offers import make_offer
from gpudeck.chat.blocks import Answer
from gpudeck.chat.lookout import GIVE_UP_SECONDS, PAUSE_SECONDS, Lookout


class Letters:
    """What was written to whom. Slack takes it, or it does not."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.is_taken = True

    async def write(self, slack_id: str, answer: Answer) -> bool:
        if self.is_taken:
            self.sent.append((slack_id, words_of(answer)))
        return self.is_taken


def make(lab: Lab, slack_id: str | None = ADA) -> tuple[Lookout, Letters]:
    return Lookout(lab.watches, lambda _: slack_id, lab.clock), Letters()


def fire(lab: Lab) -> None:
    [one] = lab.watches.open
    asyncio.run(lab.watches.fire(one, [make_offer("gpu02", 0), make_offer("gpu02", 1)]))


def test_a_watch_that_fired_is_told_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lookout, letters = make(lab)
    lab.ask("watch 2 a100")
    asyncio.run(lookout.tell(letters.write))
    assert letters.sent == []
    fire(lab)
    for _ in range(3):
        asyncio.run(lookout.tell(letters.write))
    [(slack_id, text)] = letters.sent
    assert slack_id == ADA
    assert "*2 GPUs called a100 are free:* gpu02:0,1" in text


def test_after_a_restart_nothing_is_told_again(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.ask("watch 2 a100")
    fire(lab)
    lab.clock.advance(1)
    lookout, letters = make(lab)
    asyncio.run(lookout.tell(letters.write))
    assert letters.sent == []


def test_who_is_told_in_another_way_is_not_told_here(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lookout, letters = make(lab, None)
    lab.ask("watch 2 a100")
    fire(lab)
    asyncio.run(lookout.tell(letters.write))
    assert letters.sent == []


def test_what_slack_does_not_take_is_tried_again_but_not_forever(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lookout, letters = make(lab)
    lab.ask("watch 2 a100")
    fire(lab)
    letters.is_taken = False
    asyncio.run(lookout.tell(letters.write))
    letters.is_taken = True
    asyncio.run(lookout.tell(letters.write))
    assert letters.sent == []
    lab.clock.advance(PAUSE_SECONDS)
    asyncio.run(lookout.tell(letters.write))
    assert len(letters.sent) == 1


def test_old_news_is_no_news(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lookout, letters = make(lab)
    lab.ask("watch 2 a100")
    fire(lab)
    lab.clock.advance(GIVE_UP_SECONDS + 1)
    asyncio.run(lookout.tell(letters.write))
    assert letters.sent == []
