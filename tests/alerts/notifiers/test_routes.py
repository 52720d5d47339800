"""Which message goes where."""

import pytest

from alerts.notifiers.sinks import make_message
from gpudeck.alerts.notifiers.rendering import Message, Subject
from gpudeck.alerts.notifiers.routes import Destination, find_destinations, has_destination
from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings, RouteSettings
from gpudeck.auth.settings import UserSettings

PEOPLE = {
    "ada": UserSettings(mail="ada@example.org", slack="U1", group="vision"),
    "bob": UserSettings(mail="bob@example.org"),
    "eve": UserSettings(),
}
ADDRESSES = {
    "ops": "json://ops.example",
    "mail": "mailto://mail.example",
    "chat": "slack://xoxb-1-2-3",
    "pager": "json://pager.example",
}
CHANNELS = {name: ChannelSettings(url=address) for name, address in ADDRESSES.items()}


def find(message: Message, *routes: RouteSettings, muted: tuple[str, str] = ("", "")) -> list[str]:
    settings = NotifySettings(channels=CHANNELS, routes=list(routes), mail="mail", slack="chat")
    found = find_destinations(message, settings, PEOPLE.__getitem__, lambda *asked: asked == muted)
    return [destination.name for destination in found]


@pytest.mark.parametrize(("severity", "channels"), [("info", []), ("warning", [*CHANNELS]), ("critical", [*CHANNELS])])
def test_without_routes_every_channel_gets_warnings_and_worse(severity: str, channels: list[str]) -> None:
    assert find(make_message(severity=severity)) == channels


def test_without_routes_a_channel_that_is_told_of_the_event_does_not_get_the_rule_of_that_name_too() -> None:
    told = ChannelSettings(url="json://told.example", events=["host_down", "host_up"])
    for rule, channels in (("host_down", ["ops"]), ("gpu_lost", ["told", "ops"])):
        settings = NotifySettings(channels={"told": told, "ops": CHANNELS["ops"]})
        found = find_destinations(make_message(rule=rule), settings, PEOPLE.__getitem__, lambda *_: False)
        assert [destination.name for destination in found] == channels


def test_first_route_that_fits_is_taken_unless_it_goes_on() -> None:
    stop = [RouteSettings(to=["pager"], severity="critical"), RouteSettings(to=["ops"])]
    on = [RouteSettings(to=["pager"], severity="critical", goes_on=True), RouteSettings(to=["ops", "pager"])]
    assert find(make_message(), *stop) == ["pager"]
    assert find(make_message(), *on) == ["pager", "ops"]
    assert find(make_message(severity="warning"), *stop) == ["ops"]


@pytest.mark.parametrize(
    ("route", "fits"),
    [
        (RouteSettings(to=["ops"], rules=["gpu_*", "host_*"]), True),
        (RouteSettings(to=["ops"], rules=["gpu_*"]), False),
        (RouteSettings(to=["ops"], labels={"rack": "r1*", "host": "gpu07"}), True),
        (RouteSettings(to=["ops"], labels={"rack": "r2*"}), False),
        (RouteSettings(to=["ops"], labels={"room": "*"}), False),
        (RouteSettings(to=["ops"], users=["ada"]), True),
        (RouteSettings(to=["ops"], users=["bob"]), False),
        (RouteSettings(to=["ops"], groups=["vision"]), True),
        (RouteSettings(to=["ops"], groups=["speech"]), False),
    ],
)
def test_all_conditions_of_a_route_have_to_fit(route: RouteSettings, fits: bool) -> None:
    message = make_message(labels={"rack": "r12", "host": "gpu07"}, accounts=("ada",))
    assert ("ops" in find(message, route)) == fits


def test_people_get_it_by_all_their_ways_beside_the_channels() -> None:
    message = make_message(accounts=("ada", "bob", "eve"))
    assert find(message, RouteSettings(to=["ops"])) == ["ops", "mail ada", "chat ada", "mail bob"]


def test_the_bot_writes_to_people_in_slack_unless_a_channel_does() -> None:
    message = make_message(accounts=("ada", "bob"), is_personal=True)
    for slack, way in ((None, "chat.slack ada"), ("chat", "chat ada")):
        settings = NotifySettings(channels=CHANNELS, slack=slack)
        found = find_destinations(message, settings, PEOPLE.__getitem__, lambda *_: False, has_bot=True)
        assert [one.name for one in found] == [way]
    assert has_destination(NotifySettings(), PEOPLE["ada"], has_bot=True)
    assert not has_destination(NotifySettings(), PEOPLE["ada"])


def test_what_is_personal_goes_to_no_channel() -> None:
    message = make_message(accounts=("ada",), is_personal=True)
    assert find(message) == ["mail ada", "chat ada"]


def test_who_muted_the_rule_is_not_told_and_others_are() -> None:
    message = make_message(accounts=("ada", "bob"), is_personal=True)
    assert find(message, muted=("ada", "host_down")) == ["mail bob"]
    assert find(message, muted=("ada", "gpu_hot")) == ["mail ada", "chat ada", "mail bob"]


def test_a_destination_is_named_by_its_channel_and_person() -> None:
    assert (Destination("ops").name, Destination("mail", "ada").name) == ("ops", "mail ada")


RACKS = (RouteSettings(to=["ops"], labels={"rack": "r1*"}), RouteSettings(to=["pager"], labels={"rack": "r2*"}))


def test_message_about_several_goes_wherever_one_of_them_would() -> None:
    racks = [Subject("host_down", {"rack": rack}) for rack in ("r11", "r12", "r21")]
    assert find(make_message(subjects=tuple(racks[:2])), *RACKS) == ["ops"]
    assert find(make_message(subjects=tuple(racks)), *RACKS) == ["ops", "pager"]


def test_what_is_summed_up_goes_to_those_of_each_rule() -> None:
    routes = RouteSettings(to=["ops"], rules=["host_*"]), RouteSettings(to=["pager"], rules=["gpu_*"])
    summed = make_message(rule="alerts", subjects=(Subject("host_down", {}), Subject("gpu_lost", {})))
    assert find(summed, *routes) == ["ops", "pager"]


def test_who_muted_a_rule_is_told_of_it_in_no_sum_either() -> None:
    subjects = (Subject("reservation_conflict", {}, ("bob",)), Subject("xid", {}, ("ada",)))
    message = make_message(rule="alerts", accounts=("bob", "ada"), subjects=subjects, is_personal=True)
    assert find(message, muted=("bob", "reservation_conflict")) == ["mail ada", "chat ada"]
