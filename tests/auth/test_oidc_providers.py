"""Logging in through real OIDC providers, without a browser: what becomes of it, and how it ends."""

import asyncio
import re
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import delete, select, update

from fakes.api_app import make_auth
from fakes.hubs import HubProcess, gpudeck, start
from fakes.oidc_hub import HubPlace, entry
from fakes.oidc_providers import CLIENT, SECRET, NodeProvider, node_provider, pass_forms, prepare_canaille
from fakes.ports import free_port
from fakes.waiting import wait_until
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller
from gpudeck.auth.settings import AuthSettings, MappingSettings, OidcSettings
from gpudeck.database.engine import Database
from gpudeck.database.schema import identities, provider_grants
from gpudeck.model.errors import Refused, Temporary


@pytest.fixture
def place(tmp_path: Path) -> HubPlace:
    return HubPlace(tmp_path)


@pytest.fixture
def provider(place: HubPlace) -> Iterator[NodeProvider]:
    with node_provider(place.folder, place.url) as provider:
        yield provider


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as browser:
        yield browser


def log_in(browser: httpx.Client, hub: HubProcess, user: str, name: str = "node", after: str = "") -> httpx.Response:
    """The last answer of the hub."""
    start = f"{hub.url}/api/v1/login/oidc/{name}{after}"
    callback = pass_forms(browser, start, user, f"{hub.url}/api/v1/login/oidc/{name}/callback")
    return browser.get(callback)


def test_a_login_gives_role_and_group_and_goes_where_the_link_pointed(
    place: HubPlace, provider: NodeProvider, browser: httpx.Client
) -> None:
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:
        me = httpx.get(f"{hub.url}/api/v1/me").json()
        assert me["providers"] == [{"name": "node", "label": "Node account", "problem": None}]
        answer = log_in(browser, hub, "ada", after="?next=%3Fq%3Dfree%23%2Fevents")
        assert answer.headers["location"] == f"{hub.url}/?q=free#/events"
        me = browser.get(f"{hub.url}/api/v1/me").json()
        assert (me["name"], me["role"], me["logins"], me["provider"]) == ("ada", "admin", ["ada"], "Node account")
        actions = [(one["action"], one["details"]) for one in browser.get(f"{hub.url}/api/v1/audit").json()["entries"]]
        assert actions[:2] == [("log in", "by node"), ("add account", "by node")]


def pass_link(hub: HubProcess, link: str, user: str) -> None:
    with httpx.Client(timeout=60) as browser:
        answer = browser.get(pass_forms(browser, link, user, f"{hub.url}/api/v1/login/oidc/node/callback"))
        assert "gpudeck_session" not in answer.cookies


def test_a_login_that_is_tried_shows_claims_and_reasons_and_logs_nobody_in(
    place: HubPlace, provider: NodeProvider, browser: httpx.Client
) -> None:
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:
        checking = start(place.folder, "check.log", "check", "--login", "node")
        assert checking.stdout is not None
        lines = list(iter(checking.stdout.readline, "Waiting…\n"))
        pass_link(hub, lines[-1].strip(), "uli")
        said, _ = checking.communicate(timeout=60)
        assert checking.returncode == 0
        bearer = {"Authorization": f"Bearer {(place.folder / 'admin.token').read_text().strip()}"}
        entries = browser.get(f"{hub.url}/api/v1/audit", headers=bearer).json()["entries"]
        assert [(one["action"], one["subject"]) for one in entries if "log" in one["action"]] == [("try login", "node")]
    told = "".join(lines) + said
    assert f"Redirect URI to register:     {hub.url}/api/v1/login/oidc/node/callback" in told
    assert 'groups: ["staff"]' in told
    assert "role: user (the group staff matches staff)" in told
    assert "This user would log in as uli, with the role user." in told
    assert "nonce: (hidden)" in told


