"""gpudeck backup and gpudeck restore, as a person uses them beside a real hub."""

import json
from pathlib import Path

import pytest

from fakes.hubs import gpudeck, running_hub


def names_of_tokens(folder: Path) -> list[str]:
    answer = gpudeck(folder, "token", "list", "--json")
    return [token["name"] for token in json.loads(answer.stdout)["tokens"]]


@pytest.mark.slow
def test_a_running_hub_is_backed_up_and_restored_once_it_has_ended(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text("demo: never\nlocal: never\n")
    archive = tmp_path / "b.tar.gz"
    with running_hub(tmp_path) as hub:
        assert gpudeck(tmp_path, "token", "create", "claimed", "--role", "viewer").returncode == 0
        made = gpudeck(tmp_path, "backup", str(archive))
        assert (made.returncode, made.stdout) == (0, "")
        assert f"{archive} has gpudeck.db, history.db, agent.token, admin.token, gpudeck.yaml" in made.stderr
        refused = gpudeck(tmp_path, "restore", str(archive))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "a hub runs on" in refused.stderr
        assert hub.stop() == 0
    gpudeck(tmp_path, "token", "create", "later", "--role", "viewer")
    assert names_of_tokens(tmp_path)[-2:] == ["claimed", "later"]
    restored = gpudeck(tmp_path, "restore", str(archive))
    assert (restored.returncode, restored.stderr) == (0, "")
    assert names_of_tokens(tmp_path)[-1] == "claimed"
    with running_hub(tmp_path) as hub:
        assert hub.get("/readyz")


def test_what_cannot_be_restored_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_text("rubbish")
    for name in ("b.tar.gz", "absent.tar.gz"):
        answer = gpudeck(tmp_path, "restore", name)
        assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (1, "", 1)
        assert f"{name} cannot be" in answer.stderr
