"""Who has which GPUs when, on the page: reservation by a drag, by keys and by a form, seen at once by others."""

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, FloatRect, Locator, Page, expect

from e2e.axe import serious_violations
from e2e.looking import is_wider_than_its_window, make_envelope
from fakes.hubs import HubProcess, running_hub
from fakes.pushed import send
from fakes.reports import make_busy_gpu, make_gpu
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Opens = Callable[..., Page]

PASSWORD = "four-random-words"
HOUR = 3600
BERLIN = ZoneInfo("Europe/Berlin")


class Site:
    """A hub that everybody may look at, with one idle host of four GPUs; ada administers it, bob and eve use it."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.sequence = 0
        self.cookies: dict[str, str] = {}
        # Until there is an account, whoever sits at the hub's machine may do everything.
        for name, role in (("ada", "admin"), ("bob", "user"), ("eve", "user")):
            account = {"name": name, "role": role, "password": PASSWORD}
            self.ask("POST", "accounts", account, "ada")
            self.cookies[name] = self._come_in({"name": name, "password": PASSWORD})
        self.report()

    def report(self, *users: str) -> None:
        """The host is there, with these users on its first GPUs: what is silent is offered to nobody."""
        self.sequence += 1
        busy = [make_busy_gpu(index, user=user) for index, user in enumerate(users)]
        gpus = [*busy, *(make_gpu(index) for index in range(len(users), 4))]
        send(self.hub, make_envelope(sequence=self.sequence, gpus=gpus, interval_seconds=60.0))

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, user: str = "bob") -> dict[str, Any]:
        with self._open(method, path, body, self.cookies.get(user, "")) as answer:
            said: dict[str, Any] = json.loads(answer.read())
            return said

    def book(self, user: str, index: int, start: float, hours: float = 4, note: str = "") -> dict[str, Any]:
        body = {"gpus": [f"GPU-{index}"], "start": start, "end": start + hours * HOUR, "note": note}
        return self.ask("POST", "reservations", body, user)

    def reservations(self) -> list[dict[str, Any]]:
        return list(self.ask("GET", "reservations")["reservations"])

    def clear(self) -> None:
        for reservation in self.reservations():
            self.ask("DELETE", f"reservations/{reservation['id']}", user="ada")

    def _come_in(self, account: dict[str, Any]) -> str:
        with self._open("POST", "login", account) as answer:
            return str(answer.headers["Set-Cookie"]).partition(";")[0]

    def _open(self, method: str, path: str, body: dict[str, Any] | None, cookie: str = "") -> Any:
        headers = {"Content-Type": "application/json", "Cookie": cookie}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.hub.url}/api/v1/{path}", content, headers, method=method)
        return urllib.request.urlopen(request, timeout=60)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "gpudeck.yaml").write_text("read: open\ndemo: never\nlocal: never\n")
    with running_hub(folder) as hub:
        yield Site(hub)


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The one site, with nothing reserved."""
    shared_site.report()
    shared_site.clear()
    return shared_site


@pytest.fixture
def opened(chromium: Browser, site: Site) -> Iterator[Opens]:
    with opening(chromium, site) as open_page:
        yield open_page


@contextlib.contextmanager
def opening(chromium: Browser, site: Site) -> Iterator[Opens]:
    """Opens a page of the site as somebody. Refusals are no mistakes of a page; scripts that fail and warnings are."""
    pages: list[Page] = []
    mistakes: list[str] = []

    def note(kind: str, text: str) -> None:
        mistakes.extend([text] if kind in {"error", "warning"} and "Failed to load resource" not in text else [])

    def open_page(user: str | None, place: str = "#/reservations", width: int = 1440, **options: Any) -> Page:
        options = {"timezone_id": "Europe/Berlin", "locale": "de-DE"} | options
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        name, _, value = site.cookies.get(user or "", "").partition("=")
        context.add_cookies([{"name": name, "value": value, "url": site.hub.url}] if name else [])
        page = context.new_page()
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.on("console", lambda message: note(message.type, message.text))
        page.goto(f"{site.hub.url}/{place}")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert mistakes == []


def midnight(days: int) -> float:
    """When the day that is so many days ahead begins in Berlin."""
    today = datetime.now(BERLIN).replace(hour=0, minute=0, second=0, microsecond=0)
    return (today + timedelta(days=days)).timestamp()


