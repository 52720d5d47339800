"""What the bot answers to whom: everything that curl answers, and reservations as oneself alone."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.chats import ADA, BOB, EVE, Lab, make_alert, words_of
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from fakes.slack_shapes import check_blocks
from gpudeck import __version__
from gpudeck.auth.audit import AuditEntry
from gpudeck.chat.bot import Bot
from gpudeck.model.report import Report
from gpudeck.model.reservation import ReservationMark
from gpudeck.reservations.calendar import show_at_gpu
from gpudeck.views.filter import choose_hosts
from gpudeck.views.text import render_fleet

HOUR = 3600


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def audited(lab: Lab) -> list[AuditEntry]:
    return asyncio.run(lab.auth.audit.list())


# Looking.


def test_free_tells_what_can_be_used(lab: Lab) -> None:
    said = lab.say("free")
    assert "3 of 5 GPUs can be used now" in said
    assert "*gpu02:0,1*" in said
    assert "*gpu01:0*" in said


def test_free_takes_words_and_numbers(lab: Lab) -> None:
    assert "2 of 5" in lab.say("free gpu02")
    assert "Free: 2 GPUs on one host" in lab.say("free 2 same-host")
    assert "Not free now: 3 GPUs on one host" in lab.say("free 3 same-host")
    assert "0 of 5" in lab.say("free h100")
    assert "is not understood" in lab.say("free &gt;lots")


def test_what_somebody_else_reserved_is_not_free_and_ones_own_is(lab: Lab) -> None:
    lab.ask("reserve gpu02 for 4h")
    marks = {uuid: ReservationMark(show_at_gpu(one)) for uuid, one in lab.calendar.current().items()}
    lab.hub.fleet.mark(marks, lab.clock.now)
    lab.hub.stream.tick()
    assert "3 of 5" in lab.say("free", ADA)
    assert "1 of 5" in lab.say("free", BOB)
    assert "reserved by ada" in lab.say("gpu02", BOB)


def test_what_waits_for_somebody_in_line_is_not_free(lab: Lab) -> None:
    waiting = SimpleNamespace(claimed={"GPU-b0": 1})
    lab.bot = Bot(msgspec.structs.replace(lab.place, waiting=waiting), lab.find_zone)
    assert "2 of 5" in lab.say("free")
    assert "Not free now" in lab.say("free 2 same-host")


@pytest.mark.parametrize("text", ["gpu01", "GPU01", "who gpu01", "where gpu01"])
def test_a_host_is_told_with_those_who_are_on_it(lab: Lab, text: str) -> None:
    said = lab.say(text)
    assert "alice" in said
    assert "ada" in said
    assert "🟢 1 free" in said


def test_who_is_on_one_gpu(lab: Lab) -> None:
    assert "alice" in lab.say("who gpu01:1")
    assert "alice" not in lab.say("who gpu01:0")
    assert "alice" in lab.say("who GPU-1")
    assert "has no GPU 7" in lab.say("who gpu01:7")
    assert "Did you mean gpu01" in lab.say("who gpu011")


def test_where_somebody_is_by_login_account_and_mention(lab: Lab) -> None:
    lab.report("gpu03", [make_busy_gpu(0, "bobby", uuid="GPU-c0")])
    lab.hub.stream.tick()
    for text in ("where bobby", "WHERE Bob", f"where <@{BOB}>"):
        assert "*gpu03:0*" in lab.say(text)
    assert "is on no GPU" in lab.say("where nobody")
    assert "has no such Slack ID" in lab.say(f"where <@{EVE}>")


def test_where_a_host_is_and_when_it_last_reported_as_the_predecessor_tells(lab: Lab) -> None:
    report = Report(gpus=[make_busy_gpu(0, "bobby", uuid="GPU-c0")], addresses=["192.0.2.7", "<!here>"])
    lab.hub.fleet.apply(make_envelope("gpu03", report=report), via="push", now=lab.clock.now)
    lab.hub.stream.tick()
    lines = lab.say("WHERE gpu03").splitlines()
    assert lines[0].startswith("*gpu03 is up: ")
    assert lines[1] == "192.0.2.7, &lt;!here&gt;, last report 0s ago"
    assert "bobby" in lines[-1]
    assert "address not known, last report 0s ago" in lab.say("where gpu01")
    assert "last report" not in lab.say("who gpu01")


def test_where_alone_names_the_hub(lab: Lab) -> None:
    lab.bot = Bot(replace(lab.place, address="https://gpus.example.org/"), lab.find_zone)
    assert lab.say("WHERE") == f"*gpudeck {__version__}*  https://gpus.example.org/\n2 hosts, 2 of them up, 5 GPUs"


def test_users_are_everybody(lab: Lab) -> None:
    said = lab.say("users")
    assert "*alice*  gpu01:1" in said
    assert "*ada*  gpu01:2" in said


def test_hosts_and_all_are_one_line_each(lab: Lab) -> None:
    assert lab.say("HOSTS").count("*gpu0") == 2
    assert lab.say("ALL").count("*gpu0") == 5
    assert lab.say("all busy").count("*gpu0") == 2
    assert "Nothing matches" in lab.say("all h100")


def test_everybody_is_told_with_their_memory_the_most_first(lab: Lab) -> None:
    lab.report("gpu03", [make_busy_gpu(index, "bobby", uuid=f"GPU-c{index}") for index in range(2)])
    lab.hub.stream.tick()
    said = lab.say("users")
    assert said.startswith("*3 users on GPUs*\n*bobby*  gpu03:0,1  40.0 GiB in 1 process\n")
    assert "alice" not in lab.say("users gpu03")
    assert "Nobody is seen" in lab.say("users free")


@pytest.mark.parametrize("text", ["busy", "-free", "user:alice", "&gt;1G", "gpu01 busy", "GPU01 alice"])
def test_words_of_the_search_need_no_command(lab: Lab, text: str) -> None:
    assert "*gpu01:1*" in lab.say(text)


def test_a_host_in_detail_is_what_curl_shows_of_it(lab: Lab) -> None:
    for text in ("gpu01 detail", "all_detail gpu01", "GPU01 details"):
        snippet = lab.ask(text).snippet
        assert snippet is not None
        fleet = choose_hosts(lab.hub.fleet.view(lab.hub.stream.time), ["gpu01"])
        assert snippet.text == render_fleet(fleet, detail=True, width=160)


def test_hosts_can_be_asked_for_with_words(lab: Lab) -> None:
    assert lab.say("hosts busy").count("*gpu0") == 1
    assert "Nothing matches" in lab.say("hosts h100")
    assert "is not understood" in lab.say("hosts &gt;lots")


def raise_alerts(lab: Lab) -> None:
    """One of gpu01, one of the hub, one that is somebody's own business; and a problem of the hub."""
    hosts = {host.name: host.id for host in lab.hub.fleet.hosts.values()}
    lab.hub.fleet.alerts = [
        make_alert("GPU 2 of gpu01 is hot <!channel>", host="gpu01", host_id=hosts["gpu01"]),
        make_alert("The history is not kept", severity="critical"),
        make_alert("ada holds GPU 2 of gpu01 idle", severity="info", host="gpu01", host_id=hosts["gpu01"]),
    ]
    lab.hub.fleet.set_problems("messages", ["the channel ops does not take messages"])
    lab.hub.stream.tick()


