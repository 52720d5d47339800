"""gpudeck login, logout and whoami against a real hub, and which hub a command asks."""

import contextlib
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fakes.forked import ForkedProcess
from fakes.hubs import HubProcess, environment, gpudeck, running_hub
from fakes.waiting import wait_until
from gpudeck.agent.lock_files import announcing, find_agent_hubs
from gpudeck.cli.options import find_hub
from gpudeck.hub_lookup import SavedLogin, find_token, load_login, save_login
from gpudeck.model.address import is_same_hub

PASSWORD = "correct horse battery staple"
CONFIG = "demo: never\nlocal: never\nread: login\nhistory: {kind: off}\n"


def log_in(hub: HubProcess, home: Path) -> tuple[int, str]:
    (home / "password").write_text("correct horse battery staple\n")
    arguments = ("--name", "ada", "--password-file", "password", "--days", "7")
    done = gpudeck(home, "login", hub.url.removeprefix("http://"), *arguments)
    return done.returncode, done.stdout + done.stderr


class WaitingCommand:
    """A command that waits for something; `find` waits for what it says on standard error."""

    def __init__(self, process: ForkedProcess, said: Path) -> None:
        self.process = process
        self._said = said

    def find(self, pattern: str) -> str:
        found = wait_until(lambda: re.search(pattern, self._said.read_text()))
        assert found is not None, self._said.read_text()
        return found[1]


@contextlib.contextmanager
def started(home: Path, *arguments: str, **variables: str) -> Iterator[WaitingCommand]:
    said = home / "said"
    with said.open("w") as log:
        process = ForkedProcess(arguments, environment(home) | variables, home, log)
    try:
        yield WaitingCommand(process, said)
    finally:
        process.kill()
        process.communicate(30)


def test_login_saves_a_token_that_all_commands_use_until_logout(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG)
    (tmp_path / "password").write_text("correct horse battery staple\n")
    home = tmp_path / "home"
    home.mkdir()
    added = gpudeck(tmp_path, "account", "add", "ada", "--role", "viewer", "--password-file", "password")
    assert added.returncode == 0, added.stderr
    with running_hub(tmp_path) as hub:
        stranger = gpudeck(home, "show", "--hub", hub.url)
        assert (stranger.returncode, f"Log in with `gpudeck login {hub.url}`" in stranger.stderr) == (2, True)
        code, told = log_in(hub, home)
        assert (code, f"Logged in to {hub.url} as ada for 7 days" in told) == (0, True), told
        file = home / ".config" / "gpudeck" / "login.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = json.loads(file.read_text())["token"]
        assert gpudeck(home, "whoami").stdout == f"ada (viewer) at {hub.url}, logged in for 7d more.\n"
        assert gpudeck(home, "show").returncode == 0
        # A second login takes the place of the first, whose token is revoked.
        assert log_in(hub, home)[0] == 0
        revoked = gpudeck(home, "show", GPUDECK_TOKEN=first)
        assert (revoked.returncode, "Check $GPUDECK_TOKEN, or unset it" in revoked.stderr) == (2, True)
        out = gpudeck(home, "logout")
        assert (out.returncode, out.stdout, file.exists()) == (0, f"Logged out of {hub.url}.\n", False)
        assert gpudeck(home, "whoami", "--hub", hub.url).returncode == 1
        (home / "password").write_text("wrong\n")
        wrong = gpudeck(home, "login", hub.url, "--name", "ada", "--password-file", "password")
        assert (wrong.returncode, wrong.stderr) == (
            2,
            f"gpudeck: {hub.url} refused the request: the name or the password is wrong. "
            "Try again, or ask an admin for a new password.\n",
        )