def morning(days: int = 1) -> float:
    """Nine o'clock in Berlin, so many days ahead; eight or ten where the clocks are changed that night."""
    return midnight(days) + 9 * HOUR


def marks(page: Page) -> Locator:
    return page.locator(".timeline .mark.reservation")


def row_of(page: Page, text: str) -> float:
    """The middle of a row on the screen."""
    box = page.locator(".timeline .label").filter(has_text=text).bounding_box()
    assert box is not None
    return box["y"] + box["height"] / 2


def column_of(page: Page, part: float) -> float:
    """A place on the time axis, 0 to 1, on the screen."""
    box = page.locator(".timeline .lane").first.bounding_box()
    assert box is not None
    return box["x"] + part * box["width"]


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=4)
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def resting_box(page: Page, mark: Locator) -> FloatRect:
    """Where a mark is. It is drawn anew when reservations are read again, and in that moment has no place, or its
    old one."""
    boxes: list[FloatRect | None] = [None]

    def is_resting() -> bool:
        page.wait_for_timeout(200)
        boxes.append(mark.bounding_box())
        return boxes[-1] is not None and boxes[-1] == boxes[-2]

    wait_until(is_resting, "a mark that is drawn")
    assert boxes[-1] is not None
    return boxes[-1]


def drag_mark(page: Page, mark: Locator, by: float, *, at: float = 0.5) -> None:
    """Take a mark at a part of its width and carry it so many pixels to the right."""
    box = resting_box(page, mark)
    x, y = box["x"] + at * box["width"], box["y"] + box["height"] / 2
    drag(page, (x, y), (x + by, y))


def test_drag_over_rows_of_a_host_reserves_them(site: Site, opened: Opens) -> None:
    today = datetime.now(BERLIN).date()
    page = opened("bob")
    expect(page.get_by_text("Times are in Europe/Berlin")).to_be_visible()
    x = column_of(page, 3.5 / 7)
    drag(page, (x, row_of(page, "GPU 1")), (x + 60, row_of(page, "GPU 2")))
    form = page.get_by_role("dialog", name="Reserve GPUs")
    expect(form.get_by_role("checkbox", name="1")).to_be_checked()
    expect(form.get_by_role("checkbox", name="2")).to_be_checked()
    expect(form.get_by_role("checkbox", name="3")).not_to_be_checked()
    form.get_by_label("Duration", exact=True).fill("1d 6h")
    form.get_by_label("Note").fill("論文 <b>")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form).to_be_hidden()
    expect(marks(page).filter(has_text="論文 <b>")).to_have_count(2)
    (made,) = site.reservations()
    assert [gpu["label"] for gpu in made["gpus"]] == ["1", "2"]
    assert made["end"] - made["start"] == 30 * HOUR
    days = {today + timedelta(days=3), datetime.now(BERLIN).date() + timedelta(days=3)}
    assert datetime.fromtimestamp(made["start"], BERLIN).date() in days


def test_own_reservation_moves_and_stretches_and_that_of_others_stays(site: Site, opened: Opens) -> None:
    own = site.book("bob", 0, morning(1), hours=12)
    other = site.book("eve", 1, morning(1), hours=12)
    page = opened("bob")
    mine = marks(page).filter(has_text="bob")
    drag_mark(page, mine, 200)
    expect(mine).to_have_attribute("title", re.compile("bob"))
    wait_until(lambda: site.ask("GET", f"reservations/{own['id']}")["version"] == 2, "the changed reservation")
    moved = site.ask("GET", f"reservations/{own['id']}")
    assert moved["end"] - moved["start"] == 12 * HOUR
    assert moved["start"] > own["start"] + 20 * HOUR
    drag_mark(page, mine, 100, at=0.99)
    wait_until(lambda: site.ask("GET", f"reservations/{own['id']}")["version"] == 3, "the changed reservation")
    longer = site.ask("GET", f"reservations/{own['id']}")
    assert longer["start"] == moved["start"]
    assert longer["end"] > moved["end"] + 8 * HOUR
    drag_mark(page, marks(page).filter(has_text="eve"), 200)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert site.ask("GET", f"reservations/{other['id']}")["version"] == 1


