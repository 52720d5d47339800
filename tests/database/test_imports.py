"""What is imported when: an agent has no database, and a hub's start does without what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest

OPEN = """
import asyncio, pathlib, sys
from gpudeck.database.engine import open_database
async def playing():
    await (await open_database(None, pathlib.Path(sys.argv[1]))).close()
asyncio.run(playing())
"""


def imported(code: str, data_dir: Path) -> set[str]:
    """The packages that a new interpreter has after running the code."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", script, str(data_dir)], capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("module", ["gpudeck.agent.run", "gpudeck.settings", "gpudeck.cli", "gpudeck.auth.caller"])
def test_neither_agent_nor_command_line_import_a_database(tmp_path: Path, module: str) -> None:
    assert imported(f"import {module}", tmp_path) & {"sqlalchemy", "alembic", "aiosqlite", "asyncpg"} == set()


def test_alembic_is_not_imported_where_no_table_changes(tmp_path: Path) -> None:
    assert "alembic" not in imported(OPEN, tmp_path)


def test_hub_with_sqlite_does_not_import_the_driver_of_postgresql(tmp_path: Path) -> None:
    assert "asyncpg" not in imported(OPEN, tmp_path)
