"""What an agent's processes have in memory: no command line, no hub, no database."""

import subprocess
import sys

import pytest

HEAVY = {
    *("click", "rich", "textual", "yaml", "numpy", "asyncio", "sqlite3", "sqlalchemy", "concurrent", "multiprocessing"),
    *("gpudeck.cli", "gpudeck.settings", "gpudeck.config", "gpudeck.fleet", "gpudeck.views"),
}
HTTP = {"urllib3", "http", "email", "ssl"}


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("gpudeck.agent.process, gpudeck.agent.run", HEAVY),
        ("gpudeck.agent.process", HEAVY | HTTP),
        ("gpudeck.collectors.serve, gpudeck.collectors.nvml, gpudeck.collectors.drm, pynvml", HEAVY | HTTP),
    ],
    ids=["agent", "when its collectors are forked", "a fresh collector"],
)
def test_an_agent_imports_nothing_heavy(modules: str, unwanted: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) & unwanted == set()