def test_reservation_of_several_gpus_moves_as_one(site: Site, opened: Opens) -> None:
    body = {"gpus": ["GPU-0", "GPU-3"], "start": morning(1), "for": "12h", "note": "pair"}
    made = site.ask("POST", "reservations", body)
    page = opened("bob")
    expect(marks(page)).to_have_count(2)
    drag_mark(page, marks(page).first, 200)
    wait_until(lambda: site.ask("GET", f"reservations/{made['id']}")["version"] == 2, "the changed reservation")
    moved = site.ask("GET", f"reservations/{made['id']}")
    assert moved["start"] > made["start"]
    assert [gpu["label"] for gpu in moved["gpus"]] == ["0", "3"]


def test_day_on_which_the_clock_is_changed_is_as_long_as_it_is(site: Site, opened: Opens) -> None:
    days = (datetime(datetime.now(BERLIN).year + later, 3, 31, tzinfo=BERLIN) for later in (0, 1))
    spring = next(day for day in days if day > datetime.now(BERLIN) + timedelta(days=7))
    spring -= timedelta(days=spring.isoweekday() % 7)
    made = site.book("ada", 0, (spring + timedelta(hours=1)).timestamp(), hours=4)
    page = opened("ada", f"#/reservations?view=day&day={spring:%Y-%m-%d}")
    mark, lane = marks(page).bounding_box(), page.locator(".timeline .lane").first.bounding_box()
    assert mark is not None
    assert lane is not None
    assert (mark["x"] - lane["x"]) / lane["width"] == pytest.approx(1 / 23, abs=0.002)
    assert mark["width"] / lane["width"] == pytest.approx(4 / 23, abs=0.002)
    expect(page.locator(f"[data-reservation='{made['id']}']")).to_contain_text("01:00 – 06:00")


def test_conflict_names_who_has_it_and_the_next_free_time_is_a_button(site: Site, opened: Opens) -> None:
    taken = site.book("eve", 2, morning(1), hours=6, note="thesis")
    start, until = taken["start"] + HOUR, taken["start"] + 3 * HOUR
    page = opened("bob", f"#/reservations?new=GPU-2&from={start:.0f}&until={until:.0f}")
    form = page.get_by_role("dialog", name="Reserve GPUs")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("eve reserved gpu01: 2")
    expect(form.get_by_role("alert")).to_contain_text("(thesis)")
    form.get_by_role("button", name="Use this slot").click()
    expect(form).to_be_hidden()
    (made,) = [one for one in site.reservations() if one["user"] == "bob"]
    assert (made["start"], made["end"]) == (taken["end"], taken["end"] + 2 * HOUR)


def test_drag_onto_what_others_have_goes_back_and_says_why(site: Site, opened: Opens) -> None:
    site.book("eve", 0, morning(2), hours=24)
    own = site.book("bob", 0, morning(1), hours=12)
    page = opened("bob")
    drag_mark(page, marks(page).filter(has_text="bob"), column_of(page, 1 / 7) - column_of(page, 0))
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("eve reserved gpu01: 0")
    dialog.get_by_role("button", name="Close").click()
    assert site.ask("GET", f"reservations/{own['id']}")["version"] == 1


def test_second_of_two_edits_sees_what_the_first_made_of_it(site: Site, opened: Opens) -> None:
    made = site.book("bob", 0, morning(1), note="first")
    page = opened("bob", f"#/reservations?reservation={made['id']}")
    page.get_by_role("button", name="Edit").click()
    site.ask("PATCH", f"reservations/{made['id']}", {"note": "newer", "for": "2h"}, "ada")
    form = page.get_by_role("dialog")
    form.get_by_label("Note").fill("mine")
    form.get_by_role("button", name="Save", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("newer")
    form.get_by_role("button", name="Load current version").click()
    expect(form.get_by_label("Note")).to_have_value("newer")
    form.get_by_label("Note").fill("both")
    form.get_by_role("button", name="Save", exact=True).click()
    expect(form).to_be_hidden()
    assert site.ask("GET", f"reservations/{made['id']}")["note"] == "both"


def test_next_slot_is_found_and_reserved(site: Site, opened: Opens) -> None:
    page = opened("bob")
    page.get_by_role("button", name="Next free slot").click()
    dialog = page.get_by_role("dialog", name="Next free slot")
    dialog.get_by_label("Number of GPUs").fill("5")
    dialog.get_by_role("button", name="Find").click()
    expect(dialog.get_by_role("alert")).to_contain_text("The fleet has only 4 GPUs")
    dialog.get_by_label("Number of GPUs").fill("2")
    dialog.get_by_label("Memory per GPU").fill("40GiB")
    dialog.get_by_label("Duration").fill("3h")
    dialog.get_by_role("button", name="Find").click()
    expect(dialog).to_contain_text("gpu01: 0, 1")
    dialog.get_by_role("button", name="Reserve").click()
    expect(dialog).to_be_hidden()
    (made,) = site.reservations()
    assert (len(made["gpus"]), made["end"] - made["start"]) == (2, 3 * HOUR)


def test_any_that_fit_are_reserved(site: Site, opened: Opens) -> None:
    page = opened("bob")
    page.get_by_role("button", name="Reserve", exact=True).click()
    form = page.get_by_role("dialog", name="Reserve GPUs")
    form.get_by_label("any matching GPUs").check()
    form.get_by_label("Number of GPUs").fill("3")
    form.get_by_label("Duration", exact=True).fill("two hours")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form.get_by_role("alert")).to_contain_text("Enter a duration such as 4h")
    form.get_by_label("Duration", exact=True).fill("2h")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form).to_be_hidden()
    assert [len(one["gpus"]) for one in site.reservations()] == [3]