def test_what_is_wrong_is_told_to_who_asks(lab: Lab) -> None:
    assert "Nothing is wrong" in lab.say("alerts")
    raise_alerts(lab)
    said = lab.say("alerts")
    assert "⚠ the channel ops does not take messages" in said
    assert "▲ GPU 2 of gpu01 is hot &lt;!channel&gt;, for 10m" in said
    assert "✗ The history is not kept" in said
    assert "holds" not in said
    assert "is hot" not in lab.say("problems gpu02")
    assert "is hot" in lab.say("alerts gpu01")


def test_what_is_wrong_is_not_repeated_below_every_answer(lab: Lab) -> None:
    raise_alerts(lab)
    for text in ("free", "who gpu01", "where alice", "where", "gpu02"):
        said = lab.say(text)
        assert "⚠" not in said
        assert "history" not in said
    for text in ("hosts", "all"):
        assert lab.say(text).endswith("⚠ 2 alerts and 1 problem of the hub: `alerts`")
    assert "is hot" in lab.say("gpu01")


def test_all_detail_is_what_curl_shows(lab: Lab) -> None:
    answer = lab.ask("all_detail")
    fleet = lab.hub.fleet.view(lab.hub.stream.time)
    assert answer.snippet is not None
    assert answer.snippet.text == render_fleet(fleet, detail=True, width=160)


