"""Everything that curl answers the bot answers too: asked for the same, both tell of the same GPUs and people."""

import asyncio
import re
from pathlib import Path

import pytest

from fakes.chats import Lab, make_alert
from fakes.reports import make_busy_gpu, make_gpu
from gpudeck.api.page import TEXT_PARAMETERS, read_text_options, render_text
from gpudeck.fleet.visibility import EVERYTHING

ONLY_LOOKS = {"columns", "color", "term", "refresh"}
"""Parameters that say how it is to look in a terminal or a browser."""
GPUS: list[tuple[dict[str, str], str | None, str]] = [
    ({}, None, "all"),
    ({}, "gpu01", "gpu01"),
    ({}, "gpu01", "all gpu01"),
    ({"free": "true"}, None, "all free"),
    ({"user": "alice"}, None, "where alice"),
    ({"q": "busy"}, None, "all busy"),
    ({"q": "busy"}, None, "busy"),
    ({"q": "gpu02 free"}, None, "gpu02 free"),
    ({"q": "-free >1G"}, None, "all -free &gt;1G"),
    ({"q": "free"}, "gpu01", "gpu01 free"),
    ({"q": 'user:"alice"'}, None, 'all user:"alice"'),
    ({"q": "host:gpu02"}, None, "host:gpu02"),
    ({"q": "warning"}, None, "warning"),
    ({"user": "nobody"}, None, "all user:nobody"),
]
WHOLE: list[tuple[dict[str, str], str | None, str]] = [
    ({"detail": "true", "columns": "160"}, None, "all_detail"),
    ({"detail": "true", "columns": "160"}, "gpu01", "gpu01 detail"),
    ({"detail": "true", "q": "busy", "columns": "160"}, None, "all_detail busy"),
    ({"detail": "true", "q": "user:alice", "columns": "160"}, None, "all_detail user:alice"),
]
PEOPLE: list[tuple[dict[str, str], str]] = [
    ({"users": "true"}, "users"),
    ({"users": "true"}, "who"),
    ({"users": "true", "q": "gpu01"}, "users gpu01"),
    ({"users": "true", "q": "free"}, "users free"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.report("gpu03", [make_busy_gpu(index, "bobby", uuid=f"GPU-c{index}") for index in range(2)])
    lab.report(
        "gpu04", [make_gpu(index, uuid=f"GPU-d{index}", metrics={"temperature_celsius": 92.0}) for index in range(2)]
    )
    lab.hub.stream.tick()
    return lab


def curl(lab: Lab, parameters: dict[str, str], host: str | None = None) -> str:
    wish = read_text_options(parameters, "", host)
    return asyncio.run(lab.hub.stream.answer(EVERYTHING, render_text, wish)).text.decode()


@pytest.mark.parametrize(("parameters", "host", "command"), GPUS)
def test_the_same_gpus_are_told(lab: Lab, parameters: dict[str, str], host: str | None, command: str) -> None:
    there = re.findall(r"^(gpu\d+) +([\d.]+) ", curl(lab, parameters, host), re.MULTILINE)
    assert re.findall(r"\*(gpu\d+):([\d.]+)\*", lab.say(command)) == there


@pytest.mark.parametrize(("parameters", "host", "command"), WHOLE)
def test_details_are_the_same_text(lab: Lab, parameters: dict[str, str], host: str | None, command: str) -> None:
    snippet = lab.ask(command).snippet
    assert snippet is not None
    assert snippet.text == curl(lab, parameters, host)


@pytest.mark.parametrize(("parameters", "command"), PEOPLE)
def test_the_same_people_are_told_in_the_same_order(lab: Lab, parameters: dict[str, str], command: str) -> None:
    there = re.findall(r"^(\w+) +[\d.]+ +\d+ ", curl(lab, parameters), re.MULTILINE)
    assert re.findall(r"^\*(\w+)\*  ", lab.say(command), re.MULTILINE) == there


def test_what_stands_below_the_table_is_told(lab: Lab) -> None:
    lab.hub.fleet.alerts = [make_alert("The history is not kept"), make_alert("Hardly a GPU is free", severity="info")]
    lab.hub.fleet.set_problems("messages", ["the channel ops does not take messages"])
    lab.hub.stream.tick()
    _, _, below = curl(lab, {}).rpartition("\n\n! ")
    assert below.splitlines()[0] in lab.say("alerts")
    assert "▲ The history is not kept, for 10m" in lab.say("alerts")
    assert "Hardly" not in lab.say("alerts") + curl(lab, {})


def test_what_is_not_understood_or_not_there_is_said(lab: Lab) -> None:
    assert "Did you mean gpu01" in curl(lab, {}, "gpu011")
    assert "gpu01" in lab.say("gpu011")
    assert "is not understood" in lab.say("all &gt;lots")


def test_no_parameter_of_curl_is_without_its_command() -> None:
    tried = {name for parameters, *_ in (*GPUS, *WHOLE, *PEOPLE) for name in parameters}
    # The past is for the page and the terminal.
    assert tried | ONLY_LOOKS | {"at"} == set(TEXT_PARAMETERS)
