"""What every import keeps to: nothing twice, one failure hides nothing, a dry run changes nothing."""

from pathlib import Path

import click
import pytest
from msgspec import Struct

from gpudeck.cli.import_ import command
from gpudeck.client import Client
from gpudeck.compat.importing import (
    KINDS,
    ImportResult,
    ImportTarget,
    apply_steps,
    check_steps,
    make_host_step,
    read_small_file,
)
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.view import Host

DESK = ImportTarget(Client("http://127.0.0.1:9"))


class Note(Struct):
    """A step that keeps what it did. `trouble` is what asking raises, `refusal` what doing does."""

    what: str
    done: list[str]
    trouble: GpudeckError | None = None
    refusal: GpudeckError | None = None

    kind = "note"

    def run(self, _: ImportTarget, *, apply: bool) -> str | None:
        if self.trouble is not None:
            raise self.trouble
        if self.what in self.done or not apply:
            return "it is there" if self.what in self.done else None
        if self.refusal is not None:
            raise self.refusal
        self.done.append(self.what)
        return None


def test_import_that_is_repeated_does_nothing_twice() -> None:
    done: list[str] = []
    steps = [Note("a", done), Note("b", done)]
    assert [result.outcome for result in apply_steps(steps, DESK)] == ["new", "new"]
    assert list(apply_steps(steps, DESK)) == [
        ImportResult("note", "a", "there", "it is there"),
        ImportResult("note", "b", "there", "it is there"),
    ]
    assert done == ["a", "b"]


def test_step_that_fails_costs_itself_only() -> None:
    done: list[str] = []
    steps = [
        Note("a", done, refusal=UsageError("no.", "Do this.")),
        Note("b", done, trouble=GpudeckError("who?")),
        Note("c", done),
    ]
    assert [(result.outcome, result.detail) for result in apply_steps(steps, DESK)] == [
        ("failed", "no. Do this."),
        ("failed", "who?"),
        ("new", ""),
    ]
    assert done == ["c"]


def test_dry_run_changes_nothing_and_says_what_is_there() -> None:
    done = ["a"]
    steps = [Note("a", done), Note("b", done), Note("c", done, trouble=GpudeckError("who?"))]
    assert [result.outcome for result in check_steps(steps, DESK)] == ["there", "new", "failed"]
    assert done == ["a"]


def test_dry_run_without_a_hub_tells_all_steps_as_unasked() -> None:
    steps = [Note("a", []), Note("b", [], trouble=Unreachable("gone.")), Note("c", [])]
    assert [result.outcome for result in check_steps(steps, DESK)] == ["new", "unasked", "unasked"]


def test_hub_that_goes_away_ends_the_import() -> None:
    done: list[str] = []
    work = apply_steps([Note("a", done), Note("b", done, refusal=Unreachable("gone.")), Note("c", done)], DESK)
    with pytest.raises(Unreachable):
        list(work)
    assert done == ["a"]


class Refusing(Client):
    """A hub that has no hosts yet, and refuses new ones."""

    def __init__(self, why: str) -> None:
        super().__init__("http://127.0.0.1:9")
        self._why = why

    def hosts(self) -> list[Host]:
        return []

    def post(self, path: str, body: dict[str, object] | None = None) -> bytes:
        raise UsageError(f"{(body or {})['name']} {self._why}")


def test_host_that_was_added_a_moment_ago_is_there_and_no_failure() -> None:
    step = make_host_step("gpu01", "pull")
    (added,) = apply_steps([step], ImportTarget(Refusing("is there already, by hosts added here.")))
    (refused,) = apply_steps([step], ImportTarget(Refusing("cannot be.")))
    assert (added.outcome, refused.outcome) == ("there", "failed")


@pytest.mark.parametrize(
    ("word", "name", "reach"),
    [
        (" gpu01 ", "gpu01", {}),
        ("gpu01:9000", "gpu01", {"port": 9000}),
        ("ada@gpu01", "gpu01", {"user": "ada"}),
        ("https://gpu01.lab:9000/gpus/", "gpu01.lab", {"port": 9000}),
        ("[2001:db8::1]:9000", "2001-db8--1", {"address": "2001:db8::1", "port": 9000}),
        ("2001:db8::1", "2001-db8--1", {"address": "2001:db8::1"}),
    ],
)
def test_word_in_a_foreign_file_is_a_host(word: str, name: str, reach: dict[str, object]) -> None:
    step = make_host_step(word, "pull")
    assert (step.name, step.reach) == (name, {"via": "pull"} | reach)


@pytest.mark.parametrize("word", ["", "..", "../x", "gpu[1-3]", "a b", "x:0", "-o ProxyCommand=x", "a;b", "http://"])
def test_word_that_is_no_host_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"is no|has no port"):
        make_host_step(word, "pull")


def test_help_names_every_kind() -> None:
    (choice,) = [parameter.type for parameter in command.params if parameter.name == "kind"]
    assert isinstance(choice, click.Choice)
    assert tuple(choice.choices) == tuple(KINDS)


def test_file_that_is_too_large_is_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.compat.importing.MAX_BYTES", 10)
    (tmp_path / "x").write_bytes(b"x" * 11)
    with pytest.raises(UsageError, match="something else"):
        read_small_file(tmp_path / "x")
