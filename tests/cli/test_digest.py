"""gpudeck digest: what it asks the hub, what it prints, how it ends."""

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from gpudeck.cli import gpudeck
from gpudeck.client import Client
from gpudeck.model.usage import DigestPreview

SENT = DigestPreview("ada", "2026-W46", 1.0, 2.0, 3.0, "UTC", "GPU digest", "text\n", "<p>html</p>\n", ["mail"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    questions: list[tuple[Any, ...]] = []
    muted = {"rules": ["xid"], "by_settings": []}

    def get(_: Client, path: str, query: object = None) -> bytes:
        questions.append((path, query))
        answer = SENT if path == "/api/v1/digest" else muted
        if query == {"user": "bob"}:
            answer = msgspec.structs.replace(SENT, not_sent="bob does not\x1b want digests.")
        return msgspec.json.encode(answer)

    def put(_: Client, path: str, body: Any) -> bytes:
        questions.append((path, body["rules"]))
        muted["rules"] = body["rules"]
        return b"{}"

    monkeypatch.setenv("GPUDECK_TOKEN", "t")
    monkeypatch.setattr(Client, "get", get)
    monkeypatch.setattr(Client, "put", put)
    return questions


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gpudeck, ["digest", *arguments])


def test_a_preview_is_text_or_html(asked: list[tuple[Any, ...]]) -> None:
    assert run("--dry-run", "--user", "ada", "--every", "month").stdout == "text\n"
    assert run("--dry-run", "--html", "--user", "ada").stdout == "<p>html</p>\n"
    assert asked == [
        ("/api/v1/digest", {"user": "ada", "every": "month"}),
        ("/api/v1/digest", {"user": "ada"}),
    ]


def test_what_is_not_sent_has_its_reason_and_ends_with_1(asked: list[tuple[Any, ...]]) -> None:
    found = run("--dry-run", "--user", "bob")
    assert (found.exit_code, found.stdout, found.stderr) == (1, "text\n", "Not sent: bob does not� want digests.\n")


def test_off_and_on_change_no_other_mute(asked: list[tuple[Any, ...]]) -> None:
    assert run("--off").exit_code == run("--on").exit_code == 0
    assert [rules for path, rules in asked if rules is not None] == [["xid", "digest"], ["xid"]]


def test_one_thing_has_to_be_said() -> None:
    for arguments in ([], ["--on", "--off"], ["--dry-run", "--off"]):
        assert "say what to do: --dry-run, --off or --on." in str(run(*arguments).exception)