def test_all_cmd_is_the_table_that_curl_shows(lab: Lab) -> None:
    answer = lab.ask("ALL_cmd")
    fleet = lab.hub.fleet.view(lab.hub.stream.time)
    assert answer.snippet is not None
    assert answer.snippet.text == render_fleet(fleet, width=160)


def test_a_site_keeps_its_own_words_for_commands(lab: Lab) -> None:
    lab.bot = Bot(lab.place, lab.find_zone, keywords={"machines": "hosts", "gpus?": "all"})
    assert lab.say("Machines") == lab.say("hosts")
    assert lab.say("GPUS? busy") == lab.say("all busy")


def test_a_large_fleet_is_a_snippet(lab: Lab) -> None:
    for number in range(10, 60):
        lab.report(f"node{number}", [make_gpu(index, uuid=f"GPU-{number}-{index}") for index in range(8)])
    lab.hub.stream.tick()
    for text in ("all", "free", "hosts", "all_cmd", "all_detail"):
        answer = lab.ask(text)
        assert list(check_blocks(list(answer.blocks))) == []
    snippet = lab.ask("all").snippet
    assert snippet is not None
    assert snippet.text.count("\n") > 400


def test_a_silent_host_is_never_free(lab: Lab) -> None:
    lab.clock.advance(300)
    lab.hub.stream.tick()
    assert "0 of 5 GPUs can be used now" in lab.say("free")
    assert "down" in lab.say("gpu01")


def test_unknown_words_get_help_with_the_host_that_may_be_meant(lab: Lab) -> None:
    said = lab.say("gpu0l")
    assert "I do not understand “gpu0l”" in said
    assert "gpu01" in said
    assert "reserve gpu07:0,1 for 4h" in said
    assert "Did you mean free?" in lab.say("frree h100")


def test_without_history_the_report_says_so(lab: Lab) -> None:
    assert "this hub keeps no history" in lab.say("report")
    assert "is not understood" in lab.say("report since the dawn of time")


@given(text=st.text(max_size=120) | st.text(st.sampled_from("abfork who:<>&;!@|`\"'0123 ,-—="), max_size=80))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_typed_gets_an_answer_that_slack_takes(lab: Lab, text: str) -> None:
    assert list(check_blocks(list(lab.ask(text).blocks))) == []


HOSTILE = "<!channel> <@U1> <http://evil.example|x> `&`"


def test_hostile_names_reach_slack_as_text(lab: Lab) -> None:
    lab.report("gpu09", [make_busy_gpu(0, HOSTILE, uuid="GPU-x", name=HOSTILE)])
    lab.hub.stream.tick()
    for text in ("all", "gpu09", "who gpu09", "where", f"where {HOSTILE}", "all_cmd", "free", "hosts", HOSTILE):
        answer = lab.ask(text)
        assert list(check_blocks(list(answer.blocks))) == []
        assert "<!channel>" not in answer.text


# Who may.


def test_strangers_look_where_the_hub_is_open_and_cannot_write(lab: Lab) -> None:
    assert "3 of 5" in lab.say("free", EVE)
    for text in ("reserve gpu02 for 4h", "release 1", "watch 2", "watches", "unwatch 1"):
        answer = lab.ask(text, EVE)
        assert f"slack: {EVE}" in words_of(answer)
        assert answer.is_private
    assert lab.calendar.near == []


