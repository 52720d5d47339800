"""Every figure that the pages show, recomputed from the API: a fleet that stands still is what the API answered, and a
period of the past that is over is asked for again."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from e2e.looking import fleet_of, show_instead, shown_totals
from fakes.hubs import HubProcess, RunningHub, running_hub
from fakes.waiting import wait_until
from gpudeck.model.view import Fleet
from gpudeck.views.users import describe_users

pytestmark = pytest.mark.browser
Visits = Callable[..., Page]
Json = dict[str, Any]

PATIENCE_MS = 30_000
GIB = 2.0**30
SCALES = {"MiB": 2.0**20, "GiB": GIB, "TiB": 2.0**40, "kW": 1e3, "MW": 1e6, "MB/s": 1e6, "GB/s": 1e9, "kB/s": 1e3}
NUMBER = re.compile(r"(< )?([0-9][0-9,]*(?:\.[0-9]+)?) ?(MiB|GiB|TiB|kW(?!h)|MW|[kMG]B/s)?")
HOUR = 3600


def numbers(text: str, scale: float = 1.0) -> list[tuple[float, float]]:
    """Each number with half of its last digit, in base units; `< 0.1` is from 0 to that. `scale` is that of numbers
    without a unit."""
    found = []
    for below, digits, unit in NUMBER.findall(text):
        factor, plain = SCALES.get(unit, scale), digits.replace(",", "")
        number, slack = float(plain) * factor, 0.5000001 * 10 ** -len(plain.partition(".")[2]) * factor
        found.append((number / 2, number / 2) if below else (number, slack))
    return found


def agrees(text: str, *values: float | None, scale: float = 1.0) -> None:
    """The text shows these values in this order, each as exactly as it is written; a dash is unknown."""
    told = [value for value in values if value is not None]
    shown = numbers(text, scale)
    assert len(shown) == len(told), (text, values)
    assert text.count("–") == len(values) - len(told), (text, values)
    for (number, slack), value in zip(shown, told, strict=True):
        assert abs(number - value) <= slack, (text, values)


def known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def total(values: Iterable[float | None]) -> float | None:
    found = known(values)
    return sum(found) if found else None


def cells(row: Locator, *names: str) -> list[str]:
    return [row.locator(f"[data-name='{name}']").inner_text().strip() for name in names]


@pytest.fixture(scope="module")
def fleet(demo: RunningHub) -> Json:
    return fleet_of(demo)


def up(fleet: Json) -> list[Json]:
    return [host for host in fleet["hosts"] if host["status"] == "up" and host["gpus"]]


def still(demo: RunningHub, visit: Visits, fleet: Json, path: str) -> Page:
    """A page of the fleet as it was when the API was asked."""
    page = visit(f"{demo.url}/{path}", height=12_000)
    show_instead(page, fleet)
    return page


def test_fleet_in_cards(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    page = still(demo, visit, fleet, "?view=cards")
    gpus = [gpu for host in fleet["hosts"] for gpu in host["gpus"]]
    states = Counter(gpu["availability"] for gpu in gpus)
    expect(page.locator(f".card[data-host='{up(fleet)[0]['id']}']")).to_be_visible()
    assert {state: count for state, count in shown_totals(page).items() if count} == dict(states)
    page.locator(".chevron[aria-expanded='false']").evaluate_all("all => all.forEach(each => each.click())")
    for host in up(fleet):
        card = page.locator(f".card[data-host='{host['id']}']")
        lines = card.locator(".line")
        expect(lines).to_have_count(len(host["gpus"]))
        shown: list[list[str]] = lines.evaluate_all(
            "lines => lines.map(line => ['.util', '.memory', '.memory ~ .figure', '.power'].map(name =>"
            " line.querySelector(name)?.textContent.trim() ?? ''))"
        )
        for (utilization, memory, temperature, power), gpu in zip(shown, host["gpus"], strict=True):
            check_line(utilization, memory, gpu)
            agrees(temperature, gpu["temperature_celsius"])
            agrees(power, gpu["power_watts"])
        models = Counter(gpu["display_name"] for gpu in host["gpus"])
        inventory = card.locator(".inventory").get_attribute("title") or ""
        assert all(f"{count}× {name}" in inventory for name, count in models.items())


def check_line(utilization: str, memory: str, gpu: Json) -> None:
    """A GPU that nobody is using shows its whole memory and no utilization."""
    if gpu["availability"] in {"free", "allocated", "reserved", "drained"}:
        assert utilization == ""
        return agrees(memory, gpu["memory_total_bytes"], scale=GIB)
    if gpu["availability"] != "unknown":
        agrees(utilization, gpu["utilization_percent"])
        agrees(memory, gpu["memory_used_bytes"], gpu["memory_total_bytes"], scale=GIB)
    return None


def test_fleet_as_a_table(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    page = still(demo, visit, fleet, "?view=table")
    for host in up(fleet):
        row, gpus = page.locator(f".row[data-host='{host['id']}']"), host["gpus"]
        expect(row).to_be_visible()
        figures = [text.strip() for text in row.locator(".figure").all_inner_texts()]
        utilization, memory, hottest, power, cpu, ram = figures
        measured = known(gpu["utilization_percent"] for gpu in gpus)
        agrees(utilization, fmean(measured) if measured else None)
        of = (total(gpu[f"memory_{kind}_bytes"] for gpu in gpus) for kind in ("used", "total"))
        agrees(memory, *of, scale=GIB)
        agrees(hottest, max(known(gpu["temperature_celsius"] for gpu in gpus), default=None))
        agrees(power, total(gpu["power_watts"] for gpu in gpus))
        agrees(cpu, host["cpu_percent"])
        agrees(ram, host["memory_used_bytes"], host["memory_total_bytes"], scale=GIB)
        agrees(row.locator(".some").inner_text() or "0", sum(gpu["availability"] == "free" for gpu in gpus))


def kpis(page: Page) -> dict[str, tuple[str, str]]:
    """Figure and note, by label."""
    found = page.locator("dl.kpis .kpi").evaluate_all(
        "all => all.map(kpi => ['dt', '.text', '.note'].map(name => kpi.querySelector(name).textContent.trim()))"
    )
    return {label: (text, note) for label, text, note in found}


def test_figures_on_top_of_the_fleet(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    # From a page without these figures: an answer to the page as it was before would be taken for the one to it.
    page = still(demo, visit, fleet, "#/about")
    with page.expect_response(re.compile(r"history/overview\?.*heat=false"), timeout=PATIENCE_MS) as answer:
        page.goto(f"{demo.url}/#/")
    usage = answer.value.json()["usage"]
    wait_until(lambda: kpis(page)["GPU-hours, 24 h"][0] != "–", "the figures of the day")
    shown, gpus = kpis(page), [gpu for host in fleet["hosts"] for gpu in host["gpus"]]
    free, slices = sum(gpu["availability"] == "free" for gpu in gpus), sum("." in gpu["label"] for gpu in gpus)
    agrees(" ".join(shown["Free now"]), free, len(gpus) - slices, slices)
    agrees(shown["Idle now"][0], sum(gpu["availability"] == "idle" for gpu in gpus))
    agrees(shown["Power"][0], total(gpu["power_watts"] for gpu in gpus if gpu["availability"] != "unknown"))
    agrees(shown["Power"][1], sum(host["status"] == "up" for host in fleet["hosts"]), len(fleet["hosts"]))
    worse = [alert for alert in fleet["alerts"] if alert["severity"] != "info" and not alert.get("acknowledged_by")]
    agrees(shown["Problems"][0], len(worse))
    check_usage_kpis(shown, usage, ", 24 h")


def check_usage_kpis(shown: dict[str, tuple[str, str]], usage: Json, suffix: str = "") -> None:
    """Of the rows of an answer. What stands in a note is what the figure is made of."""
    rows = usage["rows"]
    hours, measured = sum(row["gpu_hours"] for row in rows), sum(row["measured_hours"] for row in rows)
    active = sum(row["active_hours"] or 0.0 for row in rows)
    agrees(shown[f"GPU-hours{suffix}"][0], hours)
    # A past that is still being made covers less.
    agrees(shown[f"GPU-hours{suffix}"][1].partition(" · coverage")[0], *costs(usage), usage["monitored_gpu_hours"])
    agrees(shown[f"Utilization{suffix}"][0], 100 * active / measured)
    agrees(shown[f"Utilization{suffix}"][1], active, measured)


def costs(usage: Json) -> list[float]:
    return [usage["total"]["cost"]] if usage["total"].get("cost") is not None else []


def test_people(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    page = still(demo, visit, fleet, "#/people")
    people = describe_users(msgspec.convert(fleet, Fleet)).users
    rows = page.locator("tbody tr")
    expect(rows.first).to_be_visible()
    named = {row.user or "": row for row in people}
    for name, row in named.items():
        shown = page.locator(f"tbody tr[data-user='{name}']")
        gpus, memory, processes, utilization = cells(shown, "GPUs", "memory", "processes", "util")
        agrees(gpus.partition("+")[0], row.gpu_count)
        agrees(memory.removeprefix("≥"), row.memory_used_bytes)
        assert memory.startswith("≥") == (row.is_memory_part and row.memory_used_bytes is not None)
        agrees(processes, row.processes)
        agrees(utilization, row.utilization_percent)
    agrees(page.locator(".told").inner_text(), sum(row.user is not None for row in people))


def facts(page: Page) -> dict[str, str]:
    """The large figures of a host or a GPU, with what each is part of."""
    found = page.locator("main dl:has(b)").first.evaluate(
        "list => [...list.querySelectorAll('dt')].map(name => [name.textContent.trim(),"
        " name.nextElementSibling.textContent.trim()])"
    )
    return dict(found)


def test_hosts(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    page = still(demo, visit, fleet, "#/people")
    for host in up(fleet)[:4]:
        page.goto(f"{demo.url}/#/host/{host['name']}")
        expect(page.get_by_role("heading", level=1)).to_have_text(host["display_name"])
        shown = facts(page)
        agrees(shown["CPU"], host["cpu_percent"], host["cpu_count"])
        agrees(shown["RAM"], host["memory_used_bytes"], host["memory_total_bytes"], scale=GIB)
        unit = SCALES[shown["Disk"].split()[-1]]
        agrees(shown["Disk"], host["disk_used_bytes"], host["disk_total_bytes"], scale=unit)
        agrees(shown["GPU power"], total(gpu["power_watts"] for gpu in host["gpus"]))
        rows = page.locator("tbody tr.gpu")
        expect(rows).to_have_count(len(host["gpus"]))
        for at, gpu in enumerate(host["gpus"]):
            utilization, memory, power, temperature = cells(rows.nth(at), "util", "memory", "power", "temp")
            check_line(utilization, memory, gpu)
            agrees(power, gpu["power_watts"])
            agrees(temperature, gpu["temperature_celsius"])


def test_gpus(demo: RunningHub, visit: Visits, fleet: Json) -> None:
    page = still(demo, visit, fleet, "#/people")
    for gpu in [host["gpus"][0] for host in up(fleet)[:4]]:
        page.goto(f"{demo.url}/#/gpu/{gpu['uuid']}")
        expect(page.get_by_text(gpu["uuid"]).first).to_be_visible()
        shown = facts(page)
        agrees(shown["Utilization"], gpu["utilization_percent"])
        agrees(shown["Memory"], gpu["memory_used_bytes"], gpu["memory_total_bytes"], scale=GIB)
        agrees(shown["Power"], gpu["power_watts"], *known([gpu["power_limit_watts"]]))
        agrees(shown["Temperature"], gpu["temperature_celsius"])


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[HubProcess]:
    """A hub with the past of a few simulated hosts, all of it made, with prices."""
    folder = tmp_path_factory.mktemp("figures")
    prices = "usage: {currency: EUR, prices: {H200: 2.5, A100: 1.25}}\n"
    (folder / "gpudeck.yaml").write_text(f"{prices}limits: {{unlimited: [127.0.0.1]}}\n")
    with running_hub(folder, "--demo", "3", "--demo-days", "2") as hub:
        wait_until(lambda: is_made(hub), "the whole past", seconds=180, every=0.5)
        yield hub


def is_made(hub: HubProcess) -> bool:
    """Whether the time before the last hours is known, and told alike by both questions."""
    usage = json.loads(hub.get(f"/api/v1/usage?{range_of(hub)}"))
    overview = json.loads(hub.get(f"/api/v1/history/overview?{range_of(hub)}"))["usage"]
    is_whole = (usage["coverage"] or 0.0) > 0.97 and usage.get("known_since") is None
    return bool(is_whole and usage["rows"] == overview["rows"])


def range_of(hub: HubProcess) -> str:
    """More than a day: at any hour there is more than one to draw."""
    now = int(fleet_of(hub)["time"]) // HOUR * HOUR
    return f"start={now - 36 * HOUR}&end={now - 6 * HOUR}"


@pytest.mark.parametrize("by", ["user", "model"])
def test_history(past: HubProcess, visit: Visits, by: str) -> None:
    question = range_of(past)
    page = visit(f"{past.url}/#/about", height=3000)
    with page.expect_response(re.compile(r"history/overview\?"), timeout=PATIENCE_MS) as answer:
        page.goto(f"{past.url}/#/history?{question}&by={by}")
    asked = parse_qs(urlsplit(answer.value.url).query)
    assert {name: values for name, values in asked.items() if name in {"start", "end", "by"}} == parse_qs(
        f"{question}&by={by}"
    )
    usage = json.loads(past.get(f"/api/v1/usage?{question}&by={by}&daily=true&zone={asked['zone'][0]}"))
    expect(page.locator(".usage tbody tr")).to_have_count(len(usage["rows"]))
    shown = kpis(page)
    check_usage_kpis(shown, usage)
    idle = sum(row["idle_hours"] for row in usage["rows"])
    hours = sum(row["gpu_hours"] for row in usage["rows"])
    agrees(" ".join(shown["Idle hours"]), idle, 100 * idle / hours)
    agrees(shown["Energy"][0], total(row["energy_kwh"] for row in usage["rows"]))
    agrees(shown["Cost"][0], total(row["cost"] for row in usage["rows"] if row.get("cost") is not None))
    told = page.locator(".coverage").first.inner_text()
    agrees(re.sub(r" since.*?:|\. Unm.*", "", told), 100 * usage["coverage"], usage["monitored_gpu_hours"])
    check_rows(page, usage, by)
    check_days(page, usage)


def check_rows(page: Page, usage: Json, by: str) -> None:
    lines = page.locator(".usage tbody tr, .usage tfoot tr")
    for at, row in enumerate([*usage["rows"], usage["total"]]):
        line = lines.nth(at)
        hours, share, active, utilization, idle, energy = cells(
            line, "GPU-hours", "of monitored", "active", "utilization", "idle", "kWh"
        )
        agrees(hours, row["gpu_hours"])
        agrees(share, 100 * row["gpu_hours"] / usage["monitored_gpu_hours"])
        agrees(active, row["active_hours"])
        parts = [] if " of " not in utilization else [row["measured_hours"]]
        measured = row["measured_hours"]
        agrees(utilization, None if not measured else 100 * row["active_hours"] / measured, *parts)
        agrees(idle, row["idle_hours"])
        agrees(energy, row["energy_kwh"])
        agrees(line.locator("[data-name='cost']").inner_text(), row.get("cost"))
        assert at == len(usage["rows"]) or (row[by] or "unknown user") in line.inner_text()


def check_days(page: Page, usage: Json) -> None:
    """The days add up to the total."""
    days = usage["total"]["days"]
    assert sum(day["gpu_hours"] for day in days) == pytest.approx(usage["total"]["gpu_hours"])
    shown = page.locator(".days .hidden tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent.trim()))"
    )
    for (hours, active), day in zip(shown, days, strict=True):
        agrees(hours, day["gpu_hours"])
        agrees(active, day["active_hours"])
