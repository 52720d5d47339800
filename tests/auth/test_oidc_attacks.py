"""Attacks on logins through providers: each fails, with an entry in the log that says why and holds no secret."""

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from sqlalchemy import update

from fakes.api_app import make_app, make_auth
from fakes.hostile_provider import CLIENT, OTHER_KEY, SECRET, HostileProvider, hostile_provider
from gpudeck.auth import audit, oidc_logins
from gpudeck.auth.auth import Auth
from gpudeck.auth.oidc_logins import FinishedLogin, OidcLogins, check_place
from gpudeck.auth.settings import AuthSettings, OidcSettings
from gpudeck.database.schema import provider_grants
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import GpudeckError, Refused, Temporary

PAGE = "http://127.0.0.1:8042"
Act = Callable[[OidcLogins], Awaitable[Any]]


@pytest.fixture
def provider() -> Iterator[HostileProvider]:
    with hostile_provider() as provider:
        yield provider


@pytest.fixture
def auth(tmp_path: Path, provider: HostileProvider) -> Auth:
    return make_login(tmp_path, provider)


def make_login(folder: Path, *providers: HostileProvider) -> Auth:
    (folder / "secret").write_text(SECRET)
    settings = [
        OidcSettings(f"p{number}", one.issuer, CLIENT, str(folder / "secret")) for number, one in enumerate(providers)
    ]
    return make_auth(folder, AuthSettings(oidc=settings), public_url=PAGE)


def run(auth: Auth, act: Act) -> Any:
    async def acting() -> Any:
        assert auth.oidc is not None
        try:
            return await act(auth.oidc)
        finally:
            await auth.oidc.close()

    return asyncio.run(acting())


async def begin(logins: OidcLogins, provider: HostileProvider, name: str = "p0") -> tuple[str, dict[str, str]]:
    """The cookie of a login that was begun, and the answer that belongs to it. The ID token has its nonce."""
    url, cookie = await logins.begin(name)
    asked = parse_qs(urlsplit(url).query)
    provider.claims = {"nonce": asked["nonce"][0], **provider.claims}
    return cookie, {"state": asked["state"][0], "code": "secret-code"}


async def finish(logins: OidcLogins, cookie: str, answer: dict[str, str], name: str = "p0") -> FinishedLogin:
    return await logins.finish(name, cookie, answer, "192.0.2.7", "a browser")


def refusal(auth: Auth, provider: HostileProvider, **changes: str) -> str:
    """Why a login is refused, as the user reads it."""

    async def act(logins: OidcLogins) -> None:
        cookie, answer = await begin(logins, provider)
        await finish(logins, cookie, {**answer, **changes})

    with pytest.raises(GpudeckError) as refused:
        run(auth, act)
    return str(refused.value)


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    for secret in (SECRET, "secret-code", "eyJ", '"rt"'):
        assert secret not in caplog.text


def test_the_usual_login_works(auth: Auth, provider: HostileProvider) -> None:
    async def act(logins: OidcLogins) -> FinishedLogin:
        return await finish(logins, *await begin(logins, provider))

    done = run(auth, act)
    assert done.account is not None
    assert done.account.name == "ada"
    form = provider.forms[0]
    assert form["redirect_uri"] == f"{PAGE}/api/v1/login/oidc/p0/callback"
    assert len(form["code_verifier"]) >= 43


