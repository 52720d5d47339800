"""For all tests: no property test fails because the machine was slow, and databases for those that need one."""

import gc
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import settings

# In a base install, as on Python 3.10, there is no database, and nobody asks for one.
pytest_plugins = ["database_fixtures"] if find_spec("sqlalchemy") else []

# A shell that runs this in the background, or nohup, ignores these for all that it starts: what tests start is to end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# On Python 3.10 the base install is tested once more: its properties were tried at length on a newer one.
settings.register_profile("gpudeck", deadline=None, max_examples=30 if sys.version_info >= (3, 11) else 5)
settings.register_profile("long", deadline=None, max_examples=200)
settings.load_profile("gpudeck")


_SLOW = (
    "e2e/test_strange_fleets.py",
    "e2e/test_connection.py",
    "e2e/test_history_page.py",
    "e2e/test_people_page.py",
    "e2e/test_adding_hosts.py",
)
"""Files of the page that need a browser and hubs of their own: left to `make slow`, as are those marked so."""
_FIRST = (
    "chaos/",
    "all_sources/",
    "app/",
    "cli/",
    "docs/",
    "deploy/",
    "contract/",
    "sources/",
    "tui/",
    "api/test_schema.py",
)
"""Whose tests wait for processes: begun first, so that no core is idle in the end while one of them still waits."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run the files, and the tests of each file, in a random order"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live until the end: the garbage collector would walk over them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _path_of(item).startswith(_SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not _path_of(item).startswith(_FIRST))
    if (seed := config.getoption("--shuffle")) is not None:
        draw = random.Random(seed)
        draw.shuffle(items)
        places = {path: draw.random() for path in sorted({_path_of(item) for item in items})}
        items.sort(key=lambda item: places[_path_of(item)])


def _path_of(item: pytest.Item) -> str:
    """Below tests. The name of a test begins with it: to take a path apart ten thousand times costs a second."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")
