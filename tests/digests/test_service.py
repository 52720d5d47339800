"""Digests on their way: to whom, once, as mail with two parts, in chats, and never to somebody who opted out."""

import asyncio
from collections.abc import Iterator
from datetime import UTC
from email import message_from_string, policy
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from alerts.notifiers.sinks import MailServer, running_mail_server, running_webhook
from digests.site import MONDAY, MUTED, Site, make_history
from fakes.store import RUN
from gpudeck.alerts.notifiers.settings import ChannelSettings
from gpudeck.api.access import Policy
from gpudeck.auth.settings import UserSettings
from gpudeck.digests.content import Style, describe_own
from gpudeck.digests.figures import PeriodFigures, UserRuns, describe_use
from gpudeck.digests.periods import find_period
from gpudeck.digests.settings import DigestSettings
from gpudeck.fleet.state import SIMULATED_PAST
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.model.job import RunVerdict

WEEKLY = DigestSettings(every="week")
HOSTILE = "<img/src=x>&zoë@everyone"
ALICE = UserSettings(mail="alice@example.org")
BOB = UserSettings(mail="bob@example.org")
USERS = {"alice": ALICE, "bob": BOB, "carol": UserSettings(mail="carol@example.org")}
WORK = [("alice", "busy", 80.0), ("bob", "idle", 0.0), (HOSTILE, "busy", 40.0)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    store = make_history(tmp_path_factory.mktemp("history"), WORK)
    yield store
    store.close()


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with running_mail_server() as server:
        yield server


def to_mail(server: MailServer) -> dict[str, ChannelSettings]:
    return {"mail": ChannelSettings(f"mailto://127.0.0.1:{server.port}/?from=hub@example.org")}


def read(server: MailServer) -> dict[str, EmailMessage]:
    """By recipient; two to one of them are a failure."""
    found: dict[str, EmailMessage] = {}
    for (to,), content in server.mails:
        assert to not in found
        found[to] = message_from_string(content, policy=policy.default)  # type: ignore[assignment]
    return found


def part(mail: EmailMessage, kind: str) -> str:
    body = mail.get_body((kind,))
    assert body is not None
    return str(body.get_content())


class Words(HTMLParser):
    """The text of a document, and the names of its tags and attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", set[str](), set[str]()
        self.feed(document)

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_users_get_their_own_figures_as_html_and_as_text(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    asyncio.run(Site(tmp_path, history, WEEKLY, USERS, to_mail(mails)).send())
    found = read(mails)
    # Carol used no GPU.
    assert found.keys() == {"alice@example.org", "bob@example.org"}
    mail = found["alice@example.org"]
    assert mail["Subject"] == "GPU digest, 2026-11-09 to 2026-11-15"
    for text in (part(mail, "plain"), Words(part(mail, "html")).text):
        words = " ".join(text.split())
        assert "GPU-hours 2.0" in words
        assert "Utilization 80.0 %" in words
        assert "Cost 6.0" in words
        assert "python train_0.py" in words
        # The GPUs are known since that Wednesday.
        assert "Coverage: the GPUs were monitored in 1.8 % of the period; the records begin 2026-11-11" in words
        assert "gpudeck digest --off" in words
        assert "https://gpus.example.org/#/mine" in part(mail, "plain")
        assert "80.0 % utilization, good" in words
        assert "bob" not in words
    whole = " ".join(part(found["bob@example.org"], "plain").split())
    assert "Idle GPU-hours 2.0" in whole
    assert "Worst run 0.0 % utilization, poor" in whole
    assert "Suggestion for your worst run: " in whole
    assert "utilization below 5 % in all of" in whole


def test_each_period_is_sent_once_also_by_a_hub_that_is_started_again(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    channels = to_mail(mails)

    async def play(now: float) -> None:
        site = Site(tmp_path, history, WEEKLY, {"alice": ALICE}, channels, now=now)
        await site.send()
        await site.look()

    # Late: the hub was not there on Monday morning.
    asyncio.run(play(MONDAY + 3 * 86_400))
    asyncio.run(play(MONDAY + 4 * 86_400))
    assert len(mails.mails) == 1
    # Nothing was used in the week after.
    asyncio.run(play(MONDAY + 7 * 86_400))
    assert len(mails.mails) == 1


def test_hub_that_dies_between_the_outbox_and_its_note_sends_it_once(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = to_mail(mails)

    def die(*_: object) -> None:
        raise SystemExit

    async def play(*, dies: bool) -> None:
        site = Site(tmp_path, history, WEEKLY, USERS, channels)
        with monkeypatch.context() as patched:
            if dies:
                patched.setattr("gpudeck.digests.service.DigestStore.add", die)
            await site.send()

    with pytest.raises(SystemExit):
        asyncio.run(play(dies=True))
    asyncio.run(play(dies=False))
    asyncio.run(play(dies=False))
    assert read(mails).keys() == {"alice@example.org", "bob@example.org"}


def test_of_two_hubs_only_the_one_with_the_duty_sends(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    async def play() -> list[list[str]]:
        first, second = (Site(tmp_path, history, WEEKLY, USERS, to_mail(mails)) for _ in range(2))
        first.is_held = False
        await first.look()
        found = [await first.waiting()]
        await second.look()
        found.append(await first.waiting())
        first.is_held, second.is_held = True, False
        await first.look()
        return [*found, await first.waiting()]

    assert asyncio.run(play()) == [[], ["alice", "bob"], ["alice", "bob"]]


@pytest.mark.parametrize("way", ["page", "settings", "off"])
def test_nobody_who_opted_out_gets_any_also_not_later(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer, way: str
) -> None:
    settings = {"settings": {"mute": ["digest"]}, "off": {"digest": "off"}}.get(way, {})
    alice = UserSettings(mail="alice@example.org", **settings)  # type: ignore[arg-type]

    async def play() -> None:
        site = Site(tmp_path, history, WEEKLY, USERS | {"alice": alice}, to_mail(mails))
        if way == "page":
            await site.messages.mutes.choose("alice", MUTED)
        await site.look()
        assert await site.waiting() == ["bob"]
        shown = await site.service.preview("alice")
        assert shown.not_sent is not None
        assert "Utilization" in shown.text

    asyncio.run(play())


def test_a_change_of_mind_sends_the_next_one_and_no_old_one(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    async def play() -> None:
        site = Site(tmp_path, history, WEEKLY, {"alice": ALICE}, to_mail(mails))
        await site.messages.mutes.choose("alice", MUTED)
        await site.look()
        await site.messages.mutes.choose("alice", [])
        await site.look()
        assert await site.waiting() == []

    asyncio.run(play())


def test_who_opts_out_while_the_mail_server_is_away_gets_none(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    async def play() -> None:
        site = Site(tmp_path, history, WEEKLY, USERS, to_mail(mails))
        await site.look()
        assert await site.waiting() == ["alice", "bob"]
        await site.messages.mutes.choose("alice", MUTED)
        await site.send()

    asyncio.run(play())
    assert read(mails).keys() == {"bob@example.org"}


def test_leads_see_their_people_and_names_from_outside_are_text(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    settings = DigestSettings(every="week", leads={"vision <b>": ["carol"]})
    groups = {"alice": "vision <b>", HOSTILE: "vision <b>", "bob": "other"}
    asyncio.run(Site(tmp_path, history, settings, USERS, to_mail(mails), groups=groups).send())
    mail = read(mails)["carol@example.org"]
    document = Words(part(mail, "html"))
    for text in (part(mail, "plain"), document.text):
        assert "Group vision <b>" in text
        assert HOSTILE in text
        assert "alice" in text
        assert "bob" not in text
        assert "Your GPUs" not in text
    assert document.tags <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "body",
            "table",
            "tr",
            "td",
            "th",
            "h1",
            "h2",
            "p",
            "span",
            "br",
            "a",
            "code",
        )
    }
    assert not document.attributes & {"src", "class", "onclick", "background"}


def test_admins_and_channels_get_the_fleet(tmp_path: Path, history: EmbeddedStore, mails: MailServer) -> None:
    settings = DigestSettings(every="week", channels=["ops", "mail"])

    async def play(hook: str) -> None:
        site = Site(tmp_path, history, settings, USERS, to_mail(mails) | {"ops": ChannelSettings(hook)})
        await site.auth.accounts.add("carol", "admin", "a long password")
        await site.send()

    with running_webhook() as hook:
        asyncio.run(play(hook.url))
        (text,) = hook.texts()
    assert "In use 100.0 % (of 6.0 monitored GPU-hours)" in text
    assert "bob, Idle hours 2.0" in text
    # No chat takes it for a mention or for HTML.
    assert "&lt;" in text
    assert "@everyone" not in text
    whole = part(read(mails)["carol@example.org"], "plain")
    assert all(words in whole for words in ("Least reliable GPUs", "Most wasted GPU-hours", "Demand", "Users"))
    assert len(mails.mails) == 4


def test_zone_numbers_and_frequency_are_those_of_the_user(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer
) -> None:
    alice = UserSettings(mail="alice@example.org", zone="Asia/Tokyo", numbers="de", digest="month")

    async def play() -> tuple[str, str, float]:
        site = Site(tmp_path, history, DigestSettings(), {"alice": alice, "bob": BOB}, now=MONDAY + 16 * 86_400)
        found = await site.service.preview("alice")
        return found.period, " ".join(found.text.split()), found.start

    period, text, start = asyncio.run(play())
    assert (period, start) == ("2026-11", 1_793_458_800.0)
    assert "GPU-hours 2,0" in text
    # Ten in UTC is seven in the evening.
    assert "2026-11-11 19:00" in text
    assert "Asia/Tokyo" in text


def test_a_period_in_which_nothing_was_monitored_has_no_figures(tmp_path: Path, history: EmbeddedStore) -> None:
    async def play() -> tuple[str, str | None]:
        site = Site(tmp_path, history, WEEKLY, USERS, now=MONDAY + 60 * 86_400)
        await site.auth.accounts.add("carol", "admin", "a long password")
        mine = await site.service.preview("alice")
        return (await site.service.preview("carol")).text, mine.not_sent

    text, reason = asyncio.run(play())
    assert "No GPU was monitored in this period: nothing is known about it." in text
    assert "GPU-hours" not in text
    assert reason == "no use of a GPU was recorded in this period."


def test_a_past_that_is_not_complete_yet_is_told(tmp_path: Path, history: EmbeddedStore) -> None:
    async def play() -> str:
        site = Site(tmp_path, history, WEEKLY, USERS)
        site.hub.fleet.set_problems(SIMULATED_PAST, ["Not complete yet."])
        await site.auth.accounts.add("carol", "admin", "a long password")
        return (await site.service.preview("carol")).text

    assert "Not complete yet." in asyncio.run(play())


def test_an_unknown_verdict_has_its_reason(tmp_path: Path, history: EmbeddedStore) -> None:
    async def read_period() -> PeriodFigures:
        site = Site(tmp_path, history, WEEKLY, USERS)
        return await site.reader.read_period(find_period("week", WEEKLY, UTC, MONDAY))

    run = replace(RUN, verdict=RunVerdict("unknown", "No verdict: 4m is too short.", "4m is too short"))
    figures, use = asyncio.run(read_period()), describe_use([], [], None)
    told = describe_own(figures, use, UserRuns(best=run, count=1), Style("en", UTC, "EUR"), shows_commands=True)
    (best,) = (one for one in told.figures if one.label == "Best run")
    assert best.value.endswith("verdict unknown")
    assert "(no verdict: 4m is too short): python train.py" in best.note


def test_commands_in_html_are_set_as_code(tmp_path: Path, history: EmbeddedStore) -> None:
    async def play() -> str:
        return (await Site(tmp_path, history, WEEKLY, USERS).service.preview("alice")).html

    document = asyncio.run(play())
    assert "<code>gpudeck digest --off</code>" in document
    assert "`" not in document


def test_command_lines_are_shown_to_those_who_may_see_them(tmp_path: Path, history: EmbeddedStore) -> None:
    hidden = Policy(is_readable=True, commands="admin")

    async def play() -> str:
        return (await Site(tmp_path, history, WEEKLY, USERS, policy=hidden).service.preview("alice")).text

    text = asyncio.run(play())
    assert "80.0 % utilization" in text
    assert "train" not in text


def test_one_digest_that_fails_keeps_no_other_from_being_sent(
    tmp_path: Path, history: EmbeddedStore, mails: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpudeck.digests import service  # noqa: PLC0415 - to break it

    whole = service.describe_own

    def fail(figures: object, use: object, *others: object, **named: object) -> object:
        if use.idle.hours > 1:  # type: ignore[attr-defined]
            raise LookupError("a bug")
        return whole(figures, use, *others, **named)  # type: ignore[arg-type]

    async def play() -> list[str]:
        site = Site(tmp_path, history, WEEKLY, USERS, to_mail(mails))
        await site.look()
        found = await site.waiting()
        monkeypatch.undo()
        await site.look()
        assert await site.waiting() == found
        # After an hour it is tried again.
        site.clock.advance(3600)
        await site.look()
        assert await site.waiting() == ["alice", "bob"]
        return found

    monkeypatch.setattr(service, "describe_own", fail)
    assert asyncio.run(play()) == ["alice"]
