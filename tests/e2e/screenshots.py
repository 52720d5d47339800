"""Pictures of the demo fleet for README and docs: `make screenshots`."""

import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from e2e.conftest import CHROMIUM_ARGUMENTS, find_chromium
from e2e.looking import count_hosts
from fakes.hubs import running_hub, wait_until

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
SHOTS = (
    ("fleet.png", 24, "", 1440, 860, "light"),
    ("fleet-dark.png", 24, "", 1440, 860, "dark"),
    ("phone.png", 24, "?q=free", 390, 780, "light"),
    ("thousand.png", 1000, "", 1440, 860, "light"),
)


def take(browser: Browser, url: str, name: str, width: int, height: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(url)
    page.locator("[data-host]").first.wait_for(timeout=30_000)
    # Flashes of the first changes fade within a second; a calm picture shows the page as it is most of the time.
    page.wait_for_timeout(2_500)
    page.screenshot(path=IMAGES / name)
    page.close()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_ARGUMENTS)
        for hosts in sorted({shot[1] for shot in SHOTS}):
            with (
                tempfile.TemporaryDirectory() as folder,
                running_hub(Path(folder), "--demo", str(hosts), "--demo-days", "14") as hub,
            ):
                wait_until(lambda hub=hub, hosts=hosts: count_hosts(hub) > 0.9 * hosts, "the fleet", seconds=90)
                for name, _, query, width, height, scheme in (shot for shot in SHOTS if shot[1] == hosts):
                    take(browser, f"{hub.url}/{query}", name, width, height, scheme)
                    print(f"wrote docs/images/{name}")
        browser.close()


if __name__ == "__main__":
    main()