class Player:
    """The hub's own service in this process, so that a test says when sessions are due."""

    def __init__(
        self, place: HubPlace, issuer: str, database: Database | None = None, *, secret: str = SECRET, **mapping: Any
    ) -> None:
        (place.folder / "secret").write_text(secret)
        usual = MappingSettings(roles={"admin": ["gpu-admins"]}, default_role="viewer")
        scopes, file = ["openid", "profile", "email", "groups"], str(place.folder / "secret")
        settings = OidcSettings("node", issuer, CLIENT, file, scopes=scopes, mapping=replace(usual, **mapping))
        auth = AuthSettings(oidc=[settings])
        if database is None:
            self.auth = make_auth(place.folder, auth, public_url=place.url)
        else:
            self.auth = Auth(database, auth, public_url=place.url)
        assert self.auth.oidc is not None
        self.logins = self.auth.oidc
        self.page = place.url

    def run(self, playing: Coroutine[Any, Any, None]) -> None:
        async def closing() -> None:
            try:
                await playing
            finally:
                await self.logins.close()

        asyncio.run(closing())

    async def begin(self, user: str, trial: str = "") -> tuple[str, dict[str, str]]:
        """The cookie of a login, and what the provider sent the browser back with."""
        url, cookie = await self.logins.begin("node", trial=trial)
        with httpx.Client(timeout=60) as browser:
            end = await asyncio.to_thread(pass_forms, browser, url, user, self.page)
        return cookie, {name: values[0] for name, values in parse_qs(urlsplit(end).query).items()}

    async def finish(self, cookie: str, answer: dict[str, str]) -> str:
        done = await self.logins.finish("node", cookie, answer, "192.0.2.7", "a browser")
        assert done.secret is not None
        return done.secret

    async def check(self, secret: str) -> Caller | None:
        """Who it is after the provider was asked again."""
        await self.ask_again()
        self.auth.sessions.forget()
        return await self.auth.find_session(secret)

    async def ask_again(self) -> None:
        """As after the refresh time."""
        await self.auth.database.execute(update(provider_grants).values(due_at=0.0))
        await self.logins.check_grants()
        await self.auth.refresh()

    async def make_token(self, secret: str) -> str:
        """A personal token of the user with that session."""
        caller = await self.auth.find_session(secret)
        assert caller is not None
        assert caller.account_id is not None
        return (await self.auth.tokens.create("laptop", "viewer", account_id=caller.account_id))[1]

    async def grants(self) -> int:
        return len((await self.auth.database.execute(select(provider_grants))).all())


def test_a_trial_that_one_hub_begins_can_be_finished_by_another(
    place: HubPlace, provider: NodeProvider, database: Database
) -> None:
    player = Player(place, provider.issuer, database)
    other = Player(place, provider.issuer, database)

    async def playing() -> None:
        trial = await player.logins.make_trial("node")
        cookie, answer = await other.begin("uli", trial.id)
        assert (await other.logins.finish("node", cookie, answer, "192.0.2.7", "a browser")).secret is None
        await other.logins.close()
        known = await player.logins.trials.find(trial.id)
        assert known is not None
        assert (known.state, known.name, known.claims["nonce"]) == ("done", "uli", "(hidden)")
        assert await player.auth.accounts.find("uli") is None

    player.run(playing())


def test_a_trial_is_refused_where_the_login_would_be(place: HubPlace, provider: NodeProvider) -> None:
    player = Player(place, provider.issuer)

    async def playing() -> None:
        await player.auth.accounts.add("uli", "admin", None)
        made = await player.logins.make_trial("node")
        for id_ in (made.id, ""):
            begun = await player.begin("uli", id_)
            with pytest.raises(Refused, match="an account uli already that is not of node"):
                await player.logins.finish("node", *begun, "192.0.2.7", "a browser")
        trial = await player.logins.trials.find(made.id)
        assert trial is not None
        assert (trial.state, trial.role) == ("refused", None)
        assert trial.problem.startswith("there is an account uli already that is not of node.")

    player.run(playing())


