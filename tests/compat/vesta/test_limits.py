"""Senders behind one gateway are measured one by one, strangers all together; a refusal is one that senders know."""

from pathlib import Path
from typing import Any

import pytest

from fakes.vesta import TOKEN, VestaHub, make_post
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import REGISTRATIONS_BURST

FORBIDDEN = {"status": "ERROR", "status_code": 403, "message": "forbidden", "info": "forbidden"}
FEW = LimitsSettings(requests_per_second=1.0, requests_burst=3, reports_per_second=1.0, reports_burst=5)


@pytest.fixture
def vesta(tmp_path: Path) -> VestaHub:
    return VestaHub(tmp_path)


def codes(answers: list[dict[str, Any]]) -> list[int]:
    return [answer["status_code"] for answer in answers]


def test_each_sender_behind_a_gateway_has_the_measure_of_reports(vesta: VestaHub) -> None:
    ids = [vesta.add(f"gpu{number}")["id"] for number in range(4)]
    limited = vesta.limit(FEW)
    for host_id in ids:
        assert codes([vesta.post(host_id, make_post()) for _ in range(6)]) == [200] * 5 + [403]
    assert limited.hits == {"reports": 4}
    assert vesta.get("/healthz").status_code == 200
    vesta.clock.advance(1.0)
    assert codes([vesta.post(ids[0], make_post()) for _ in range(2)]) == [200, 403]


def test_more_posts_come_from_one_address_than_requests_with_the_limits_as_they_are(vesta: VestaHub) -> None:
    ids = [vesta.add(f"gpu{number}")["id"] for number in range(4)]
    limited = vesta.limit(LimitsSettings())
    answers = [vesta.post(ids[number % 4], {}) for number in range(250)]
    assert set(codes(answers)) == {200}
    assert limited.hits == {}


def test_a_sender_that_comes_too_often_is_answered_in_its_own_language(vesta: VestaHub) -> None:
    host_id = vesta.add("gpu1")["id"]
    vesta.limit(LimitsSettings(reports_per_second=1.0, reports_burst=1))
    vesta.post(host_id, make_post())
    answer = vesta.call("POST", f"/update/host/{host_id}?token={TOKEN}", json=make_post())
    assert (answer.status_code, answer.json()) == (200, FORBIDDEN)
    assert vesta.register.get(host_id).sequence == 1  # type: ignore[union-attr]


def test_being_refused_does_not_make_the_wait_longer(vesta: VestaHub) -> None:
    host_id = vesta.add("gpu1")["id"]
    vesta.limit(LimitsSettings(reports_per_second=1.0, reports_burst=1))
    assert codes([vesta.post(host_id, make_post()) for _ in range(9)]) == [200] + [403] * 8
    vesta.clock.advance(1.0)
    assert vesta.post(host_id, make_post())["status_code"] == 200


def test_strangers_count_as_everything_of_their_address_whatever_they_guess(vesta: VestaHub) -> None:
    host_id = vesta.add("gpu1")["id"]
    limited = vesta.limit(FEW)
    for number in range(6):
        assert vesta.post(host_id, make_post(), token=f"guess-{number}") == FORBIDDEN
    assert limited.hits == {"requests": 3}
    assert vesta.add("gpu2", token="wrong") == FORBIDDEN
    assert limited.hits == {"requests": 4}
    assert vesta.get("/healthz").status_code == 429
    assert vesta.post(host_id, make_post())["status_code"] == 200


def test_posts_to_ids_that_nobody_has_count_as_everything_of_their_address(vesta: VestaHub) -> None:
    limited = vesta.limit(FEW)
    assert codes([vesta.post(f"abc{number}", make_post()) for number in range(5)]) == [404] * 3 + [403] * 2
    assert limited.hits == {"requests": 2}


def test_registering_has_a_measure_of_its_own(vesta: VestaHub) -> None:
    limited = vesta.limit(FEW)
    assert codes([vesta.add("") for _ in range(5)]) == [403] * 5
    assert limited.hits == {}
    answers = [vesta.get(f"/register/?host_name=&token={TOKEN}") for _ in range(REGISTRATIONS_BURST - 4)]
    assert limited.hits == {"registrations": 1}
    assert (answers[-1].status_code, answers[-1].json()) == (200, FORBIDDEN)
    assert vesta.get("/healthz").status_code == 200


def test_posts_that_are_read_in_vain_cost_more(vesta: VestaHub) -> None:
    host_id, other = vesta.add("gpu1")["id"], vesta.add("gpu2")["id"]
    limited = vesta.limit(FEW)
    assert vesta.post(host_id, ["junk"]) == FORBIDDEN
    assert limited.hits == {}
    assert vesta.post(host_id, make_post()) == FORBIDDEN
    assert limited.hits == {"reports": 1}
    assert vesta.post(other, make_post())["status_code"] == 200


@pytest.mark.parametrize("path", ["/gpus/update/host/{}", "/update/host/{}", "/update/host/{}/"])
def test_the_paths_below_the_prefix_are_the_same(vesta: VestaHub, path: str) -> None:
    host_id = vesta.add("gpu1")["id"]
    limited = vesta.limit(FEW, prefix="/gpus/")
    for _ in range(6):
        vesta.call("POST", f"{path.format(host_id)}?token={TOKEN}", content=b"{}")
    assert limited.hits == {"reports": 1}


def test_readers_are_told_as_ever(vesta: VestaHub) -> None:
    vesta.limit(FEW)
    assert [vesta.get("/states/").status_code for _ in range(4)] == [200, 200, 200, 429]
