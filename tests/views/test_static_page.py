"""The moment as one HTML file: every state told apart, nothing of a name becomes HTML, small enough to be mailed."""

import base64
import hashlib
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.fleets import fleet_of
from fakes.reports import GIB, IDLE, make_busy_gpu, make_gpu, make_process
from gpudeck.model.report import GpuReading
from gpudeck.views.static_page import render_page

TAGS = {
    "html",
    "meta",
    "title",
    "style",
    "h1",
    "time",
    "p",
    "span",
    "small",
    "details",
    "summary",
    "b",
    "i",
    "u",
    "script",
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "</title><b>",
    "&lt;",
    "\u202egnp.exe",
)


class Page(HTMLParser):
    """Which tags and attributes there are, and the text of each GPU and host."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.gpus: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._state = ""
        self._is_told = self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self._state = dict(attrs).get("class") or "" if tag == "i" else self._state
        self._is_told, self._is_script = tag == "u", tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._is_told = False

    def handle_data(self, data: str) -> None:
        if not self._is_script:
            self.words.append(data)
        if self._is_told:
            self.gpus.append((self._state, data))


def page_of(*hosts: tuple[str, list[GpuReading]], **others: Any) -> Page:
    return Page(render_page(fleet_of(*hosts, **others)))


def test_every_state_has_its_class_its_sign_and_its_word() -> None:
    held = make_busy_gpu(2, user="carol", idle_seconds=7200.0, metrics={"utilization_percent": 0})
    lost = make_gpu(3, metrics=dict.fromkeys(IDLE), processes=None, missing="fell off the bus (Xid 79)")
    text = render_page(fleet_of(("gpu01", [make_gpu(0), make_busy_gpu(1), held, lost])))
    assert [state for state, _ in Page(text).gpus] == ["free", "busy", "idle", "unknown"]
    assert all(sign in text for sign in ("=free>●", "=busy>■", "=idle>◐", "=unknown>?"))
    assert "<title>1 of 4 GPUs free</title>" in text


def test_who_is_on_it_with_how_much_stands_behind_the_sign() -> None:
    ((_, busy),) = page_of(("gpu01", [make_busy_gpu(1)])).gpus
    assert busy.startswith("1 busy, alice, 20/80 GiB, 31 °C, for ")


def test_several_people_have_their_memory_each() -> None:
    processes = [make_process(1, "alice", gib=4), make_process(2, "bob", gib=6), make_process(3, "alice", gib=1)]
    gpu = make_gpu(metrics={"memory_used_bytes": 11 * GIB, "utilization_percent": 50}, processes=processes)
    ((_, told),) = page_of(("gpu01", [gpu])).gpus
    assert "bob 6.0 GiB + alice 5.0 GiB" in told


def test_unknown_is_a_dash_or_its_reason_and_never_zero() -> None:
    ((_, dash),) = page_of(
        ("gpu01", [make_busy_gpu(metrics={"temperature_celsius": None, "memory_used_bytes": None})])
    ).gpus
    assert dash.startswith("0 busy, alice, –/80 GiB, –, for ")
    lost = make_gpu(metrics=dict.fromkeys(IDLE), processes=None, missing="fell off the bus (Xid 79)")
    ((_, gone),) = page_of(("gpu01", [lost])).gpus
    assert gone.count("fell off the bus") == 1
    assert "–" not in gone


def test_silent_host_has_nothing_free_and_says_since_when() -> None:
    page = page_of(("gpu01", [make_gpu(0), make_busy_gpu(1)]), silent_for=600)
    assert [state for state, _ in page.gpus] == ["unknown", "unknown"]
    assert "last seen: alice" in page.gpus[1][1]
    assert any(words.startswith("down, silent for 10m") for words in page.words)


def test_host_without_gpus_says_why_and_an_empty_fleet_how_to_begin() -> None:
    assert any("gpus" in words.lower() for words in page_of(("gpu01", [])).words[-3:])
    assert any("gpudeck agent" in words for words in page_of().words)


def test_demo_is_labelled() -> None:
    assert "demo data" in page_of(("gpu01", [make_gpu()]), demo=True).words
    assert "demo data" not in page_of(("gpu01", [make_gpu()])).words


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    text = render_page(fleet_of(("gpu01", [make_busy_gpu(0, user=name, name=name)])))
    page = Page(text)
    assert page.tags <= TAGS
    assert not any(attribute.startswith("on") or attribute == "src" for attribute in page.attributes)
    assert "\u202e" not in text
    assert name.replace("\u202e", "�") in "".join(page.words)


@given(st.text(min_size=1, max_size=400))
def test_any_name_leaves_the_page_as_it_is(name: str) -> None:
    text = render_page(fleet_of(("gpu01", [make_busy_gpu(0, user=name, name=name)])))
    page = Page(text)
    assert page.tags <= TAGS
    assert page.attributes <= {"lang", "charset", "name", "content", "http-equiv", "class", "datetime", "id"}
    assert len(page.gpus) == 1
    text.encode()


def test_load_and_memory_stand_beside_the_sign_and_nothing_beside_what_is_not_known() -> None:
    idle = make_gpu(1, metrics={"utilization_percent": None})
    lost = make_gpu(2, metrics=dict.fromkeys(IDLE), processes=None, missing="fell off the bus (Xid 79)")
    text = render_page(fleet_of(("gpu01", [make_busy_gpu(0), idle, lost])))
    assert "=busy>■<b>97% 20G</b><u>" in text
    assert "=free>●<b>– 0G</b><u>" in text
    assert "=unknown>?<u>" in text


@pytest.mark.parametrize(("refresh", "is_told"), [(60, True), (5, True), (0, False)])
def test_page_loads_itself_again_unless_it_is_told_not_to(refresh: int, is_told: bool) -> None:
    text = render_page(fleet_of(("gpu01", [make_gpu()])), refresh)
    assert (f"<meta http-equiv=refresh content={refresh}>" in text) == is_told


def test_page_needs_nothing_and_runs_nothing_but_what_says_how_old_it_is() -> None:
    text = render_page(fleet_of(("gpu01", [make_gpu()])))
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none';style-src 'unsafe-inline';script-src 'sha256-{digest}'" in text
    assert text.count("<script") == 1
    assert not any(word in text for word in ("<link", "<img", "url(", "http://", "https://", "@import"))


def test_200_full_hosts_fit_into_a_mail() -> None:
    gpus = [make_busy_gpu(n, user=f"longlogin{n:02}", uuid=f"GPU-{n}") for n in range(8)]
    fleet = fleet_of(("gpu01", gpus))
    fleet.hosts = [replace(fleet.hosts[0], display_name=f"gpu{n:03}.cluster.example") for n in range(200)]
    assert len(render_page(fleet).encode()) < 200_000


def test_long_names_and_many_problems_are_cut() -> None:
    fleet = fleet_of(("gpu01", [make_busy_gpu(user="x" * 5000)]))
    fleet.hosts[0].display_name, fleet.hosts[0].problems = "y" * 5000, ["z" * 5000] * 500
    assert len(render_page(fleet)) < 30_000
