"""gpudeck top in a real tmux of 80 columns and 24 lines, and where no terminal can show it."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.hubs import HubProcess, environment, gpudeck, running_hub
from fakes.still_fleet import running_still_hub
from fakes.terminals import in_a_terminal
from fakes.waiting import wait_until

COLUMNS = ["HOST", "GPU", "MODEL", "STATE", "UTIL", "MEMORY", "GiB", "TEMP", "POWER", "USERS", "SINCE", "NOTE"]
REFUSED = "gpudeck top needs a terminal that can move its cursor. `gpudeck show` prints the same table anywhere."
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Pane:
    """A terminal of tmux with a command in it."""

    def __init__(self, home: Path, command: list[str], variables: dict[str, str]) -> None:
        # A server lives for a moment after `kill-server`. A client that finds its socket then asks the old server, and
        # fails with "server exited unexpectedly".
        self._tmux = ["tmux", "-S", str(home / f"tmux-{uuid.uuid4().hex[:8]}"), "-f", "/dev/null"]
        kept = environment(home) | {"LANG": "C.UTF-8", "PYTHONUTF8": "1"} | variables
        shell = f"{shlex.join(command)}; echo left with $?; exec sleep 60"
        arguments = [*self._tmux, "-u", "new-session", "-d", "-x", "80", "-y", "24", shell]
        subprocess.run(arguments, check=True, env=kept, cwd=home, timeout=20)

    def press(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=20)

    def seen(self, *arguments: str) -> str:
        command = [*self._tmux, "capture-pane", "-p", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    def wait_for(self, words: str) -> str:
        seen = [""]

        def is_seen() -> bool:
            seen.append(self.seen())
            return words in seen[-1]

        try:
            wait_until(is_seen, f"{words!r} in tmux", 40)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{seen[-1]}") from error
        return seen[-1]

    def resize(self, columns: int, lines: int) -> None:
        subprocess.run([*self._tmux, "resize-window", "-x", str(columns), "-y", str(lines)], check=True, timeout=20)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, timeout=20)


@contextlib.contextmanager
def in_tmux(home: Path, *arguments: str, **variables: str) -> Iterator[Pane]:
    pane = Pane(home, [sys.executable, "-m", "gpudeck", "top", *arguments], variables)
    try:
        yield pane
    finally:
        pane.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


@needs_tmux
def test_eighty_by_twenty_four_has_hosts_details_people_and_help(still: HubProcess, tmp_path: Path) -> None:
    with in_tmux(tmp_path, "--hub", still.url) as pane:
        lines = pane.wait_for("sorted by host").splitlines()
        assert lines[2].split()[:2] == ["HOST", "GPU"]
        assert max(map(len, lines)) <= 80
        pane.press("Down", "Enter")
        assert "the last 15 minutes" in pane.wait_for("COMMAND")
        pane.press("u")
        pane.wait_for("people · sorted by gpus")
        pane.press("?")
        pane.wait_for("Keys, as in htop and nvitop")
        pane.press("x")
        pane.press("f")
        pane.press("/")
        pane.press("-l", "free")
        pane.wait_for("filter: free")
        pane.press("Enter")
        assert not re.search(r"[■◐] (busy|idle) +\d", pane.wait_for("· filter: free ·"))
        pane.press("q")
        assert "sorted by" not in pane.wait_for("left with 0")


@needs_tmux
def test_wide_terminal_has_more_columns(still: HubProcess, tmp_path: Path) -> None:
    with in_tmux(tmp_path, "--hub", still.url) as pane:
        pane.wait_for("sorted by host")
        pane.resize(300, 60)
        head = pane.wait_for("NOTE").splitlines()[2].split()
        assert head == COLUMNS


@needs_tmux
def test_hub_that_goes_away_greys_everything_and_comes_back(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "3") as hub:
        listen = hub.url.removeprefix("http://")
        with in_tmux(tmp_path, "--hub", hub.url) as pane:
            pane.wait_for("sorted by host")
            hub.stop()
            assert "● free" not in pane.wait_for("OUT OF REACH since")
            with running_hub(tmp_path, "--demo", "3", "--listen", listen):
                pane.wait_for("sorted by host")
                assert "OUT OF REACH" not in pane.seen()
                pane.press("C-c")
                pane.wait_for("left with 0")


@needs_tmux
def test_no_color_means_no_colour(still: HubProcess, tmp_path: Path) -> None:
    with in_tmux(tmp_path, "--hub", still.url, NO_COLOR="1") as pane:
        pane.wait_for("■ busy")
        colours = re.findall(r"\x1b\[[0-9;]*?(?:3[0-7]|9[0-7]|38;[0-9;]+)m", pane.seen("-e"))
        assert colours == []
    with in_tmux(tmp_path, "--hub", still.url) as pane:
        pane.wait_for("■ busy")
        assert "\x1b[36m■ busy" in pane.seen("-e")


@needs_tmux
def test_this_machine_is_shown_without_any_hub(tmp_path: Path) -> None:
    with in_tmux(tmp_path, "--local") as pane:
        assert "this machine" in pane.wait_for("of 1 host up") or "1 of 1" in pane.seen()
        pane.press("q")
        pane.wait_for("left with 0")


def test_terminal_is_as_it_was_after_sigterm(still: HubProcess, tmp_path: Path) -> None:
    with in_a_terminal(tmp_path, "gpudeck", "top", "--hub", still.url) as terminal:
        terminal.read_until("sorted by host")
        terminal.process.terminate()
        _, rest = terminal.wait()
    assert "\x1b[?1049l" in rest


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_dumb_terminal_is_refused_with_a_way_out(still: HubProcess, tmp_path: Path, kind: str) -> None:
    with in_a_terminal(tmp_path, "gpudeck", "top", "--hub", still.url, TERM=kind) as terminal:
        code, said = terminal.wait()
    assert (code, said.strip()) == (2, f"gpudeck: {REFUSED}")


def test_pipe_is_refused(still: HubProcess) -> None:
    answer = gpudeck(still.data_dir, "top", "--hub", still.url)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "needs a terminal" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [([">lots"], 2, "'>lots' is not understood."), (["--hub", "http://127.0.0.1:9"], 3, "no hub answers at")],
)
def test_mistakes_are_told_before_the_first_picture(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    with in_a_terminal(tmp_path, "gpudeck", "top", *arguments) as terminal:
        found, said = terminal.wait()
    assert found == code
    assert told in said
    assert "\x1b[?1049h" not in said
