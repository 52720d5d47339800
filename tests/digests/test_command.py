"""The preview over HTTP and on the command line; a real hub that is killed sends a digest once."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from alerts.notifiers.sinks import Webhook, running_webhook
from digests.site import Site, make_history
from fakes.api_app import ADMIN_TOKEN, make_app
from fakes.hubs import gpudeck, running_hub
from fakes.waiting import wait_until
from gpudeck.auth.settings import UserSettings
from gpudeck.cli import gpudeck as command_line
from gpudeck.digests.settings import DigestSettings
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.model.errors import UsageError


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    store = make_history(tmp_path_factory.mktemp("history"), [("alice", "busy", 80.0)])
    yield store
    store.close()


def ask(folder: Path, history: EmbeddedStore, token: str, **query: str) -> httpx.Response:
    users = {"alice": UserSettings(mail="alice@example.org")}
    site = Site(folder, history, DigestSettings(every="week"), users)
    app = make_app(site.hub, auth=site.auth, preview_digest=site.service.preview)

    async def question() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hub") as client:
            return await client.get("/api/v1/digest", params=query, headers={"Authorization": f"Bearer {token}"})

    return asyncio.run(question())


def test_admins_see_digests_of_others_and_users_do_not(tmp_path: Path, history: EmbeddedStore) -> None:
    assert ask(tmp_path, history, "user-token", user="alice").status_code == 403
    found = ask(tmp_path, history, ADMIN_TOKEN, user="alice").json()
    assert (found["account"], found["period"], found["zone"]) == ("alice", "2026-W46", "UTC")
    assert "80.0 % utilization, good" in found["text"]
    assert "<table" in found["html"]
    # There is no channel for mail.
    assert (found["to"], found["not_sent"]) == ([], "alice has no channel: see users.NAME.mail.")


def test_the_month_can_be_asked_for(tmp_path: Path, history: EmbeddedStore) -> None:
    found = ask(tmp_path, history, ADMIN_TOKEN, user="alice", every="month").json()
    assert (found["period"], found["not_sent"]) == ("2026-10", "no use of a GPU was recorded in this period.")
    assert ask(tmp_path, history, ADMIN_TOKEN, user="alice", every="day").status_code == 400


@pytest.mark.parametrize("query", [{}, {"user": "nobody"}, {"user": "#none"}])
def test_who_has_no_account_is_told_to_name_one(tmp_path: Path, history: EmbeddedStore, query: dict[str, str]) -> None:
    found = ask(tmp_path, history, ADMIN_TOKEN, **query).json()
    assert found["not_sent"].endswith("is not an account that gets digests. Name one, or #CHANNEL of digests.channels.")


@pytest.mark.parametrize("others", [["--user", "ruth"], ["--every", "week"], ["--html"], ["--json"]])
def test_options_of_the_preview_are_refused_where_digests_are_stopped(others: list[str]) -> None:
    result = CliRunner().invoke(command_line, ["digest", "--off", *others])
    assert isinstance(result.exception, UsageError)
    assert "need --dry-run" in str(result.exception)


def configure(folder: Path, hook: Webhook) -> None:
    (folder / "gpudeck.yaml").write_text(
        f"""
demo: never
local: never
digests: {{channels: [ops], at: "00:00"}}
notify:
  routes: [{{to: [ops], rules: [history_failing]}}]
  channels: {{ops: "{hook.url}"}}
"""
    )


@pytest.mark.slow
def test_hub_that_is_killed_while_it_sends_a_digest_sends_it_once(tmp_path: Path) -> None:
    with running_webhook() as hook:
        configure(tmp_path, hook)
        hook.hangs = True
        with running_hub(tmp_path) as hub:
            wait_until(lambda: hook.asked == 1, "the webhook being asked")
            hub.stop(signal.SIGKILL)
        hook.hangs = False
        with running_hub(tmp_path):
            wait_until(hook.texts, "the digest")
        with running_hub(tmp_path) as hub:
            told = gpudeck(tmp_path, "digest", "--dry-run", "--user", "#ops", "--hub", hub.url)
        assert told.returncode == 0
        assert told.stdout.startswith("GPU digest, ")
        (text,) = hook.texts()
        assert "No GPU was monitored in this period" in text