def test_strangers_see_nothing_of_a_closed_hub(tmp_path: Path) -> None:
    lab = Lab(tmp_path, is_readable=False)
    answer = lab.ask("free", EVE)
    assert "I do not know you yet" in words_of(answer)
    assert answer.is_private
    assert "3 of 5" in lab.say("free", ADA)


def test_the_setting_opens_a_closed_hub_to_the_workspace_and_closes_an_open_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert "3 of 5" in Lab(tmp_path / "a", is_readable=False, read="everyone").say("free", EVE)
    assert "I do not know you" in Lab(tmp_path / "b", is_readable=True, read="users").say("free", EVE)


def test_what_a_closed_hub_answers_in_a_channel_is_for_the_asker_alone(tmp_path: Path) -> None:
    lab = Lab(tmp_path, is_readable=False)
    assert lab.ask("free").is_private
    assert lab.ask("reserve nowhere for 4h").is_private


def test_an_open_hub_answers_in_the_channel_for_all(lab: Lab) -> None:
    assert not lab.ask("free").is_private


def test_guests_of_other_organisations_are_not_answered(lab: Lab) -> None:
    assert "this workspace only" in lab.say("free", EVE, is_shared=True)
    assert lab.ask("free", ADA, is_shared=True).is_private


def test_a_disabled_account_is_nobody(lab: Lab) -> None:
    asyncio.run(lab.auth.accounts.add("root", "admin", None))
    asyncio.run(lab.auth.accounts.change("ada", is_disabled=True))
    assert "the account ada is disabled" in lab.say("free")
    assert "disabled" in lab.say("reserve gpu02 for 4h")


def test_an_entry_without_an_account_books_only_where_no_accounts_are_needed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert "no account ada yet" in Lab(tmp_path / "a", roles={"bob": "user"}).say("reserve gpu02 for 4h")
    assert "Reserved" in Lab(tmp_path / "b", roles={}, needs_accounts=False).say("reserve gpu02 for 4h")


def test_a_viewer_books_nothing(tmp_path: Path) -> None:
    said = Lab(tmp_path, roles={"ada": "viewer"}).say("reserve gpu02 for 4h")
    assert "ada has the role viewer, and this needs the role user" in said


@pytest.mark.parametrize(
    ("commands", "is_private", "is_seen"),
    [
        ("everyone", False, True),
        ("login", True, True),
        ("login", False, False),
        ("admin", True, False),
        ("owner", False, False),
    ],
)
def test_command_lines_obey_the_policy_and_a_channel_sees_what_strangers_see(
    tmp_path: Path, commands: str, is_private: bool, is_seen: bool
) -> None:
    lab = Lab(tmp_path, commands=commands)  # type: ignore[arg-type]
    snippet = lab.ask("all_detail", is_private=is_private).snippet
    assert snippet is not None
    assert ("python train.py" in snippet.text) == is_seen


def test_owners_see_their_own_command_lines_in_private(tmp_path: Path) -> None:
    lab = Lab(tmp_path, commands="owner")
    snippet = lab.ask("all_detail", is_private=True).snippet
    assert snippet is not None
    assert snippet.text.count("python train.py") == 1


# Reservation.


def test_reservation_books_as_whoever_asks(lab: Lab) -> None:
    answer = lab.ask("reserve GPU02:0,1 for 4h note a paper", BOB)
    assert "Reserved: *gpu02:0,1* for bob" in words_of(answer)
    made = lab.calendar.near[0]
    assert (made.user, made.created_by, made.end - made.start, made.note) == ("bob", "bob", 4 * HOUR, "a paper")
    entry = audited(lab)[0]
    assert (entry.who, entry.action, entry.address) == ("bob", "reserve GPUs", "Slack")


@pytest.mark.parametrize(
    "text", ["reserve gpu02 for 4h user bob", "reserve gpu02 for 4h --user bob", "reserve --user bob gpu02"]
)
def test_nobody_books_as_somebody_else(lab: Lab, text: str) -> None:
    lab.ask(text, ADA)
    assert [one.user for one in lab.calendar.near if one.user != "ada"] == []


