"""The page of `gpudeck show --html` in a real browser: it loads without a complaint, with hostile names, and prints."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from e2e.looking import is_wider_than_its_window, make_envelope
from fakes.hubs import HubProcess, gpudeck
from fakes.pushed import send
from fakes.reports import make_busy_gpu, make_gpu
from fakes.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Visits = Callable[..., Page]

HOSTILE = "<script>document.title='stolen'</script>"


@pytest.fixture
def file(empty: HubProcess, tmp_path: Path) -> Path:
    send(empty, make_envelope("gpu01", gpus=[make_gpu(0), make_busy_gpu(1, user=HOSTILE)]))
    wait_until(lambda: b"gpu01" in empty.get("/api/v1/fleet"), "the host")
    answer = gpudeck(empty.data_dir, "show", "--hub", empty.url, "--html", str(tmp_path / "fleet.html"))
    assert (answer.returncode, answer.stderr) == (0, "")
    return tmp_path / "fleet.html"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1024), ("dark", 390)])
def test_signs_tell_who_is_there_on_hover_and_when_opened(file: Path, visit: Visits, scheme: str, width: int) -> None:
    page = visit(file.as_uri(), width=width, color_scheme=scheme)
    told = page.locator("i.busy u")
    expect(told).to_be_hidden()
    expect(page.locator("i.busy > b")).to_have_text("97% 20G")
    expect(page.locator("i.busy > b")).to_be_visible()
    page.locator("i.busy").hover()
    expect(told).to_be_visible()
    expect(told).to_contain_text(f"1 busy, {HOSTILE}, 20/80 GiB")
    page.locator("summary > b").click()
    expect(page.locator("i.free u")).to_contain_text("0 free, 80 GiB")
    expect(page.locator("i.free u")).to_be_visible()
    assert page.title() == "1 of 2 GPUs free"
    assert not is_wider_than_its_window(page)


def test_open_page_says_how_old_it_is(file: Path, visit: Visits) -> None:
    page = visit(file.as_uri())
    expect(page.locator("#age")).to_contain_text("s old")
    assert page.locator("#age").get_attribute("class") == ""
    file.write_text(re.sub("<time datetime=20..", "<time datetime=2001", file.read_text()))
    page.reload()
    expect(page.locator("#age")).to_have_class("old")
    expect(page.locator("#age")).to_contain_text("h old")


def test_paper_shows_everything_in_black(file: Path, visit: Visits) -> None:
    page = visit(file.as_uri(), color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("i u").first).to_be_visible()
    assert page.locator("i u").first.evaluate("text => getComputedStyle(text).color") == "rgb(0, 0, 0)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_free_and_busy_differ_in_colour_sign_and_word(file: Path, visit: Visits) -> None:
    page = visit(file.as_uri())
    colours = page.locator("i").evaluate_all("signs => signs.map(sign => getComputedStyle(sign).color)")
    assert len(set(colours)) == 2
    assert [text[:1] for text in page.locator("i").all_text_contents()] == ["●", "■"]
