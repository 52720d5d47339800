"""The badge and the page for frames: right numbers, hostile names, and nothing for who may not look."""

import asyncio
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.fleet.hub import Hub

NOBODY: dict[str, str] = {}
VIEWER = {"Authorization": "Bearer viewer-token"}


def make_hub(clock: FakeClock, *names: str) -> Hub:
    """One free GPU and one in use on each host."""
    hub = Hub(now=clock)
    for name in names:
        gpus = [make_gpu(0, uuid=f"GPU-{name}-0"), make_busy_gpu(1, uuid=f"GPU-{name}-1")]
        hub.fleet.apply(make_envelope(name, gpus=gpus), via="push", now=clock())
    hub.stream.tick()
    return hub


def get(app: Any, path: str, headers: dict[str, str] = NOBODY) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("192.0.2.7", 40000))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub.example") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(call())


@pytest.fixture
def app(tmp_path: Path) -> Any:
    return make_app(make_hub(FakeClock(), "gpu01", "gpu02"), folder=tmp_path)


def test_badge_counts_free_gpus_and_is_a_picture(app: Any) -> None:
    answer = get(app, "/badge/free.svg")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert answer.headers["cache-control"] == "no-store"
    assert ET.fromstring(answer.text).attrib["aria-label"] == "free GPUs: 2 of 4"


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("q=host:gpu01", "free GPUs: 1 of 2"),
        ("q=free", "free GPUs: 2 of 2"),
        ("q=no-such-thing", "free GPUs: no GPU known"),
        ("model=no-such-model", "free GPUs: no GPU known"),
        ("model=%22%3Elots%22", "free GPUs: no GPU known"),
        ("label=lab+%3Cb%3E%26%22", 'lab <b>&": 2 of 4'),
    ],
)
def test_badge_takes_words_and_a_label(app: Any, question: str, told: str) -> None:
    assert ET.fromstring(get(app, f"/badge/free.svg?{question}").text).attrib["aria-label"] == told


def test_words_that_mean_nothing_are_an_error_in_the_picture(app: Any) -> None:
    answer = get(app, "/badge/free.svg?q=>lots")
    assert answer.status_code == 400
    assert "is not understood" in ET.fromstring(answer.text).attrib["aria-label"]


def test_host_that_stopped_reporting_has_no_free_gpu(tmp_path: Path) -> None:
    clock = FakeClock()
    hub = make_hub(clock, "gpu01")
    clock.advance(3600)
    for host in hub.fleet.hosts.values():
        host.age(clock())
    hub.stream.tick()
    app = make_app(hub, folder=tmp_path)
    assert "0 of 2, 2 unknown" in get(app, "/badge/free.svg").text
    assert ">0</b> of 2 GPUs free" in get(app, "/embed/fleet").text


def test_frame_is_allowed_for_this_page_only_and_has_no_script(app: Any) -> None:
    answer = get(app, "/embed/fleet")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert "frame-ancestors *" in policy
    assert "script" not in policy
    assert "<script" not in answer.text
    assert answer.headers["refresh"] == "30"
    assert ">2</b> of 4 GPUs free" in answer.text
    for other in ("/", "/badge/free.svg", "/api/v1/fleet"):
        assert "frame-ancestors *" not in get(app, other).headers.get("content-security-policy", "")


def test_model_with_a_hostile_name_is_text(tmp_path: Path) -> None:
    hub = Hub(now=FakeClock())
    hub.fleet.apply(make_envelope("gpu01", gpus=[make_gpu(0, name="<img src=x>&")]), via="push", now=hub.stream.time)
    hub.stream.tick()
    text = get(make_app(hub, folder=tmp_path), "/embed/fleet?q=img").text
    assert "<img" not in text
    assert "&lt;img src=x&gt;&amp;" in text


def test_who_may_not_read_gets_a_clear_401_and_no_number(tmp_path: Path) -> None:
    app = make_app(make_hub(FakeClock(), "gpu01"), is_readable=False, folder=tmp_path)
    badge, frame = get(app, "/badge/free.svg"), get(app, "/embed/fleet")
    assert (badge.status_code, frame.status_code) == (401, 401)
    assert ET.fromstring(badge.text).attrib["aria-label"] == "free GPUs: log in to see"
    assert "of 2" not in badge.text + frame.text
    assert "Open gpudeck" in frame.text
    assert get(app, "/badge/free.svg", VIEWER).status_code == 200
    assert get(app, "/embed/fleet", VIEWER).status_code == 200
    # A token in the address would stand in the source of every page that shows the badge.
    assert get(app, "/badge/free.svg?token=viewer-token").status_code in {400, 401}