def test_any_gpus_that_fit_are_reserved(lab: Lab) -> None:
    assert "Reserved" in lab.say("reserve 2 a100 same-host for 4h")
    assert len(lab.calendar.near[0].gpus) == 2


def test_a_conflict_names_the_other_and_the_next_time(lab: Lab) -> None:
    lab.ask("reserve gpu02:0 for 4h", BOB)
    said = lab.say("reserve gpu02:0 for 2h note mine")
    assert "*Not reserved:*" in said
    assert "bob" in said
    assert "Next free: *gpu02:0*" in said
    assert [one.user for one in lab.calendar.near] == ["bob"]


def test_what_is_reserved_is_given_back_by_its_owner_alone(lab: Lab) -> None:
    said = lab.say("reserve gpu02 for 4h")
    number = lab.calendar.near[0].id
    assert f"`release {number}` gives it back" in said
    assert "is ada's" in lab.say(f"release {number}", BOB)
    lab.clock.advance(60)
    assert f"Reservation {number} of *gpu02:0,1* is released" in lab.say(f"release {number}")
    assert "has ended" in lab.say(f"release #{number}")
    assert "there is no reservation 99" in lab.say("release 99")
    assert "which number?" in lab.say("release everything")


def test_reservations_are_listed(lab: Lab) -> None:
    assert "Nothing is reserved" in lab.say("reservations")
    lab.ask("reserve gpu02:0 for 4h note hands off", BOB)
    lab.ask("reserve gpu01:0 for 4h")
    assert "2 reservations" in lab.say("reservations")
    assert "*bob*  gpu02:0" in lab.say("reservations GPU02")
    mine = lab.say("reservations mine")
    assert "gpu01:0" in mine
    assert "hands off" not in mine


def test_mistakes_are_answered_in_words(lab: Lab) -> None:
    assert "needs 'for' or 'until'" in lab.say("reserve gpu02")
    assert "there is no host 'nowhere'" in lab.say("reserve nowhere for 4h")
    assert "is in use by alice" in lab.say("reserve gpu01:1 for 4h")
    assert "too long" in lab.say("reserve gpu02 for 400d")


# Watching.


def test_a_watch_of_whom_nothing_reaches_says_where_it_is_told(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.place = replace(lab.place, reaches=lambda _: False)
    lab.bot = Bot(lab.place, lab.find_zone)
    assert "An event will appear on the page when there are" in lab.say("watch 2 h100")


def test_watches_are_kept_listed_and_ended_by_their_owner(lab: Lab) -> None:
    said = lab.say("watch 2 h100 40G same-host for 2d")
    assert "2 GPUs called h100 with 40 GiB on one host" in said
    [one] = lab.watches.open
    assert (one.user, one.account, one.expires_at - one.created_at) == ("ada", "ada", 2 * 86_400)
    assert "2 GPUs called h100" in lab.say("watches")
    assert "You watch nothing" in lab.say("watches", BOB)
    assert f"You have no watch {one.id}" in lab.say(f"unwatch {one.id}", BOB)
    assert f"Watch {one.id} is removed" in lab.say(f"unwatch {one.id}")
    assert lab.watches.open == []


# In a channel of its own.


@pytest.mark.parametrize("text", ["good morning", "all good?", "thanks", "<@U0BOB> lunch?", "x" * 3000])
def test_talk_in_its_own_channel_is_not_answered(lab: Lab, text: str) -> None:
    assert lab.ask_perhaps(text, is_addressed=False) is None


@pytest.mark.parametrize("text", ["hosts", "gpu01", "free a100"])
def test_commands_in_its_own_channel_need_no_mention(lab: Lab, text: str) -> None:
    assert lab.ask_perhaps(text, is_addressed=False) is not None


def test_a_novel_is_refused(lab: Lab) -> None:
    assert "longer than" in lab.say("free " * 1000)
    assert "I do not know" not in lab.say("help", ADA)
