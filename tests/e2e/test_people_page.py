"""Who uses which GPUs now, and the page of one user, in a real browser."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from e2e.axe import serious_violations
from e2e.looking import fleet_of, is_wider_than_its_window, lasting_job, make_envelope
from fakes.hubs import HubProcess, running_hub
from fakes.pushed import send
from fakes.reports import IDLE, make_busy_gpu, make_gpu, make_process
from fakes.waiting import wait_until

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]

PATIENCE_MS = 30_000
"""A hub that makes up its past while it is asked about it takes its time."""

HOSTILE = (
    "<script>document.title='stolen'</script>",
    '"><img src=x onerror=alert(1)>',
    "🦊 fox",
    "x" * 250,
    "a/b?c#d&e",
)


def row_of(page: Page, user: str) -> Any:
    return page.locator("tbody tr").filter(has=page.locator("th", has_text=re.compile(f"^{re.escape(user)}$")))


def holdings(hub: HubProcess) -> dict[str, int]:
    """GPUs by user, counted from the API's own answer."""
    found: dict[str, set[str]] = defaultdict(set)
    for host in fleet_of(hub)["hosts"]:
        for gpu in host["gpus"] if host["status"] == "up" else ():
            for process in gpu["processes"] or ():
                if process["user"] is not None and not process["display"]:
                    found[process["user"]].add(gpu["uuid"])
    return {user: len(gpus) for user, gpus in found.items()}


def shown(page: Page) -> dict[str, int]:
    rows = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [row.dataset.user, row.querySelector('td b')?.textContent ?? '0'])"
    )
    return {user: int(count) for user, count in rows if user}


def test_rows_tell_what_the_api_tells(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/people?sort=user")
    expect(page.locator("tbody tr").first).to_be_visible()

    def is_the_same() -> bool:
        before, seen, after = holdings(past), shown(page), holdings(past)
        return before == after == seen

    # The fleet moves: of some looks all three fall between two changes.
    wait_until(is_the_same, "the same people on page and API", seconds=30)


def test_a_person_is_told_with_places_memory_and_idle_gpus(empty: HubProcess, visit: Visits) -> None:
    held = make_busy_gpu(1, user="ann", idle_seconds=7200.0, metrics={"utilization_percent": 0})
    send(empty, make_envelope("gpu01", gpus=[make_busy_gpu(0, user="ann"), held, make_gpu(2)]))
    send(empty, make_envelope("gpu07", gpus=[make_gpu(0), make_busy_gpu(1, user="ann"), make_busy_gpu(2, user="ben")]))
    page = visit(f"{empty.url}/#/people")
    expect(row_of(page, "ann")).to_contain_text("gpu01: 0,1·gpu07: 1")
    expect(row_of(page, "ann").locator("td b")).to_have_text("3")
    expect(row_of(page, "ann")).to_contain_text("60 GiB")
    expect(row_of(page, "ann").locator("td.idle")).to_have_text(re.compile(r"^1 for "))
    expect(page.locator("tbody tr")).to_have_text([re.compile("^ann"), re.compile("^ben")])
    expect(page.get_by_role("status").filter(has_text="2 users on GPUs")).to_be_visible()


def test_whom_nobody_could_name_is_a_row_and_no_link(empty: HubProcess, visit: Visits) -> None:
    nameless = make_gpu(0, metrics={"utilization_percent": 50}, processes=[make_process(user=None)])
    orphaned = make_gpu(1, metrics={"memory_used_bytes": IDLE["memory_total_bytes"]}, processes=[], idle_seconds=9e4)
    send(empty, make_envelope("gpu01", gpus=[nameless, orphaned]))
    page = visit(f"{empty.url}/#/people")
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("th")).to_have_text("unknown user")
    expect(row).to_contain_text("gpu01: 0,1")
    expect(row.locator("th a")).to_have_count(0)


def test_who_comes_and_goes_does_so_at_once_and_under_no_pointer(empty: HubProcess, visit: Visits) -> None:
    send(empty, make_envelope("gpu01", gpus=[make_busy_gpu(0, user="mia"), make_gpu(1), make_gpu(2)]))
    page = visit(f"{empty.url}/#/people")
    row_of(page, "mia").locator("th a").hover()
    send(empty, make_envelope("gpu01", 2, gpus=[make_gpu(0), *(make_busy_gpu(n, user="zoe") for n in (1, 2))]))
    page.mouse.move(60, 200)
    row_of(page, "mia").locator("th a").hover()
    expect(row_of(page, "zoe")).to_be_visible()
    expect(page.locator("tbody tr").first).to_contain_text("no longer on a GPU")
    page.mouse.move(5, 5)
    expect(page.locator("tbody tr")).to_have_count(1, timeout=30_000)
    expect(row_of(page, "zoe")).to_be_visible()