def test_replay_of_the_answer(auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    async def act(logins: OidcLogins) -> None:
        cookie, answer = await begin(logins, provider)
        await finish(logins, cookie, answer)
        with pytest.raises(Refused, match="finished before"):
            await finish(logins, cookie, answer)

    run(auth, act)
    assert "a login through p0 from 192.0.2.7 is refused: this login was finished before (state)." in caplog.text


def test_login_csrf_answer_in_a_browser_that_began_nothing(
    auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(logins: OidcLogins) -> None:
        _, answer = await begin(logins, provider)
        for cookie in ("", "x" * 500, base64.urlsafe_b64encode(b"x" * 200).decode()):
            with pytest.raises(Refused, match="not begun in this browser"):
                await finish(logins, cookie, answer)

    run(auth, act)
    assert "no valid cookie" in caplog.text
    assert provider.forms == []
    assert asyncio.run(auth.audit.list()) == []  # anybody can send these: they would fill it


def test_state_of_another_login(auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    assert "answer to another login (state)" in refusal(auth, provider, state="another")
    assert "(state)" in caplog.text
    assert provider.forms == []


def test_mix_up_of_two_providers(tmp_path: Path, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    with hostile_provider() as evil:
        auth = make_login(tmp_path, provider, evil)

        async def act(logins: OidcLogins) -> None:
            cookie, answer = await begin(logins, evil, "p1")
            with pytest.raises(Refused, match="begun with another provider"):
                await finish(logins, cookie, answer, "p0")
            with pytest.raises(Refused, match="another issuer"):
                await finish(logins, cookie, {**answer, "iss": provider.issuer}, "p1")

        run(auth, act)
    assert "is refused: the answer comes from another issuer" in caplog.text
    assert provider.forms == evil.forms == []


def test_an_issuer_that_always_names_itself_and_did_not(auth: Auth, provider: HostileProvider) -> None:
    provider.document = {"authorization_response_iss_parameter_supported": True}
    assert "does not name its issuer" in refusal(auth, provider)


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any]) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join([*map(encode, parts), ""])


def confused(provider: HostileProvider) -> Callable[[dict[str, Any]], str]:
    """HS256, with the provider's public key as the secret. By hand, as libraries refuse to."""
    pem = provider.key.as_pem(private=False)

    def sign(claims: dict[str, Any]) -> str:
        head = {"alg": "HS256", "kid": provider.key.kid}
        text = ".".join(encode(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{encode(hmac.digest(pem, text.encode(), 'sha256'))}"

    return sign


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"aud": "another-client"}, "invalid_claim (aud)"),
        ({"aud": [CLIENT, "other"], "azp": "other"}, "invalid_claim (azp)"),
        ({"iss": "https://evil.example"}, "invalid_claim (iss)"),
        ({"exp": 1_000_000_000}, "expired_token"),
        ({"exp": None}, "missing_claim (exp)"),
        ({"nonce": "another"}, "it belongs to another login (nonce)"),
        ({"nonce": None}, "it belongs to another login (nonce)"),
        ({"sub": None}, "missing_claim (sub)"),
        ({"sub": ""}, "names no user"),
        ({"at_hash": "wrong"}, "invalid_claim (at_hash)"),
    ],
)
def test_tokens_that_are_not_for_this_login(
    auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], words: str
) -> None:
    provider.claims = {"nonce": None, **claims} if "nonce" in claims else claims
    told = provider.make_claims
    provider.make_claims = lambda: told(**claims)  # type: ignore[method-assign]
    assert words in refusal(auth, provider)
    assert words in caplog.text


