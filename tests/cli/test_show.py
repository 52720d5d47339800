"""gpudeck show through a real hub: words, forms, terminals of all kinds, and watching while the hub goes away."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from wcwidth import wcswidth

from fakes.hubs import HubProcess, gpudeck, running_hub
from fakes.still_fleet import running_still_hub
from fakes.terminals import in_a_terminal
from fakes.waiting import wait_until
from gpudeck.model.gpu_state import AVAILABILITIES

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_still_hub(tmp_path_factory.mktemp("still")) as hub:
        yield hub


def states_in(text: str) -> set[str]:
    return set(re.findall(r"^gpu\d+ .*?[●■◐◆?] (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("words", "states"),
    [(["free"], {"free"}), (["busy", "-alice"], {"busy"}), (["-busy", "-idle", "-unknown"], {"free"})],
)
def test_words_choose(still: HubProcess, words: list[str], states: set[str]) -> None:
    answer = gpudeck(still.data_dir, "show", *words, "--hub", still.url)
    assert (answer.returncode, answer.stderr, states_in(answer.stdout)) == (0, "", states)


def test_words_find_commands_and_faults_as_with_detail(still: HubProcess) -> None:
    for words in (["command:python"], ["xid"], ["train"]):
        table = gpudeck(still.data_dir, "show", *words, "--hub", still.url)
        chosen = json.loads(gpudeck(still.data_dir, "show", *words, "--json", "--hub", still.url).stdout)
        assert table.stdout.count("\n") > len(chosen["hosts"]) > 0, words


def test_show_and_curl_are_the_same_table(still: HubProcess) -> None:
    name = json.loads(still.get("/api/v1/fleet"))["hosts"][0]["name"]

    def is_the_same() -> bool:
        shown = gpudeck(still.data_dir, "show", name, "--detail", "--hub", still.url, COLUMNS="100").stdout
        return shown == still.get(f"/{name}?detail=true&columns=100&term=true").decode()

    # The time since the last change goes on: of some looks both fall into the same second.
    wait_until(is_the_same, "the same text from both")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["gpu0x"], 1, "nothing matches gpu0x. Did you mean gpu0"),
        (["free", "h900"], 1, "nothing matches free h900."),
        ([">lots"], 2, "'>lots' is not understood."),
        (["user:"], 2, "'user:' is not understood."),
        (["-detail"], 2, "The option is --detail."),
        (["--watch", "0"], 2, "--watch must be between 0.2 and 3600 seconds."),
        (["--watch=soon"], 2, "--watch 'soon' is not a number of seconds."),
        (["--watch", "--csv"], 2, "--watch and --csv exclude each other."),
        (["--json", "--csv"], 2, "--json and --csv exclude each other."),
        (["--detail", "--csv"], 2, "--detail and --csv exclude each other"),
    ],
)
def test_what_cannot_be_shown_is_told(still: HubProcess, arguments: list[str], code: int, told: str) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert told in answer.stderr


def test_json_of_nothing_is_an_empty_list_and_exit_code_1(still: HubProcess) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, "h900", "--json")
    assert (answer.returncode, json.loads(answer.stdout)["hosts"]) == (1, [])
    assert json.loads(answer.stdout)["totals"]["gpus"] == 0


def test_csv_has_a_line_a_gpu(still: HubProcess) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, "--csv")
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert len(rows) == json.loads(still.get("/api/v1/fleet"))["totals"]["gpus"]
    assert {row["availability"] for row in rows} <= set(AVAILABILITIES)
    assert all(row["utilization_percent"] or "utilization_percent: " in row["unknown"] for row in rows)


@pytest.mark.parametrize("columns", [20, 40, 80, 120, 300])
def test_no_line_of_a_table_is_wrapped_or_wider_than_the_terminal(still: HubProcess, columns: int) -> None:
    with in_a_terminal(still.data_dir, "gpudeck", "show", "--hub", still.url, columns=columns) as terminal:
        _, text = terminal.wait()
    table = ANSI.sub("", text.replace("\r\n", "\n")).split("\n\n")[1].splitlines()
    widths = {wcswidth(line) for line in table}
    assert (max(widths) <= columns, table[0].split()[0]) == (True, "HOST")
    assert not [line for line in table if line.endswith(" ")]


@pytest.mark.parametrize(
    ("variables", "arguments", "is_coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": ""}, [], True),
        ({"TERM": "dumb"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({}, ["--color", "never"], False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    still: HubProcess, variables: dict[str, str], arguments: list[str], is_coloured: bool
) -> None:
    with in_a_terminal(still.data_dir, "gpudeck", "show", "--hub", still.url, *arguments, **variables) as terminal:
        code, text = terminal.wait()
    assert (code, "\x1b[" in text) == (0, is_coloured)


def test_pipe_gets_no_colours_and_every_column(still: HubProcess) -> None:
    answer = gpudeck(still.data_dir, "show", "--hub", still.url, COLUMNS="")
    assert "\x1b" not in answer.stdout
    assert {"MODEL", "POWER", "SINCE"} <= set(answer.stdout.split("\n\n")[1].splitlines()[0].split())


def test_pipe_gets_colours_where_they_are_asked_for(still: HubProcess) -> None:
    assert "\x1b[" in gpudeck(still.data_dir, "show", "--hub", still.url, "--color", "always").stdout


def test_terminal_without_our_signs_gets_others(still: HubProcess) -> None:
    answer = gpudeck(still.data_dir, "show", "free", "--hub", still.url, "--detail", PYTHONIOENCODING="ascii")
    assert answer.stdout.isascii()
    assert "o free" in answer.stdout


def test_watching_survives_a_restart_of_the_hub_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with running_hub(tmp_path, "--demo", "2") as hub:
        wait_until(lambda: json.loads(hub.get("/api/v1/fleet"))["hosts"], "a simulated host")
        with in_a_terminal(tmp_path, "gpudeck", "show", "-idle", "--watch", "0.2", "--hub", hub.url) as terminal:
            terminal.read_until("every 0.2 s")
            terminal.read_until("busy")
            hub.stop()
            terminal.read_until("OUT OF REACH since")
            lost = terminal.read_until("\x1b[J")
            with running_hub(tmp_path, "--demo", "2", "--listen", urlsplit(hub.url).netloc):
                terminal.read_until("every 0.2 s")
                terminal.read_until("■")
            terminal.press("\x03")
            code, rest = terminal.wait()
    assert {word for word in ("● 0 free", "? unknown", "no hub answers") if word in ANSI.sub("", lost)} == {
        "● 0 free",
        "? unknown",
        "no hub answers",
    }
    assert code == 0
    assert rest.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in rest


def test_watching_draws_over_what_is_there_and_erases_nothing_before(still: HubProcess) -> None:
    command = ["gpudeck", "show", "--watch", "0.2", "--hub", still.url]
    with in_a_terminal(still.data_dir, *command, columns=80) as terminal:
        terminal.read_until("\x1b[?2026l")
        frame = terminal.read_until("\x1b[?2026l")
        terminal.press("\x03")
        code, _ = terminal.wait()
    assert (code, "\x1b[2J" in frame, frame.count("\n")) == (0, False, 23)
    assert "more lines: choose with words" in frame


@pytest.mark.parametrize(("variables", "mark"), [({"TERM": "dumb"}, "\x1b")])
def test_watching_in_a_dumb_terminal_has_no_escapes(still: HubProcess, variables: dict[str, str], mark: str) -> None:
    command = ["gpudeck", "show", "free", "--watch", "0.2", "--hub", still.url]
    with in_a_terminal(still.data_dir, *command, **variables) as terminal:
        said = terminal.read_until("every 0.2 s") + terminal.read_until("every 0.2 s")
        terminal.press("\x03")
        code, _ = terminal.wait()
    assert (code, mark in said) == (0, False)


def test_watching_as_json_is_a_line_a_reading(still: HubProcess) -> None:
    command = ["gpudeck", "show", "free", "--json", "--watch", "0.2", "--hub", still.url]
    with in_a_terminal(still.data_dir, *command) as terminal:
        lines = [json.loads(terminal.read_until("\n")) for _ in range(3)]
        terminal.press("\x03")
        code, _ = terminal.wait()
    assert (code, [line["time"] for line in lines]) == (0, sorted(line["time"] for line in lines))


def test_hub_that_was_never_there_ends_watching_at_once(tmp_path: Path) -> None:
    answer = gpudeck(tmp_path, "show", "--watch", "--hub", "http://127.0.0.1:1")
    assert (answer.returncode, answer.stdout) == (3, "")


def test_this_machine_can_be_watched_too(tmp_path: Path) -> None:
    with in_a_terminal(tmp_path, "gpudeck", "show", "--local", "--watch", "1") as terminal:
        terminal.read_until("host up")
        terminal.press("\x03")
        assert terminal.wait()[0] == 0