def test_login_is_confirmed_on_the_page_and_its_token_listed_and_ended(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    home = tmp_path / "home"
    home.mkdir()
    assert gpudeck(tmp_path, "account", "add", "ada", "--password-file", "password").returncode == 0
    with running_hub(tmp_path) as hub, httpx.Client(base_url=hub.url, headers={"Origin": hub.url}) as page:
        assert page.post("/api/v1/login", json={"name": "ada", "password": PASSWORD}).is_success
        with started(home, "login", hub.url) as terminal:
            code = terminal.find(r"/#/device\?code=([A-Z]{4}-[A-Z]{4})\n")
            assert page.post(f"/api/v1/device/{code}", json={"is_approved": True}).json() == {"redirect": ""}
            assert terminal.process.wait(30) == 0
        # The browser of this machine brings the confirmation to the command itself.
        with started(home, "login", hub.url, "--browser", BROWSER="true") as terminal:
            code = terminal.find(r"Confirm the code ([A-Z]{4}-[A-Z]{4}) in the browser")
            redirect = page.post(f"/api/v1/device/{code}", json={"is_approved": True}).json()["redirect"]
            assert httpx.get(redirect.replace("code=", "other=")).status_code == 404
            assert "Confirmed" in httpx.get(redirect).text
            assert terminal.process.wait(30) == 0
        # That of the first login was revoked by the second.
        page.delete(f"/api/v1/me/tokens/{page.get('/api/v1/me/tokens').json()['tokens'][-1]['id']}")
        assert gpudeck(home, "show").returncode == 2


def test_hub_without_accounts_names_the_link_of_the_first_admin(tmp_path: Path) -> None:
    (tmp_path / "gpudeck.yaml").write_text(CONFIG)
    home = tmp_path / "home"
    home.mkdir()
    with running_hub(tmp_path) as hub:
        for command in (["login", hub.url], ["whoami", "--hub", hub.url]):
            refused = gpudeck(home, *command)
            assert "open the link that the hub printed at its start" in refused.stderr, refused


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without configuration, login or agent."""
    monkeypatch.chdir(tmp_path)
    for name in ("GPUDECK_HUB", "GPUDECK_TOKEN", "GPUDECK_CONFIG", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GPUDECK_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path


def test_hub_is_looked_up_in_one_order(lonely: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_hub() == ("http://127.0.0.1:8042", "default")
    with announcing("http://ann:secret@agent-hub:8042/gpus"):
        assert find_hub() == ("http://agent-hub:8042/gpus", "the agent of this machine")
        (lonely / "gpudeck.yaml").write_text("listen: :9000\nread: open\n")
        assert find_hub() == ("http://127.0.0.1:9000", f"listen in {lonely}/gpudeck.yaml")
        (lonely / "gpudeck.yaml").write_text("agent: {hub: 'https://hub.example'}\n")
        assert find_hub() == ("https://hub.example", f"agent.hub in {lonely}/gpudeck.yaml")
        save_login(SavedLogin("http://login:8042", "ada", "gd_user_x", 9e9))
        assert find_hub() == ("http://login:8042", "the saved login")
        monkeypatch.setenv("GPUDECK_HUB", "named:8042")
        assert find_hub() == ("http://named:8042", "$GPUDECK_HUB")
        assert find_hub("gpu-hub") == ("http://gpu-hub:8042", "--hub")


def test_token_of_the_login_goes_to_its_hub_alone(lonely: Path) -> None:
    assert lonely.exists()
    save_login(SavedLogin("http://hub:8042", "ada", "gd_user_x", 9e9))
    assert load_login() is not None
    assert find_token("hub:8042/") == "gd_user_x"
    others = ("http://hub:8043", "https://hub:8042", "http://hub:8042/gpus", "http://hub.example:8042")
    assert [find_token(other) for other in others] == [None] * 4
    assert is_same_hub("https://Hub", "https://hub:443")


def test_agent_is_announced_only_while_it_runs(lonely: Path) -> None:
    with announcing("http://hub:8042"):
        (found,) = find_agent_hubs()
        assert (found.url, found.is_trusted) == ("http://hub:8042", True)
        (lonely / "locks" / "agent-1").write_text('{"hub": "http://mallory:1"}')
        assert find_agent_hubs() == [found]
    assert find_agent_hubs() == []