def test_four_gpus_on_one_host_for_tomorrow_are_those_of_the_preview_and_can_be_undone(
    site: Site, opened: Opens
) -> None:
    tomorrow = midnight(1)
    site.report("zoe")
    beside = site.book("eve", 3, morning(2), note="thesis")
    page = opened("bob")
    page.get_by_role("button", name="Reserve", exact=True).click()
    form = page.get_by_role("dialog", name="Reserve GPUs")
    form.get_by_label("Number of GPUs").fill("4")
    form.get_by_label("all on one host").check()
    form.get_by_role("button", name="Tomorrow", exact=True).click()
    preview = form.get_by_role("region", name="Preview")
    expect(preview).to_contain_text("4 GPUs on gpu01")
    # Those that nobody is on come first.
    expect(preview.get_by_role("listitem").last).to_contain_text("in use now by zoe")
    expect(preview).to_contain_text("Nothing else is reserved on gpu01 in this time.")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form).to_be_hidden()
    made = next(one for one in site.reservations() if one["id"] != beside["id"])
    # Or the day after, if it is past midnight now.
    assert made["start"] in {tomorrow, midnight(1)}
    assert len(made["gpus"]) == 4
    toast = page.get_by_role("status").filter(has_text="Reserved gpu01: 0, 1, 2, 3")
    toast.get_by_role("button", name="Undo").click()
    expect(page.get_by_text(f"Reservation {made['id']} cancelled")).to_be_visible()
    assert site.ask("GET", f"reservations/{made['id']}")["state"] == "cancelled"
    expect(marks(page).filter(has_text="bob")).to_have_count(0)


def test_preview_says_what_is_in_the_way_before_anything_is_reserved(site: Site, opened: Opens) -> None:
    beside = site.book("eve", 3, morning(1), hours=6, note="thesis")
    page = opened("bob", f"#/reservations?new=GPU-1&from={beside['start']:.0f}&until={beside['end']:.0f}")
    form = page.get_by_role("dialog", name="Reserve GPUs")
    expect(form.get_by_role("region", name="Preview")).to_contain_text("eve reserved gpu01: 3")
    form.get_by_role("checkbox", name="3").check()
    expect(form.get_by_role("status").filter(has_text="is reserved by eve (thesis)")).to_contain_text("Next free slot")
    assert len(site.reservations()) == 1


def test_gpu_in_use_does_not_look_free_on_the_timeline(site: Site, opened: Opens) -> None:
    site.report("zoe", "mara")
    page = opened("bob")
    expect(page.locator(".timeline .row").filter(has_text="GPU 0").locator(".use")).to_be_visible()
    expect(page.locator(".timeline .label").filter(has_text="GPU 1").locator(".user")).to_have_text("mara")
    expect(page.locator(".timeline .row").filter(has_text="GPU 2").locator(".use")).to_have_count(0)
    expect(page.get_by_role("button", name="gpu01")).to_contain_text("4 GPUs, 2 in use now")


