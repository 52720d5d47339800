"""The files a hub needs to start: its data folder and its token, on full disks and for users without a home."""

import concurrent.futures
import os
from pathlib import Path

import pytest

from gpudeck.agent.token_file import ensure_token
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import expand_home
from gpudeck.settings import Settings, find_data_dir, load_settings


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of whom the system knows no home."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GPUDECK_DATA_DIR", "GPUDECK_CONFIG", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.setattr(Path, "expanduser", lambda path: fail() if str(path).startswith("~") else path)


@pytest.mark.usefixtures("stranger")
def test_a_user_without_a_home_has_the_default_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(None)[0] == Settings()


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("data_dir", [None, "~/gpudeck"])
def test_a_user_without_a_home_is_asked_for_a_data_folder(data_dir: str | None) -> None:
    with pytest.raises(UsageError, match=r"no home folder.*GPUDECK_DATA_DIR"):
        find_data_dir(Settings(data_dir=data_dir))


@pytest.mark.usefixtures("stranger")
def test_a_user_without_a_home_can_name_a_data_folder(tmp_path: Path) -> None:
    assert find_data_dir(Settings(data_dir=str(tmp_path / "data"))) == tmp_path / "data"


@pytest.mark.usefixtures("stranger")
def test_a_token_file_in_no_home_is_asked_for_by_its_whole_path() -> None:
    with pytest.raises(UsageError, match="Give the whole path"):
        expand_home("token_file", "~/agent.token")


def test_a_token_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsageError, match=r"agent\.token cannot be created: no space left on device"):
        ensure_token(tmp_path / "agent.token")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert len(ensure_token(tmp_path / "agent.token")) == 43


def test_hubs_that_start_at_the_same_time_agree_on_one_token(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: ensure_token(tmp_path / "agent.token"), range(32)))
    assert tokens == {(tmp_path / "agent.token").read_text().strip()}
    assert [path.name for path in tmp_path.iterdir()] == ["agent.token"]


def test_a_file_system_without_hard_links_still_gets_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert ensure_token(tmp_path / "agent.token") == (tmp_path / "agent.token").read_text().strip()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", "tökén\n".encode()])
def test_a_token_file_without_a_token_tells_the_hub_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent.token").write_bytes(content)
    with pytest.raises(UsageError, match=r"has no token.*delete it"):
        ensure_token(tmp_path / "agent.token")
