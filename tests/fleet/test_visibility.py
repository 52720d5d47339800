"""Who may not see command lines gets none, on any way out of the hub."""

import asyncio

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.stream import WHOLE, Subscription
from gpudeck.fleet.visibility import HIDDEN, Visibility

SECRET = "python train.py"
NONE, OWN = Visibility("none"), Visibility("own", frozenset({"alice"}))


@pytest.fixture
def hub() -> Hub:
    made = Hub(now=FakeClock())
    report(made, 1)
    made.stream.tick()
    return made


def report(hub: Hub, sequence: int) -> None:
    gpus = [make_busy_gpu(0, "alice"), make_busy_gpu(1, "bob", uuid="GPU-b")]
    hub.fleet.apply(make_envelope("gpu01", sequence, gpus), via="push", now=hub.stream.time)


def commands(document: bytes) -> list[str | None]:
    (host,) = msgspec.json.decode(document)["hosts"]
    return [process["command"] for gpu in host["gpus"] for process in gpu["processes"]]


def test_who_sees_everything_sees_commands(hub: Hub) -> None:
    assert commands(hub.stream.document()) == [SECRET, SECRET]


def test_who_sees_no_commands_is_told_why(hub: Hub) -> None:
    document = hub.stream.document(NONE)
    assert commands(document) == [None, None]
    process = msgspec.json.decode(document)["hosts"][0]["gpus"][0]["processes"][0]
    assert process["reasons"]["command"] == HIDDEN
    assert process["user"] == "alice"


def test_owners_see_their_own_commands(hub: Hub) -> None:
    assert commands(hub.stream.document(OWN)) == [SECRET, None]


@pytest.mark.parametrize("visibility", [Visibility(), NONE, OWN])
def test_views_hide_what_the_document_hides(hub: Hub, visibility: Visibility) -> None:
    view = asyncio.run(hub.stream.fresh_view(visibility))
    assert msgspec.to_builtins(view) == msgspec.json.decode(hub.stream.document(visibility))


def test_what_is_hidden_from_one_is_not_lost_for_others(hub: Hub) -> None:
    hub.stream.document(NONE)
    assert commands(hub.stream.document()) == [SECRET, SECRET]
    assert commands(hub.fleet.encoded(0.0)) == [SECRET, SECRET]


@pytest.mark.parametrize(("visibility", "seen"), [(NONE, 0), (OWN, 1)])
def test_snapshots_and_deltas_hide_what_the_document_hides(hub: Hub, visibility: Visibility, seen: int) -> None:
    viewer = hub.stream.watch("", visibility)
    gpus = [make_busy_gpu(0, "bob", metrics={"power_watts": 1.0})]
    hub.fleet.apply(make_envelope("gpu02", 1, gpus, host_id="m2"), via="push", now=hub.stream.time)
    hub.fleet.apply(make_envelope("gpu01", 2, [make_busy_gpu(0, "bob")]), via="push", now=hub.stream.time)
    hub.stream.tick()
    sent = b"".join(event.plain for event in viewer.events)
    assert sent.count(SECRET.encode()) == seen
    assert b"gpu02" in sent


def test_viewer_who_comes_back_gets_the_deltas_of_the_same_sight(hub: Hub) -> None:
    viewer = hub.stream.watch("", NONE)
    first = hub.stream.snapshot(NONE).plain.split(b"id: ")[1].split(b"\n")[0].decode()
    report(hub, 2)
    hub.stream.tick()
    hub.stream.unwatch(viewer)
    again = hub.stream.watch(first, NONE)
    assert all(SECRET.encode() not in event.plain for event in again.events)
    assert again.events[0].plain.startswith(b"event: delta")


def test_viewer_who_comes_back_with_another_sight_gets_a_snapshot(hub: Hub) -> None:
    first = hub.stream.snapshot(NONE).plain.split(b"id: ")[1].split(b"\n")[0].decode()
    assert SECRET.encode() in hub.stream.watch(first).events[0].plain


def test_channel_that_nobody_watches_is_forgotten(hub: Hub) -> None:
    hub.stream.unwatch(hub.stream.watch("", OWN))
    assert Subscription(OWN) in hub.stream.channels
    for _ in range(40):
        hub.stream.tick()
    assert list(hub.stream.channels) == [WHOLE]