def test_sort_and_search_are_in_the_address_and_by_keyboard(empty: HubProcess, visit: Visits) -> None:
    gpus = [make_busy_gpu(0, user="ann"), make_busy_gpu(1, user="ben"), make_busy_gpu(2, user="ben")]
    send(empty, make_envelope("gpu01", gpus=gpus))
    page = visit(f"{empty.url}/?view=table#/people?sort=user")
    expect(page.locator("tbody th")).to_have_text(["ann", "ben"])
    page.get_by_role("button", name="User").focus()
    page.keyboard.press("Enter")
    expect(page.locator("tbody th")).to_have_text(["ben", "ann"])
    assert page.url.endswith("/?view=table#/people?sort=-user")
    expect(page.get_by_role("columnheader", name="User")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("searchbox", name="Search users").fill("an")
    expect(page.locator("tbody th")).to_have_text(["ann"])
    assert "q=an" in page.url
    page.reload()
    expect(page.locator("tbody th")).to_have_text(["ann"])
    page.get_by_role("searchbox", name="Search users").fill("nobody here")
    expect(page.get_by_role("heading", name="No user matches “nobody here”")).to_be_visible()
    page.get_by_role("searchbox", name="Search users").press("Escape")
    expect(page.locator("tbody th")).to_have_text(["ben", "ann"])


def test_nobody_is_on_a_gpu(empty: HubProcess, visit: Visits) -> None:
    send(empty, make_envelope("gpu01"))
    page = visit(f"{empty.url}/#/people")
    expect(page.get_by_role("heading", name="No active users")).to_be_visible()
    expect(page.get_by_text("1 GPU, 1 of them free.")).to_be_visible()


def test_a_card_a_person_on_a_phone(past: HubProcess, visit: Visits) -> None:
    page = visit(f"{past.url}/#/people", width=390)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert not is_wider_than_its_window(page)
    box = page.locator("tbody tr").first.bounding_box()
    assert box is not None
    assert box["height"] > 60
    for link in (page.locator("tbody th a").first, page.locator("tbody .place").first):
        reach = link.bounding_box()
        assert reach is not None
        assert reach["height"] >= 32


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing_and_lead_to_their_page(empty: HubProcess, visit: Visits, name: str) -> None:
    send(empty, make_envelope("gpu01", gpus=[make_busy_gpu(0, user=name)]))
    page = visit(f"{empty.url}/#/people", width=390)
    link = page.locator("tbody th a")
    expect(link).to_have_text(name)
    assert not is_wider_than_its_window(page)
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("[data-gpu]")).to_have_count(1)
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.title().endswith("· gpudeck")
    assert not is_wider_than_its_window(page)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub with a few simulated hosts, once it has made some of their past."""
    with running_hub(tmp_path_factory.mktemp("past"), "--demo", "3", "--demo-days", "1") as hub:
        wait_until(lambda: json.loads(hub.get("/api/v1/usage?by=user"))["rows"], "some past", seconds=90)
        yield hub


def test_a_person_has_gpus_runs_and_days_as_the_api_tells_them(past: HubProcess, visit: Visits) -> None:
    user = lasting_job(3)[1].user
    page = visit(past.url)
    with (
        page.expect_response(re.compile(r"api/v1/usage\?.*user="), timeout=PATIENCE_MS) as usage,
        page.expect_response(re.compile(r"api/v1/runs\?"), timeout=PATIENCE_MS) as runs,
    ):
        page.goto(f"{past.url}/#/user/{user}")
    (row,) = usage.value.json()["rows"]
    hours = f"{row['gpu_hours']:,.1f}" if row["gpu_hours"] < 100 else f"{row['gpu_hours']:,.0f}"
    expect(page.locator("main p b").first).to_have_text(hours)
    expect(page.locator("figure tbody tr").filter(has_text=row["days"][-1]["day"])).to_have_count(1)
    found = runs.value.json()["runs"]
    assert {run["user"] for run in found} == {user}
    expect(page.locator("article").first).to_be_visible()
    shown_commands = page.locator("article h3").all_text_contents()
    assert set(shown_commands) <= {run["command"] for run in found}
    expect(page.locator("article svg").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("[data-gpu]").first).to_be_visible()
    assert ("zone=" in usage.value.url, f"user={user}" in runs.value.url) == (True, True)
    assert serious_violations(page) == []


def test_a_persons_own_page_is_called_mine(tmp_path: Path, chromium: Browser) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\nread: login\nusers:\n  ada: [ada-l]\n")
    with running_hub(tmp_path) as hub:
        page = chromium.new_page()
        secret = hub.greeting.partition("#first-admin=")[2].split()[0]
        ada = {"secret": secret, "name": "ada", "password": "four-random-words"}
        assert page.request.post(f"{hub.url}/api/v1/first-admin", data=ada).ok
        send(hub, make_envelope("gpu01", gpus=[make_busy_gpu(0, user="ada-l")]))
        page.goto(f"{hub.url}/#/people")
        page.get_by_role("link", name="me", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("ada-l")
        expect(page.locator("[data-gpu]")).to_have_count(1)
        expect(page.get_by_role("heading", name="My runs")).to_be_visible()
        page.close()


def test_a_name_that_nobody_has_is_said_to_be_unknown(empty: HubProcess, visit: Visits) -> None:
    send(empty, make_envelope("gpu01"))
    page = visit(f"{empty.url}/#/user/ghost")
    expect(page.get_by_role("heading", name="No data for ghost")).to_be_visible(timeout=PATIENCE_MS)


def refuse(status: int, message: str) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"error": {"code": "x", "message": message, "hint": ""}})


def test_gpus_stay_where_there_is_no_history(empty: HubProcess, chromium: Browser) -> None:
    send(empty, make_envelope("gpu01", gpus=[make_busy_gpu(0, user="ann")]))
    page = chromium.new_page()
    page.route(re.compile(r"api/v1/(usage|runs)"), refuse(404, "this hub keeps no history"))
    page.goto(f"{empty.url}/#/user/ann")
    expect(page.locator("[data-gpu]")).to_have_count(1)
    expect(page.get_by_role("heading", name="This hub keeps no history")).to_have_count(1)
    page.close()
