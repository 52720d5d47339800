"""Whose token goes where."""

from pathlib import Path

import pytest

from gpudeck.settings import find_own_token

SECRET = "the-admin-token"


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "admin.token").write_text(f"{SECRET}\n")
    (tmp_path / "gpudeck.yaml").write_text("{}\n")
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("GPUDECK_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize("hub", ["http://127.0.0.1:8042", "http://localhost:8042/gpus", "http://[::1]:8042"])
def test_hub_on_this_machine_gets_this_machines_admin_token(data_dir: Path, hub: str) -> None:
    assert find_own_token(hub, data_dir / "gpudeck.yaml") == SECRET


@pytest.mark.parametrize("hub", ["http://hub.example:8042", "http://10.0.0.7:8042", "http://127.0.0.1.evil.example"])
def test_hub_elsewhere_never_gets_it(data_dir: Path, hub: str) -> None:
    assert find_own_token(hub, data_dir / "gpudeck.yaml") is None


def test_token_that_was_named_goes_where_it_was_meant(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDECK_TOKEN", "another")
    assert find_own_token("http://hub.example:8042", data_dir / "gpudeck.yaml") == "another"