def test_sessions_follow_the_provider_and_end_when_it_disables_the_user(
    place: HubPlace, provider: NodeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(place, provider.issuer)
    caplog.set_level("INFO", "gpudeck")

    async def playing() -> None:
        await player.auth.accounts.add("root", "admin", None)
        secret = await player.finish(*await player.begin("ada"))
        caller = await player.check(secret)
        assert caller is not None
        assert caller.role == "admin"
        provider.change_user("ada", {"preferred_username": "ada", "groups": ["staff"]})
        caller = await player.check(secret)
        assert caller is not None
        assert caller.role == "viewer"
        provider.change_user("ada", None)
        assert await player.check(secret) is None

    player.run(playing())
    assert "a session of ada through node has ended: the provider does not accept" in caplog.text
    entry = asyncio.run(player.auth.audit.list())[0]
    assert (entry.action, entry.subject, entry.who) == ("end session", "ada", "the hub")


@pytest.fixture
def canaille(place: HubPlace, iam_server: Any) -> Iterator[tuple[str, Any]]:
    """The issuer, and the user grace, who is logged in there."""
    issuer, user, client = prepare_canaille(iam_server, f"{place.url}/api/v1/login/oidc/node/callback")
    iam_server.consent(user, client)
    iam_server.login(user)
    yield issuer, user
    iam_server.logout()
    iam_server.backend.delete(client)
    iam_server.backend.delete(user)


def test_a_user_whom_canaille_locks_is_out_with_session_and_token(
    place: HubPlace, canaille: tuple[str, Any], iam_server: Any
) -> None:
    """Providers that use Authlib refuse a locked user with invalid_request."""
    issuer, grace = canaille
    player = Player(place, issuer, name_claim="email", trust_email=True)

    async def playing() -> None:
        url, cookie = await player.logins.begin("node")
        async with httpx.AsyncClient(timeout=60) as browser:
            answer = await browser.get(url)
        told = {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        secret = await player.finish(cookie, told)
        token = await player.make_token(secret)
        assert await player.check(secret) is not None
        grace.lock_date = datetime.now(UTC) - timedelta(minutes=1)
        iam_server.backend.save(grace)
        assert await player.check(secret) is None
        assert player.auth.find_token(token) is None

    player.run(playing())


def test_a_provider_that_is_down_ends_no_session_and_is_named(
    place: HubPlace, provider: NodeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(place, provider.issuer)

    async def playing() -> None:
        secret = await player.finish(*await player.begin("ada"))
        provider.stop()
        assert await player.check(secret) is not None

    player.run(playing())
    assert "is not confirmed, and tried again" in caplog.text


def test_personal_tokens_end_with_the_user_also_after_the_session_and_come_back_with_a_login(
    place: HubPlace, provider: NodeProvider, database: Database
) -> None:
    player = Player(place, provider.issuer, database)
    find = player.auth.find_token

    async def playing() -> None:
        secret = await player.finish(*await player.begin("ada"))
        token = await player.make_token(secret)
        await player.auth.sessions.end(secret)
        await player.ask_again()
        assert find(token) is not None
        provider.change_user("ada", None)
        await player.ask_again()
        assert find(token) is None
        assert await player.grants() == 0
        provider.change_user("ada", {"preferred_username": "ada", "groups": ["staff"]})
        await player.ask_again()
        assert find(token) is None
        await player.finish(*await player.begin("ada"))
        await player.auth.refresh()
        assert find(token) is not None

    player.run(playing())
    actions = [(one.action, one.subject) for one in asyncio.run(player.auth.audit.list())]
    assert actions[:3] == [("log in", "ada"), ("enable account", "ada"), ("suspend account", "ada")]


def test_tokens_of_a_user_whom_an_admin_disabled_stay_worthless_after_a_login(
    place: HubPlace, provider: NodeProvider
) -> None:
    player = Player(place, provider.issuer)

    async def playing() -> None:
        await player.auth.accounts.add("root", "admin", None)
        token = await player.make_token(await player.finish(*await player.begin("ada")))
        await player.auth.accounts.change("ada", is_disabled=True)
        provider.change_user("ada", None)
        await player.ask_again()
        provider.change_user("ada", {"preferred_username": "ada", "groups": ["staff"]})
        with pytest.raises(Refused, match="the account ada is disabled"):
            await player.finish(*await player.begin("ada"))
        await player.auth.refresh()
        assert player.auth.find_token(token) is None

    player.run(playing())


def test_while_the_provider_is_down_tokens_still_count_and_the_log_says_so_once(
    place: HubPlace, provider: NodeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(place, provider.issuer)

    async def playing() -> None:
        secret = await player.finish(*await player.begin("ada"))
        token = await player.make_token(secret)
        await player.auth.sessions.end(secret)
        provider.stop()
        await player.ask_again()
        await player.ask_again()
        assert player.auth.find_token(token) is not None

    player.run(playing())
    assert caplog.text.count("is not confirmed, and tried again; users stay in") == 1


def test_of_many_ended_sessions_one_is_asked_about_while_there_are_tokens_and_none_without(
    place: HubPlace, provider: NodeProvider, database: Database
) -> None:
    player = Player(place, provider.issuer, database)

    async def playing() -> None:
        secrets = [await player.finish(*await player.begin("ada")) for _ in range(3)]
        await player.make_token(secrets[0])
        for secret in secrets:
            await player.auth.sessions.end(secret)
        await player.ask_again()
        assert await player.grants() == 1
        token = next(one for one in await player.auth.tokens.list() if one.account == "ada")
        await player.auth.tokens.revoke(token.id)
        await player.ask_again()
        assert await player.grants() == 0

    player.run(playing())


def test_without_refresh_tokens_personal_tokens_end_some_time_after_the_login(
    place: HubPlace, provider: NodeProvider
) -> None:
    provider.stop()
    provider.gives_refresh_tokens = False
    provider.start()
    player = Player(place, provider.issuer)

    async def playing() -> None:
        trial = await player.logins.make_trial("node")
        await player.logins.finish("node", *await player.begin("uli", trial.id), "192.0.2.7", "a browser")
        tried = await player.logins.trials.find(trial.id)
        assert tried is not None
        assert "the provider gives no refresh token" in tried.problem
        secret = await player.finish(*await player.begin("ada"))
        token = await player.make_token(secret)
        await player.logins.check_grants()
        await player.auth.refresh()
        assert player.auth.find_token(token) is not None
        assert await player.check(secret) is None
        assert player.auth.find_token(token) is None

    player.run(playing())
    suspended = next(one for one in asyncio.run(player.auth.audit.list()) if one.action == "suspend account")
    assert suspended.details == "node: the provider has given no refresh token, so it cannot be asked"


def test_tokens_of_before_are_suspended_when_nobody_can_be_asked_about_their_user(
    place: HubPlace, provider: NodeProvider, database: Database
) -> None:
    player = Player(place, provider.issuer, database)

    async def playing() -> None:
        secret = await player.finish(*await player.begin("ada"))
        token = await player.make_token(secret)
        await database.execute(delete(provider_grants))
        await player.ask_again()
        assert player.auth.find_token(token) is not None
        await database.execute(update(identities).values(checked_at=0.0))
        await player.ask_again()
        assert player.auth.find_token(token) is None

    player.run(playing())


def test_a_new_secret_of_the_client_ends_nothing(place: HubPlace, provider: NodeProvider, database: Database) -> None:
    player = Player(place, provider.issuer, database)

    async def playing() -> None:
        secret = await player.finish(*await player.begin("ada"))
        token = await player.make_token(secret)
        provider.change_secret("another-secret-of-the-client")
        await player.ask_again()
        assert "does not accept this hub as a client" in str(player.logins.providers["node"].problem)
        restarted = Player(place, provider.issuer, database, secret="another-secret-of-the-client")
        await restarted.auth.load()
        assert await restarted.check(secret) is not None
        assert restarted.auth.find_token(token) is not None
        assert restarted.logins.providers["node"].problem is None
        provider.change_user("ada", None)
        assert await restarted.check(secret) is None
        await restarted.logins.close()

    player.run(playing())


def test_code_injection_fails_at_the_provider_and_is_logged(
    place: HubPlace, provider: NodeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """The attacker's code in the victim's login: PKCE binds the code to the login that it was made for."""
    player = Player(place, provider.issuer)

    async def playing() -> None:
        _, stolen = await player.begin("ada")
        cookie, answer = await player.begin("uli")
        with pytest.raises(Refused, match="does not accept the code"):
            await player.finish(cookie, {**answer, "code": stolen["code"]})
        assert stolen["code"] not in caplog.text

    player.run(playing())
    assert "is refused: the provider does not accept the code of this login" in caplog.text
    entry = asyncio.run(player.auth.audit.list())[0]
    assert (entry.action, entry.outcome, entry.address) == ("log in", "refused", "192.0.2.7")


def test_a_session_that_an_attacker_planted_is_not_taken_over(
    place: HubPlace, provider: NodeProvider, browser: httpx.Client
) -> None:
    planted = "x" * 43
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:
        browser.cookies.set("gpudeck_session", planted, domain="127.0.0.1")
        answer = log_in(browser, hub, "ada")
        fresh = answer.headers["set-cookie"]
        assert "gpudeck_session=" in fresh
        assert planted not in fresh
        theirs = httpx.get(f"{hub.url}/api/v1/me", headers={"Cookie": f"gpudeck_session={planted}"})
        assert theirs.json()["kind"] == "nobody"
        assert browser.get(f"{hub.url}/api/v1/me").json()["name"] == "ada"


def test_a_logout_at_the_provider_ends_the_session_here(
    place: HubPlace, provider: NodeProvider, browser: httpx.Client
) -> None:
    """Back-channel: the provider tells the hub by itself."""
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:
        log_in(browser, hub, "ada")
        assert browser.get(f"{hub.url}/api/v1/me").json()["name"] == "ada"
        asked = browser.get(f"{provider.issuer}/session/end").text
        xsrf = re.search(r'name="xsrf" value="([^"]+)"', asked)
        assert xsrf is not None, asked
        browser.post(f"{provider.issuer}/session/end/confirm", data={"xsrf": xsrf[1], "logout": "yes"})
        wait_until(lambda: browser.get(f"{hub.url}/api/v1/me").json()["kind"] == "nobody", "the logout")


def test_the_callback_is_limited_as_logins_are_and_says_so_on_the_page(place: HubPlace, provider: NodeProvider) -> None:
    limits = "limits: {logins_burst: 3, logins_per_second: 0.01}"
    with place.running(entry("node", provider.issuer, place.folder / "secret"), more=limits) as hub:

        def finish() -> str:
            """What the page says after a login at the provider that this browser began."""
            with httpx.Client(base_url=hub.url) as browser:
                begun = browser.get("/api/v1/login/oidc/node?next=%23/events").headers["location"]
                state = parse_qs(urlsplit(begun).query)["state"][0]
                answer = browser.get(f"/api/v1/login/oidc/node/callback?state={state}&code=y&iss={provider.issuer}")
                assert (answer.status_code, answer.headers["location"]) == (302, f"{hub.url}/#/events")
                return str(browser.get("/api/v1/me").json()["note"])

        notes = [finish() for _ in range(5)]
    assert all("does not accept the code" in note for note in notes[:3])
    assert all(note.startswith("too many attempts to log in come from this address. Try") for note in notes[3:])


def test_without_local_accounts_a_password_is_refused_and_no_link_is_printed(
    place: HubPlace, provider: NodeProvider
) -> None:
    with place.running(entry("node", provider.issuer, place.folder / "secret"), "\n  local: false") as hub:
        assert "first-admin" not in hub.greeting
        assert httpx.get(f"{hub.url}/api/v1/me").json()["takes_passwords"] is False
        answer = httpx.post(f"{hub.url}/api/v1/login", json={"name": "ada", "password": "four-random-words"})
        assert answer.status_code == 401
        assert "takes no passwords" in answer.text


def test_a_provider_that_is_down_is_named_on_the_page_and_accounts_still_work(place: HubPlace) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    (place.folder / "password").write_text("four-random-words")
    with place.running(entry("node", away, place.folder / "secret")) as hub:
        added = gpudeck(place.folder, "account", "add", "root", "--role", "admin", "--password-file", "password")
        assert added.returncode == 0, added.stderr
        answer = httpx.get(f"{hub.url}/api/v1/login/oidc/node")
        assert (answer.status_code, answer.headers["location"]) == (302, f"{hub.url}/")
        (told,) = httpx.get(f"{hub.url}/api/v1/me").json()["providers"]
        assert "does not answer" in told["problem"]
        body = {"name": "root", "password": "four-random-words"}
        assert httpx.post(f"{hub.url}/api/v1/login", json=body).json()["role"] == "admin"


def test_a_provider_that_goes_down_is_named_soon_and_nobody_is_sent_there(
    place: HubPlace, provider: NodeProvider
) -> None:
    with place.running(entry("node", provider.issuer, place.folder / "secret")) as hub:

        def leads_to() -> str:
            return httpx.get(f"{hub.url}/api/v1/login/oidc/node").headers["location"]

        assert leads_to().startswith(provider.issuer)
        provider.stop()
        wait_until(lambda: leads_to() == f"{hub.url}/", "the way back to the form")
        (told,) = httpx.get(f"{hub.url}/api/v1/me").json()["providers"]
        assert "does not answer" in told["problem"]
        provider.start()
        wait_until(lambda: leads_to().startswith(provider.issuer), "the provider's return")


def test_a_refresh_that_finds_the_provider_down_names_it(place: HubPlace, provider: NodeProvider) -> None:
    player = Player(place, provider.issuer)

    async def playing() -> None:
        await player.finish(*await player.begin("ada"))
        provider.stop()
        await player.ask_again()
        with pytest.raises(Temporary, match="cannot be used now"):
            await player.logins.begin("node")
        assert "does not answer" in str(player.logins.providers["node"].problem)

    player.run(playing())
