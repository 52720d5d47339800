"""Blocks of shell and Python that are marked as tested (```sh tested, ```python tested) do what they say, in an empty
folder beside a demo's hub."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.documents import ROOT, all_documents
from fakes.hubs import HubProcess, environment, running_hub
from fakes.waiting import wait_until

_TESTED = re.compile(r"^```(?P<language>sh|python) tested\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
_INTERPRETERS = {"sh": ("bash", "-euc"), "python": (sys.executable, "-c")}
BLOCKS = [
    pytest.param(
        found["language"],
        found["body"],
        id=f"{document.path.relative_to(ROOT)}:{document.text.count(chr(10), 0, found.start()) + 1}",
    )
    for document in all_documents()
    for found in _TESTED.finditer(document.text)
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_hub(tmp_path_factory.mktemp("hub"), "--demo", "6") as hub:
        wait_until(lambda: len(json.loads(hub.get("/api/v1/fleet"))["hosts"]) == 6, "the demo's hosts")
        yield hub


def run(language: str, script: str, folder: Path, hub: HubProcess) -> subprocess.CompletedProcess[str]:
    """As a person would type it: the hub of the documents is the one that runs here."""
    address = hub.url.removeprefix("http://")
    (folder / "bin").mkdir()
    for name, module in (("gpudeck", "-m gpudeck"), ("python", "")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        command.chmod(0o755)
    (folder / "work").mkdir()
    own = {"PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin", "GPUDECK_HUB": hub.url}
    return subprocess.run(
        [*_INTERPRETERS[language], script.replace("localhost:8042", address)],
        cwd=folder / "work",
        env=environment(folder / "data") | own,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize(("language", "script"), BLOCKS)
def test_a_block_that_is_marked_as_tested_works(language: str, script: str, hub: HubProcess, tmp_path: Path) -> None:
    answer = run(language, script, tmp_path, hub)
    assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}"
    assert "Traceback" not in answer.stderr


def test_a_block_that_does_not_work_is_noticed(hub: HubProcess, tmp_path: Path) -> None:
    assert run("sh", "gpudeck check --config absent.yaml\ntrue\n", tmp_path, hub).returncode == 2
