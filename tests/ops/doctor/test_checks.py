"""What is examined on a machine, and with which token."""

from pathlib import Path

import pytest

from gpudeck.ops.doctor import checks
from gpudeck.ops.doctor.checks import list_secrets, load_context

TOKEN = "gd_agent_nobody_is_to_see_this"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As Ansible leaves a host: its settings name the hub, the unit names the token."""
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(checks, "OF_THE_UNIT", tmp_path / "agent.token")
    file = tmp_path / "gpudeck.yaml"
    file.write_text("agent: {hub: https://hub.example/gpus}\n")
    return file


def token_file(config: Path, named: str | None = None) -> str | None:
    settings = load_context(config, None, named, "auto").settings
    assert settings is not None
    return settings.agent.token_file


def test_the_token_of_the_service_is_found_where_no_other_is_named(config: Path) -> None:
    assert token_file(config) is None
    unit = config.with_name("agent.token")
    unit.write_text(f"{TOKEN}\n")
    assert token_file(config) == str(unit)
    assert TOKEN in list_secrets(load_context(config, None, None, "auto"))


def test_a_token_file_that_is_named_counts_before_that_of_the_service(config: Path) -> None:
    config.with_name("agent.token").write_text(f"{TOKEN}\n")
    assert token_file(config, "/some/where.token") == "/some/where.token"
    config.write_text("agent: {hub: https://hub.example/gpus, token_file: /in/the/settings.token}\n")
    assert token_file(config) == "/in/the/settings.token"


def test_a_machine_without_an_agent_gets_none(config: Path) -> None:
    config.write_text("read: open\n")
    assert load_context(config, None, None, "auto").hub is None


def test_settings_that_others_may_not_read_are_not_called_a_mistake() -> None:
    assert "as root" in checks.next_step("/etc/gpudeck/gpudeck.yaml: cannot be read: permission denied")
