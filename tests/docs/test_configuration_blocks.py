"""Every block of settings in the documents passes `gpudeck check`: a reader pastes it as it stands.

A block of another program's file says so in its title (```yaml title="prometheus.yml").
"""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from docs.documents import ROOT, all_documents
from gpudeck.cli.doctor import check_command

_BLOCK = re.compile(r"^ *```ya?ml(?: title=\"(?P<title>[^\"]*)\")?\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
_YAML = re.compile(r"^ *```ya?ml", re.MULTILINE)
BLOCKS = [
    pytest.param(
        found["title"],
        textwrap.dedent(found["body"]),
        id=f"{document.path.relative_to(ROOT)}:{document.text.count(chr(10), 0, found.start()) + 1}",
    )
    for document in all_documents()
    for found in _BLOCK.finditer(document.text)
]
OURS = [block for block in BLOCKS if block.values[0] is None]
ANSIBLE = [block for block in BLOCKS if block.values[0] == "group_vars/all.yml"]


def check(settings: str, folder: Path) -> None:
    file = folder / "gpudeck.yaml"
    file.write_text(settings)
    answer = CliRunner().invoke(check_command, ["--config", str(file)])
    assert answer.exit_code == 0, answer.exception


@pytest.fixture(autouse=True)
def with_plugins_and_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the documents name are installed by tests/plugins, which checks their options."""
    monkeypatch.setattr("gpudeck.cli.doctor.find_plugin_mistakes", lambda _: [])
    monkeypatch.setattr("shutil.which", lambda command, **_: command)  # hooks of the site's own


def test_every_block_of_yaml_is_found() -> None:
    assert len(BLOCKS) == sum(len(_YAML.findall(document.text)) for document in all_documents())
    assert OURS
    assert ANSIBLE


@pytest.mark.parametrize(("title", "block"), OURS)
def test_block_of_settings_passes_the_check(title: None, block: str, tmp_path: Path) -> None:
    check(block, tmp_path)


@pytest.mark.parametrize(("title", "block"), ANSIBLE)
def test_settings_in_variables_of_ansible_pass_the_check(title: str, block: str, tmp_path: Path) -> None:
    told: dict[str, Any] = yaml.safe_load(block)
    settings = told["gpudeck_hub_settings"] | {"agent": told["gpudeck_agent_settings"]}
    check(yaml.safe_dump(settings), tmp_path)