def test_release_and_move_are_undone(site: Site, opened: Opens) -> None:
    made = site.book("bob", 0, morning(1), note="thesis")
    page = opened("bob", f"#/reservations?reservation={made['id']}")
    card = page.get_by_role("dialog", name=f"Reservation {made['id']}")
    card.get_by_role("button", name="Extend by 1h").click()
    # The page lies under the card: what can be pressed stands in it.
    card.get_by_role("button", name="Undo").click()
    expect(card.get_by_text(f"Reservation {made['id']} is as it was")).to_be_visible()
    assert site.ask("GET", f"reservations/{made['id']}")["end"] == made["end"]
    page.reload()
    card.get_by_role("button", name="Delete").click()
    card.get_by_role("button", name="Delete").click()
    expect(card.get_by_text(f"Reservation {made['id']} released")).to_be_visible()
    card.get_by_role("button", name="Close").click()
    page.keyboard.press("Control+z")
    expect(page.get_by_text("Reserved again: gpu01: 0")).to_be_visible()
    (again,) = site.reservations()
    assert (again["start"], again["end"], again["note"], again["user"]) == (made["start"], made["end"], "thesis", "bob")


def test_what_is_reserved_elsewhere_appears_at_once(site: Site, opened: Opens) -> None:
    page = opened(None)
    expect(page.get_by_text("No reservations in this period")).to_be_visible()
    made = site.book("eve", 3, morning(3), note="from a terminal")
    expect(marks(page).filter(has_text="from a terminal")).to_be_visible()
    expect(page.locator(f"[data-reservation='{made['id']}']")).to_contain_text("eve")
    site.ask("DELETE", f"reservations/{made['id']}", user="eve")
    expect(marks(page)).to_have_count(0)


def test_stranger_sees_all_and_is_asked_to_log_in_to_book(site: Site, opened: Opens) -> None:
    made = site.book("eve", 3, morning(1), note="thesis")
    page = opened(None)
    marks(page).filter(has_text="thesis").click()
    card = page.get_by_role("dialog", name=f"Reservation {made['id']}")
    expect(card).to_contain_text("eve")
    expect(card.get_by_role("button", name="Delete")).to_have_count(0)
    card.get_by_role("button", name="Close").click()
    x = column_of(page, 3.5 / 7)
    drag(page, (x, row_of(page, "GPU 1")), (x + 60, row_of(page, "GPU 1")))
    page.get_by_role("textbox", name="Name").fill("bob")
    page.get_by_role("textbox", name="Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog", name="Reserve GPUs")
    expect(form.get_by_role("checkbox", name="1")).to_be_checked()
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(marks(page).filter(has_text="bob")).to_be_visible()


