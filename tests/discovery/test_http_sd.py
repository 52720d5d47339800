"""Prometheus' http_sd: a server that answers groups of targets."""

import asyncio
from pathlib import Path

import pytest

from discovery.servers import json_server
from gpudeck.discovery.prometheus_sd import HttpSd, HttpSdSettings
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.target import Target

GROUPS = b'[{"targets": ["gpu01:9400", "b:x"], "labels": {"rack": "b3", "__meta_url": "x"}}]'


def find(
    body: bytes, *, status: str = "200 OK", token_file: Path | None = None, seen: list[str] | None = None
) -> tuple[HttpSd, list[Target]]:
    """A provider that has asked once, and what it found."""

    async def finding() -> tuple[HttpSd, list[Target]]:
        async with json_server(body, status=lambda: status, seen=seen) as url:
            settings = HttpSdSettings(f"{url}/sd?team=a", token_file=str(token_file) if token_file else None)
            provider = HttpSd(settings)
            try:
                return provider, await provider.find()
            finally:
                await provider.close()

    return asyncio.run(finding())


def test_answer_is_read_into_targets_and_problems() -> None:
    provider, (target,) = find(GROUPS)
    assert target == Target(name="gpu01", via="scrape", port=9400, labels={"rack": "b3"}, origin=provider.origin)
    assert provider.problems == [
        f"{provider.origin}, group 1: 'b:x' is no host: write name, name:port, user@name:port or [IPv6]:port."
    ]


def test_token_is_shown_and_read_again_for_each_question(tmp_path: Path) -> None:
    seen: list[str] = []
    for token in ("one", "two"):
        (tmp_path / "token").write_text(f"{token}\nmore\n")
        find(GROUPS, token_file=tmp_path / "token", seen=seen)
    assert [question.partition("uthorization: ")[2].partition("\r")[0] for question in seen] == [
        "Bearer one",
        "Bearer two",
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html><title>Login", "JSON is malformed"),
        (b"", "Input data was truncated"),
        (b"{}", "it is no list of groups of targets"),
        (b"null", "it is no list of groups of targets"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_answer_that_is_no_list_is_temporary(body: bytes, reason: str) -> None:
    with pytest.raises(Temporary, match=f"/sd answers no list of targets in JSON: {reason}"):
        find(body)


def test_refused_token_is_refused_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    with pytest.raises(Refused, match=r"answers 401: the token is not accepted\. Check the token file\.$") as caught:
        find(b"", status="401 Unauthorized", token_file=tmp_path / "token")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(Refused, match=r"Set token_file, if it needs a token\.$"):
        find(b"", status="401 Unauthorized")


def test_missing_token_file_and_missing_certificates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"the token file .*gone cannot be read: No such file or directory\. Check token"):
        find(GROUPS, token_file=tmp_path / "gone")
    provider = HttpSd(HttpSdSettings("https://localhost/", ca_file=str(tmp_path / "gone.pem")))
    with pytest.raises(Refused, match=r"the certificates in .*gone\.pem cannot be read"):
        asyncio.run(provider.find())


def test_secrets_of_the_address_are_not_told() -> None:
    provider = HttpSd(HttpSdSettings("http://ada:hunter2@127.0.0.1:9/sd?key=hunter2"))
    assert provider.origin == "http_sd http://…@127.0.0.1:9/sd"
