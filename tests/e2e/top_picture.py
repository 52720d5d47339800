"""A picture of `gpudeck top` for the docs, as SVG: part of `make screenshots`, and needs no browser."""

import asyncio
import json
import re
import tempfile
from pathlib import Path

from fakes.hubs import running_hub
from fakes.waiting import wait_until
from gpudeck.client import Client
from gpudeck.tui.app import TopApp
from gpudeck.tui.feed import HubFeed

PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "top.svg"
HOSTS = 24
# Fonts from other servers: whoever reads the docs has a font of their own.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def draw(url: str) -> str:
    """The fleet, after it was watched for a few seconds."""
    feed = HubFeed(Client(url))
    app = TopApp(feed, feed.first())
    async with app.run_test(size=(118, 32)) as pilot:
        await pilot.pause(4)
        await pilot.press("down")
        app.top.place = "http://hub:8042"
        await pilot.pause(1.5)
        return _FONTS.sub("", app.export_screenshot(title="gpudeck top"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_hub(Path(folder), "--demo", str(HOSTS)) as hub:
        wait_until(lambda: len(json.loads(hub.get("/api/v1/fleet"))["hosts"]) >= HOSTS, "the fleet", seconds=90)
        PICTURE.write_text(asyncio.run(draw(hub.url)))
        print(f"wrote docs/images/{PICTURE.name}")


if __name__ == "__main__":
    main()