def test_what_was_filled_in_is_there_after_a_session_ended(site: Site, opened: Opens) -> None:
    page = opened("bob")
    page.get_by_role("button", name="Reserve", exact=True).click()
    form = page.get_by_role("dialog", name="Reserve GPUs")
    form.get_by_label("specific GPUs").check()
    form.get_by_role("checkbox", name="2").check()
    form.get_by_label("Duration", exact=True).fill("2h 30m")
    form.get_by_label("Note").fill("keep me")
    expect(form.get_by_role("region", name="Preview")).to_contain_text("(2h 30m)")
    page.context.clear_cookies()
    form.get_by_role("button", name="Reserve", exact=True).click()
    page.get_by_role("textbox", name="Name").fill("bob")
    page.get_by_role("textbox", name="Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(form.get_by_role("checkbox", name="2")).to_be_checked()
    expect(form.get_by_label("Note")).to_have_value("keep me")
    form.get_by_role("button", name="Reserve", exact=True).click()
    expect(form).to_be_hidden()
    assert [one["end"] - one["start"] for one in site.reservations()] == [2.5 * HOUR]


def test_drag_over_what_is_past_says_so(site: Site, opened: Opens) -> None:
    page = opened("bob", "#/reservations?view=day&day=2026-01-05")
    drag(page, (column_of(page, 0.5), row_of(page, "GPU 1")), (column_of(page, 0.6), row_of(page, "GPU 1")))
    expect(page.get_by_text("That time is in the past")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_card_of_what_is_taken_away_meanwhile_says_what_became_of_it(site: Site, opened: Opens) -> None:
    made = site.book("bob", 0, morning(1))
    page = opened("bob", f"#/reservations?reservation={made['id']}")
    card = page.get_by_role("dialog", name=f"Reservation {made['id']}")
    expect(card).to_contain_text("planned")
    site.ask("DELETE", f"reservations/{made['id']}", user="ada")
    expect(card).to_contain_text("cancelled")


def test_everything_can_be_done_with_keys(site: Site, opened: Opens) -> None:
    page = opened("bob", f"#/reservations?new=GPU-1&from={morning(1):.0f}&until={morning(1) + 2 * HOUR:.0f}")
    page.get_by_label("Note").fill("by keys")
    page.keyboard.press("Enter")
    # The form gives the focus back as it closes: only then does it stay where it is put.
    expect(page.get_by_role("dialog")).to_have_count(0)
    marks(page).filter(has_text="by keys").press("Enter")
    page.get_by_role("button", name="Extend by 1h").press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("(3h)")
    page.get_by_role("button", name="Delete").press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Delete this reservation?")
    page.get_by_role("button", name="Delete").press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("cancelled")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(marks(page)).to_have_count(0)
    page.get_by_role("button", name="gpu01").press("Enter")
    expect(page.locator(".timeline .label")).to_have_count(1)


def test_collapsed_host_counts_what_is_reserved_and_filters_stand_in_the_address(site: Site, opened: Opens) -> None:
    site.book("eve", 3, morning(1), hours=24, note="thesis")
    page = opened("bob")
    page.get_by_role("button", name="gpu01").click()
    expect(page.locator(".timeline .count")).to_contain_text("1 of 4")
    page.locator(".timeline .count").click()
    page.get_by_label("reserved only").check()
    expect(page.locator(".timeline .label")).to_have_count(2)
    page.get_by_label("Filter rows").fill("nobody")
    expect(page.get_by_role("heading", name="No match")).to_be_visible()
    assert "q=nobody" in page.url
    page.get_by_role("button", name="Show all hosts").click()
    expect(page.locator(".timeline .label")).to_have_count(5)


def test_hub_that_does_not_answer_is_said_and_asked_again(site: Site, opened: Opens) -> None:
    page = opened("bob", "#/about")
    page.route("**/api/v1/reservations?*", lambda route: route.abort())
    page.goto(f"{site.hub.url}/#/reservations")
    expect(page.get_by_text("Reservations could not be loaded")).to_be_visible()
    page.unroute("**/api/v1/reservations?*")
    # A change of the fleet makes the page ask again as well: then the button is gone already.
    page.get_by_role("button", name="Try again").evaluate_all("buttons => buttons.forEach(button => button.click())")
    expect(page.locator(".timeline .label")).to_have_count(5)


def test_pages_of_gpu_host_and_user_say_what_is_reserved(site: Site, opened: Opens) -> None:
    site.report()
    made = site.ask("POST", "reservations", {"gpus": ["GPU-2"], "for": "4h", "note": "thesis"}, "eve")
    page = opened("bob", "#/gpu/GPU-2")
    expect(page.get_by_role("link", name=re.compile("Reserved by eve until .*: thesis"))).to_be_visible()
    page.goto(f"{site.hub.url}/#/host/gpu01")
    expect(page.locator(f"[data-reservation='{made['id']}']")).to_contain_text("thesis")
    page.get_by_role("link", name="Reserve host").click()
    expect(page.get_by_role("group", name="GPUs").get_by_role("checkbox", checked=True)).to_have_count(4)
    page.goto(f"{site.hub.url}/#/user/eve")
    page.locator(f"[data-reservation='{made['id']}'] a").click()
    expect(page.get_by_role("dialog")).to_contain_text("thesis")


def test_calendar_address_gets_a_token_of_its_own(site: Site, opened: Opens) -> None:
    site.book("bob", 0, morning(1), note="in my calendar")
    page = opened("bob")
    page.get_by_role("button", name="Subscribe").click()
    dialog = page.get_by_role("dialog", name="Subscribe")
    dialog.get_by_label("Reservations").select_option("me")
    dialog.get_by_role("button", name="Add a token").click()
    expect(dialog.locator("code")).to_contain_text("user=bob&token=gd_calendar_")
    with urllib.request.urlopen(dialog.locator("code").inner_text(), timeout=10) as answer:
        assert b"in my calendar" in answer.read()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_shut_out(site: Site, opened: Opens, scheme: str) -> None:
    made = site.book("bob", 0, morning(1), hours=24, note="thesis")
    site.book("eve", 1, morning(2), hours=24)
    page = opened("bob", color_scheme=scheme)
    expect(marks(page)).to_have_count(2)
    assert serious_violations(page) == []
    page.get_by_role("button", name="month").click()
    expect(marks(page).first).to_be_visible()
    assert serious_violations(page) == []
    page.goto(f"{site.hub.url}/#/reservations?reservation={made['id']}")
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_visible()
    assert serious_violations(page) == []


def test_page_fits_a_phone(site: Site, opened: Opens) -> None:
    made = site.book("bob", 0, morning(1), note="thesis")
    page = opened("bob", width=360, color_scheme="dark")
    expect(page.locator(f"[data-reservation='{made['id']}']")).to_be_visible()
    assert not is_wider_than_its_window(page)
    assert serious_violations(page) == []
    page.get_by_role("button", name="Reserve", exact=True).click()
    form = page.get_by_role("dialog")
    expect(form).to_be_visible()
    assert not is_wider_than_its_window(page)
    assert form.evaluate("form => form.scrollWidth <= form.clientWidth")
    # The preview is below what fits: what the button would do is said beside it.
    form.get_by_role("button", name="Tomorrow", exact=True).click()
    expect(form.locator(".summary")).to_contain_text("1 GPU on gpu01, ")
    expect(form.locator(".summary")).to_be_in_viewport()
    assert serious_violations(page) == []


def test_without_an_account_a_name_is_enough_where_the_hub_allows_it(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "gpudeck.yaml").write_text(
        "read: open\ndemo: never\nlocal: never\nreservations: {without_account: true}\n"
    )
    with running_hub(tmp_path) as hub:
        site = Site(hub)
        made = site.book("eve", 3, time.time() + HOUR, note="thesis")
        with opening(chromium, site) as opened:
            page = opened(None)
            page.get_by_role("button", name="Reserve", exact=True).click()
            form = page.get_by_role("dialog", name="Reserve GPUs")
            name, submit = form.get_by_label("Your name"), form.get_by_role("button", name="Reserve", exact=True)
            form.get_by_label("specific GPUs").check()
            form.get_by_role("checkbox", name="3").check()
            submit.click()
            expect(form).to_contain_text("Enter your name")
            expect(name).to_be_focused()
            name.fill("ada")
            submit.click()
            expect(form).to_contain_text("ada has an account here: log in to reserve by that name.")
            name.fill("Père Noël")
            submit.click()
            expect(form).to_contain_text("eve reserved gpu01: 3")
            form.get_by_role("checkbox", name="3").uncheck()
            form.get_by_role("checkbox", name="0").check()
            form.get_by_label("Duration", exact=True).fill("1d 6h")
            submit.click()
            expect(form).to_have_count(0)
            marks(page).filter(has_text="Père Noël").click()
            card = page.get_by_role("dialog", name=f"Reservation {made['id'] + 1}")
            expect(card).to_contain_text("Père Noël, created without an account")

            # Anybody else without an account may change it and give it back; what has an owner stays theirs.
            phone = opened(None, width=390)
            assert not is_wider_than_its_window(phone)
            phone.get_by_role("listitem").filter(has_text="eve").get_by_role("link").click()
            card = phone.get_by_role("dialog", name=f"Reservation {made['id']}")
            expect(card.get_by_role("button", name="Edit")).to_have_count(0)
            card.get_by_role("button", name="Close").click()
            phone.get_by_role("listitem").filter(has_text="Père Noël").get_by_role("link").click()
            card = phone.get_by_role("dialog", name=f"Reservation {made['id'] + 1}")
            card.get_by_role("button", name="Release").click()
            card.get_by_role("button", name="Release").click()
            wait_until(lambda: [one["id"] for one in site.reservations()] == [made["id"]], "what was released")
            card.get_by_role("button", name="Close").click()

            phone.get_by_role("button", name="Next free slot").click()
            finder = phone.get_by_role("dialog", name="Next free slot")
            finder.get_by_role("button", name="Find").click()
            finder.get_by_role("button", name="Reserve").click()
            expect(finder).to_contain_text("Enter your name")
            finder.get_by_label("Your name").fill("carol")
            finder.get_by_role("button", name="Reserve").click()
            wait_until(lambda: "carol" in {one["user"] for one in site.reservations()}, "carol's reservation")
