"""Answers of hubs of other versions: read as far as they can be, and else explained in one line."""

import msgspec
import pytest

from fakes.fleets import fleet_of, make
from fakes.reports import make_busy_gpu
from gpudeck import __version__
from gpudeck.client.answers import read_answer
from gpudeck.model.errors import Unreachable
from gpudeck.model.reservation import ReservationList, ShownReservation
from gpudeck.model.view import Fleet
from gpudeck.views.text import render_fleet

HUB = "http://hub:8042"


def told() -> dict[str, object]:
    answer: dict[str, object] = msgspec.to_builtins(fleet_of(("gpu01", [make_busy_gpu()])))
    return answer


def test_what_a_newer_hub_adds_is_left_out_and_what_an_older_one_has_not_gets_its_default() -> None:
    fleet = told()
    del fleet["alerts"], fleet["problems"]
    fleet["weather"] = {"sun": True}
    (host,) = fleet["hosts"]  # type: ignore[misc]
    host |= {"rack": 7}
    (gpu,) = host["gpus"]
    del gpu["events"], gpu["reservation"], gpu["reservation_conflict"], gpu["energy_joules"]
    gpu["tensor_percent"] = 3
    seen = read_answer(msgspec.json.encode(fleet), Fleet, HUB)
    assert (seen.alerts, seen.hosts[0].gpus[0].events, seen.hosts[0].gpus[0].energy_joules) == ([], [], None)
    assert "alice" in render_fleet(seen, detail=True)


def test_value_that_does_not_fit_names_both_versions_and_what_to_do() -> None:
    fleet = told() | {"version": "99.1"}
    fleet["hosts"][0]["gpus"][0]["availability"] = "lent"  # type: ignore[index]
    with pytest.raises(Unreachable) as error:
        read_answer(msgspec.json.encode(fleet), Fleet, HUB)
    assert error.value.message.startswith(f"{HUB} answers, but not as a hub of this version would: Invalid enum value")
    assert error.value.message.endswith(f"it is gpudeck 99.1, and this is gpudeck {__version__}.")
    assert "version" in error.value.hint
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'"text"', b"{"])
def test_what_is_no_object_is_no_hubs_answer(body: bytes) -> None:
    with pytest.raises(Unreachable, match="answers, but not as a hub of this version would"):
        read_answer(body, Fleet, HUB)


def test_answer_without_a_version_is_explained_all_the_same() -> None:
    reserved = msgspec.to_builtins(make(ShownReservation, id=1))
    body = msgspec.json.encode({"reservations": [reserved | {"state": "lost"}], "time": 0, "is_cut": False})
    with pytest.raises(Unreachable, match=f"'lost'.*; this is gpudeck {__version__}"):
        read_answer(body, ReservationList, HUB)
