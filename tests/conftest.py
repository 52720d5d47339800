"""For all tests: no property test fails because the machine was slow, and whoever wants a database gets one."""

from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["database_fixtures"]

settings.register_profile("gpudeck", deadline=None)
settings.load_profile("gpudeck")


_SLOW = (
    "ways/",
    "history/remote/",
    "contract/test_history.py",
    "cli/test_top.py",
    "cli/test_wait.py",
    "cli/test_wait_local.py",
    "cli/test_show_ssh.py",
    "tui/test_feed.py",
    "sources/test_ssh",
    "discovery/test_consul.py",
    "database/test_kill.py",
    "cli/test_account.py",
    "cli/test_token.py",
    "app/test_agent_orders.py",
    "app/test_backfill.py",
    "app/test_reload.py",
    "app/test_start_greeting.py",
    "api/test_schema.py",
    "docs/test_shell_blocks.py",
    "chat/test_slack.py",
    "e2e/test_accounts.py",
    "e2e/test_bookings_page.py",
    "e2e/test_gpu_page.py",
    "e2e/test_strange_fleets.py",
    "e2e/test_connection.py",
    "e2e/test_history_page.py",
    "e2e/test_people_page.py",
    "e2e/test_adding_hosts.py",
)
"""Files whose tests wait for real servers, networks and hubs: left to `make slow`, as are those marked so."""
_ON_BOTH = ("reservations/", "database/")
"""Whose tests are always run on PostgreSQL too: bookings compete there, and tables are brought up to date."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        is_second_database = "[postgresql" in item.name and not path.startswith(_ON_BOTH)
        if path.startswith(_SLOW) or is_second_database:
            item.add_marker(pytest.mark.slow)
