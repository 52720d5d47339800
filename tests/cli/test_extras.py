"""What needs an extra that is not installed says so, with the command that installs it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fakes.hubs import environment

SLACK = "chat: {slack: {app_token: xapp-1, bot_token: xoxb-1}}\n"
MAIL = "notify: {channels: {mail: 'mailto://gpudeck@mail.example', hook: 'https://hooks.example/1'}}\n"
POSTGRESQL = "database: postgresql://hub@db.example/gpudeck\n"


def command_without(module: str, *arguments: str) -> list[str]:
    program = f"import sys; sys.modules[{module!r}] = None; from gpudeck.cli import main; main()"
    return [sys.executable, "-c", program, *arguments]


def run_without(module: str, folder: Path, *arguments: str) -> tuple[int, str]:
    answer = subprocess.run(
        command_without(module, *arguments),
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        timeout=60,
        check=False,
    )
    return answer.returncode, answer.stderr


def message(feature: str, extra: str) -> str:
    return (
        f"{feature} needs gpudeck[{extra}], which is not installed. "
        f"Install it: {sys.executable} -m pip install 'gpudeck[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("module", "settings", "feature", "extra"),
    [
        ("slack_sdk", SLACK, "the setting `chat.slack`", "slack"),
        ("apprise", MAIL, "the setting `notify.channels` (mail)", "apprise"),
        ("asyncpg", POSTGRESQL, "the setting `database`", "postgresql"),
    ],
)
def test_check_names_a_missing_extra(tmp_path: Path, module: str, settings: str, feature: str, extra: str) -> None:
    (tmp_path / "gpudeck.yaml").write_text(settings)
    assert run_without("no_such_module", tmp_path, "check")[0] == 0
    assert run_without("litestar", tmp_path, "check")[0] == 0
    file = tmp_path / "gpudeck.yaml"
    assert run_without(module, tmp_path, "check") == (2, f"{file}: {message(feature, extra)}")


def test_hub_with_postgresql_does_not_start_without_its_library(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(POSTGRESQL)
    code, told = run_without("asyncpg", tmp_path, "up", "--listen", "127.0.0.1:0")
    assert code == 2
    assert told.endswith("gpudeck: " + message("the setting `database`", "postgresql"))


@pytest.mark.parametrize(
    ("module", "settings", "feature", "extra"),
    [
        ("slack_sdk", SLACK, "the setting `chat.slack`", "slack"),
        ("apprise", MAIL, "the setting `notify.channels` (mail)", "apprise"),
    ],
)
def test_hub_starts_without_the_library_of_a_channel(
    tmp_path: Path, module: str, settings: str, feature: str, extra: str
) -> None:
    (tmp_path / "gpudeck.yaml").write_text(settings)
    command = command_without(module, "up", "--listen", "127.0.0.1:0", "--demo", "1", "--demo-days", "0")
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as hub:
        assert hub.stdout is not None
        assert "Ctrl-C stops it.\n" in iter(hub.stdout.readline, "")
        hub.terminate()
        _, told = hub.communicate(timeout=60)
    assert message(feature, extra) in told


def test_top_without_textual_says_what_is_missing(tmp_path: Path) -> None:
    assert run_without("textual", tmp_path, "top") == (2, f"gpudeck: {message('gpudeck top', 'top')}")