def test_a_token_without_a_signature(auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    provider.sign = unsigned
    assert "the token's signature does not count" in refusal(auth, provider)
    assert "signature does not count" in caplog.text


def test_key_confusion(auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    provider.sign = confused(provider)
    assert "the token's signature does not count" in refusal(auth, provider)
    assert "signature does not count" in caplog.text


def test_a_provider_that_offers_only_symmetric_algorithms_or_none(auth: Auth, provider: HostileProvider) -> None:
    provider.document = {"id_token_signing_alg_values_supported": ["none", "HS256"]}
    assert "no algorithm that can be verified" in refusal(auth, provider)


def test_another_key_of_the_same_name(auth: Auth, provider: HostileProvider) -> None:
    provider.sign = lambda claims: jwt.encode({"alg": "RS256", "kid": "first"}, claims, OTHER_KEY)
    assert "signature does not count" in refusal(auth, provider)


def test_new_keys_are_found_at_once_also_after_false_logout_tokens(auth: Auth, provider: HostileProvider) -> None:
    async def act(logins: OidcLogins) -> None:
        await finish(logins, *await begin(logins, provider))
        for _ in range(3):
            with pytest.raises(Refused):
                await logins.end_sessions("p0", jwt.encode({"alg": "RS256", "kid": "x"}, {}, OTHER_KEY), "192.0.2.7")
        assert provider.asked.count("/jwks_uri") == 1  # anybody can send these
        provider.key = type(provider.key).generate_key(2048, {"kid": "second", "use": "sig", "alg": "RS256"})
        provider.claims = {}
        await finish(logins, *await begin(logins, provider))

    run(auth, act)
    assert provider.asked.count("/jwks_uri") == 2


@pytest.mark.parametrize("answer", [{"error": "access_denied"}, {"code": "secret-code", "iss": "https://evil.example"}])
def test_a_login_that_is_cancelled_or_fails_leads_back_where_its_link_pointed(
    auth: Auth, provider: HostileProvider, answer: dict[str, str]
) -> None:
    async def act(_: OidcLogins) -> str:
        transport = httpx.ASGITransport(make_app(Hub(), auth=auth))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=PAGE) as http:
            path = "/api/v1/login/oidc/p0"
            begun = await http.get(path, params={"next": "?q=free#/device?code=ABCD"})
            state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
            ended = await http.get(f"{path}/callback", params={"state": state, **answer})
            assert "note" in ended.headers["set-cookie"]
            return str(ended.headers["location"])

    assert run(auth, act) == f"{PAGE}/?q=free#/device?code=ABCD"


def test_clocks_that_differ_by_a_minute_and_a_half(auth: Auth, provider: HostileProvider) -> None:
    told = provider.make_claims
    ahead = told()["iat"] + 90
    provider.make_claims = lambda: told(iat=ahead, nbf=ahead)  # type: ignore[method-assign]

    async def act(logins: OidcLogins) -> FinishedLogin:
        return await finish(logins, *await begin(logins, provider))

    assert run(auth, act).secret


@pytest.mark.parametrize(
    ("status", "error", "is_out"),
    [
        (400, "invalid_grant", True),
        (400, "invalid_request", True),
        (403, "access_denied", True),
        (400, "interaction_required", True),
        (401, "invalid_client", False),
        (400, "unauthorized_client", False),
        (400, "temporarily_unavailable", False),
        (429, "slow_down", False),
        (503, "server_error", False),
        (400, "", False),
        (403, "", False),
    ],
)
def test_a_refresh_that_is_refused_ends_the_session_if_it_is_about_the_user(
    auth: Auth, provider: HostileProvider, status: int, error: str, is_out: bool
) -> None:
    async def act(logins: OidcLogins) -> None:
        secret = (await finish(logins, *await begin(logins, provider))).secret
        assert secret is not None
        provider.refusal = status, {"error": error} if error else "no JSON object"
        await auth.database.execute(update(provider_grants).values(due_at=0.0))
        await logins.check_grants()
        auth.sessions.forget()
        assert (await auth.find_session(secret) is None) == is_out
        is_ours = error in {"invalid_client", "unauthorized_client"}
        assert ("Correct client_id" in str(logins.providers["p0"].problem)) == is_ours
        provider.refusal = None
        await auth.database.execute(update(provider_grants).values(due_at=0.0))
        await logins.check_grants()
        assert logins.providers["p0"].problem is None

    run(auth, act)


def test_userinfo_of_another_user(auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture) -> None:
    provider.userinfo = {"sub": "2", "groups": ["admins"]}
    assert "another user than the ID token" in refusal(auth, provider)
    assert "another user" in caplog.text


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"token_endpoint": "https://169.254.169.254/token"}, "leads to 169.254.169.254, which has a local address"),
        ({"jwks_uri": "https://[::1]:1/keys"}, "which has a local address"),
        ({"token_endpoint": "http://10.0.0.5/token"}, "token_endpoint in the discovery document does not begin with"),
        ({"userinfo_endpoint": "file:///etc/passwd"}, "userinfo_endpoint in the discovery document does not begin"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint in the discovery document does"),
        ({"issuer": "https://evil.example"}, "is of the issuer https://evil.example"),
        ({"token_endpoint": 7}, "discovery document cannot be read"),
    ],
)
def test_discovery_that_leads_elsewhere(
    auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture, document: dict[str, Any], words: str
) -> None:
    provider.document = document
    assert words in refusal(auth, provider)
    assert words in caplog.text


def test_a_discovery_document_without_end(auth: Auth, provider: HostileProvider) -> None:
    provider.padding = 600 * 1024
    assert "answers more than" in refusal(auth, provider)


