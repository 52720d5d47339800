"""For all tests: no property test fails because the machine was slow, and whoever wants a database gets one."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["database_fixtures"]

# A shell that runs this in the background, or nohup, ignores these for all that it starts: what tests start is to end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("gpudeck", deadline=None)
settings.load_profile("gpudeck")


_SLOW = (
    "ways/",
    "cli/test_top.py",
    "cli/test_wait.py",
    "cli/test_wait_local.py",
    "sources/test_ssh",
    "discovery/test_consul.py",
    "e2e/test_strange_fleets.py",
    "e2e/test_connection.py",
    "e2e/test_history_page.py",
    "e2e/test_people_page.py",
    "e2e/test_adding_hosts.py",
)
"""Files whose tests wait for real servers, networks and hubs: left to `make slow`, as are those marked so."""
_FIRST = ("chaos/", "app/", "cli/", "docs/", "deploy/", "contract/", "sources/", "tui/", "api/test_schema.py")
"""Whose tests wait for processes: begun first, so that no core is idle in the end while one of them still waits."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _path_of(item).startswith(_SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not _path_of(item).startswith(_FIRST))


def _path_of(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()
