"""What axe-core finds on a page: whom it shuts out."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

_AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_SERIOUS = {"serious", "critical"}


def serious_violations(page: Page) -> list[str]:
    """Every rule that is seriously broken, with the places. Skips the test where axe-core is not installed."""
    if not _AXE.is_file():
        pytest.skip("no axe-core here: python hatch_build.py check installs it")
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    options = {"runOnly": {"type": "tag", "values": _RULES}, "preload": False, "resultTypes": ["violations"]}
    answer: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [_told(each) for each in answer["violations"] if each["impact"] in _SERIOUS]


def _told(violation: dict[str, Any]) -> str:
    places = [" ".join(map(str, node["target"])) for node in violation["nodes"][:4]]
    return f"{violation['id']}: {violation['help']} at {', '.join(places)}"