@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "?a\r\nSet-Cookie: x=1",
        "#a b",
        "?" + "x" * 2_000,
        "#é",
        "/other",
        "\\",
        "@evil.example",
    ],
)
def test_open_redirect(place: str, caplog: pytest.LogCaptureFixture) -> None:
    assert check_place(place) == ""
    assert "which is not on this page" in caplog.text


def test_places_on_the_page_are_kept() -> None:
    assert check_place("?q=free#/host/gpu01") == "?q=free#/host/gpu01"
    assert check_place("") == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nonce": "n"}, "it is no logout token"),
        ({"events": {}}, "it is no logout token"),
        ({"aud": "another"}, "it is for another client"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"sub": None}, "names neither a user nor a session"),
        ({"jti": None}, "has no id"),
        ({"iat": 1_000_000_000}, "too old"),
    ],
)
def test_logout_tokens_that_do_not_count(
    auth: Auth, provider: HostileProvider, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], words: str
) -> None:
    usual = {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}, "jti": "1", **changes}
    token = provider.sign(provider.make_claims(**usual))
    with pytest.raises(Refused, match=words):
        run(auth, lambda logins: logins.end_sessions("p0", token, "192.0.2.7"))
    assert "a logout by p0 from 192.0.2.7 is refused: the logout token does not count" in caplog.text
    assert asyncio.run(auth.audit.list()) == []  # anybody can send these: they would fill it


@pytest.mark.parametrize(
    ("name", "form", "status"),
    [("p0", "logout_token=x", 400), ("p0", "a=1&" * 9, 400), ("p0", "", 400), ("another", "logout_token=x", 404)],
)
def test_logout_requests_that_are_rubbish(auth: Auth, name: str, form: str, status: int) -> None:
    async def act(_: OidcLogins) -> int:
        transport = httpx.ASGITransport(make_app(Hub(), auth=auth))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=PAGE) as http:
            path, kind = f"/api/v1/login/oidc/{name}/logout", "application/x-www-form-urlencoded"
            return (await http.post(path, content=form, headers={"Content-Type": kind})).status_code

    assert run(auth, act) == status


def test_logout_tokens_end_the_users_sessions_once(auth: Auth, provider: HostileProvider) -> None:
    usual = {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}, "jti": "1"}

    async def act(logins: OidcLogins) -> None:
        done = await finish(logins, *await begin(logins, provider))
        assert done.secret is not None
        assert await auth.find_session(done.secret) is not None
        provider.claims = {}
        token = provider.sign(provider.make_claims(**usual))
        assert await logins.end_sessions("p0", token, "192.0.2.7") == 1
        assert await auth.find_session(done.secret) is None
        with pytest.raises(Refused, match="was used before"):
            await logins.end_sessions("p0", token, "192.0.2.7")

    run(auth, act)
    assert asyncio.run(auth.audit.list())[0].action == "end session"


def test_a_flood_of_false_answers_leaves_a_bounded_number_of_lines_and_says_how_many_more_there_were(
    auth: Auth, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(audit, "monotonic", lambda: seconds)

    async def act(logins: OidcLogins) -> None:
        nonlocal seconds
        for _ in range(1_000):
            with pytest.raises(Refused):
                await finish(logins, "", {"state": "x", "code": "secret-code"})
        assert len(caplog.records) == audit.REFUSAL_BURST
        seconds += audit.REFUSAL_SECONDS
        with pytest.raises(Refused):
            await finish(logins, "", {})

    run(auth, act)
    assert caplog.messages[-1].endswith("(950 more were refused since the entry before)")
    assert len(caplog.records) == audit.REFUSAL_BURST + 1


def test_a_thousand_logins_at_once_are_bounded(auth: Auth, provider: HostileProvider) -> None:
    async def act(logins: OidcLogins) -> list[Any]:
        begun = [await begin(logins, provider) for _ in range(1_000)]
        return await asyncio.gather(*(finish(logins, *one) for one in begun), return_exceptions=True)

    done = run(auth, act)
    busy = [one for one in done if isinstance(one, Temporary)]
    assert len(provider.forms) == oidc_logins.MOST_AT_ONCE
    assert len(busy) == 1_000 - oidc_logins.MOST_AT_ONCE
    assert "too many users are logging in" in str(busy[0])
