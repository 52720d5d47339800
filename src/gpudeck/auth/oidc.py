"""One OpenID Connect provider: its document and keys, codes and refresh tokens → verified claims, logout.

The provider is asked over TLS, or on this machine; endpoints that its discovery document names on other hosts must not
lead to local addresses. Raises Temporary while the provider does not answer, and Refused for what must not be believed.
"""

import asyncio
import base64
import contextlib
import hmac
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec
from authlib.common.urls import add_params_to_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from msgspec import Struct, field

from gpudeck.auth.settings import OidcSettings, read_secret
from gpudeck.fetch import AddressGuard, Fetcher, HttpResponse, trust_from
from gpudeck.model import clock
from gpudeck.model.errors import GpudeckError, Refused, Temporary
from gpudeck.model.settings import is_loopback
from gpudeck.model.text import clean

log = logging.getLogger(__name__)
_T = TypeVar("_T")

DEADLINE_SECONDS: Final = 8.0
MAX_BYTES: Final = 512 * 1024
LEEWAY_SECONDS: Final = 120
"""How far the clocks of hub and provider may differ."""
DOCUMENT_SECONDS: Final = 30.0
"""How long a discovery document counts: a provider that is down is named on the login form by then. To finish a login
that was begun, an older one still counts while the provider does not answer."""
BEGIN_SECONDS: Final = 2.0
"""The same before a browser is sent to the provider."""
KEYS_SECONDS: Final = 3600.0
RETRY_SECONDS: Final = 15.0
"""While something is wrong with the provider's document, or with tokens that anybody can send, it is asked for its
document or its keys this often at most."""
AT_ONCE: Final = 8
_MAX_KEYS: Final = 50
_METHODS: Final = ("client_secret_basic", "client_secret_post")
_CLIENT_ERRORS: Final = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"})
"""Errors of the token endpoint (RFC 6749) that mean that this hub is configured wrongly."""
_SERVER_ERRORS: Final = frozenset({"", "server_error", "temporarily_unavailable", "slow_down"})
"""Those that say nothing about the user. Every other one refuses the user: a disabled user is `invalid_grant` for most
providers, `invalid_request` for those that use Authlib, `access_denied` or `interaction_required` for others."""
_LOGOUT_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
ALGORITHMS: Final = frozenset(
    ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
)
"""Signatures with a public key. `none` proves nothing; HS256 would take the public key for a secret."""


class ProviderDocument(Struct, frozen=True):
    """What of the discovery document is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    id_token_signing_alg_values_supported: list[str] = field(default_factory=lambda: ["RS256"])
    token_endpoint_auth_methods_supported: list[str] = field(default_factory=lambda: ["client_secret_basic"])
    authorization_response_iss_parameter_supported: bool = False
    scopes_supported: list[str] | None = None


class _TokenAnswer(Struct, frozen=True):
    access_token: str = ""
    id_token: str | None = None
    refresh_token: str | None = None


class _TokenError(Struct, frozen=True):
    error: str = ""


class ProviderAnswer(Struct, frozen=True):
    """What a login or a refresh has brought. `id_claims` are verified; `userinfo` is empty where it was not to be had,
    and `userinfo_problem` says why. `id_token` is None where a refresh brought no new one."""

    id_claims: dict[str, Any]
    userinfo: dict[str, Any]
    userinfo_problem: str
    id_token: str | None
    refresh_token: str | None

    @property
    def subject(self) -> str:
        return str(self.id_claims["sub"])


class GrantEnded(Refused):
    """The provider gives no further tokens: the user is disabled or logged out there, or the token is too old."""


class _ClientRefused(Temporary):
    """The provider does not accept this hub: that says nothing about the user."""


class OidcProvider:
    """`problem` is why nobody can log in through it now, as far as is known; None: they can."""

    def __init__(self, settings: OidcSettings, redirect_uri: str, now: clock.Clock = clock.wall) -> None:
        """Raises UsageError for a file that cannot be read."""
        self.settings = settings
        self.label = settings.label or settings.name
        self.redirect_uri = redirect_uri
        self._problems: dict[Literal["discovery", "client"], GpudeckError] = {}
        place = f"login.oidc {settings.name}"
        self.secret = read_secret(f"{place}: client_secret_file", settings.client_secret_file).strip()
        self._now = now
        self._trust = None if settings.ca_file is None else trust_from(settings.ca_file, f"{place}: ca_file")
        self._fetchers: dict[tuple[str, str], Fetcher] = {}
        self._document: ProviderDocument | None = None
        self._keys: KeySet | None = None
        self._method = _METHODS[0]
        self._document_at = self._keys_at = self._failed_at = float("-inf")
        self._asking = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))

    @property
    def problem(self) -> str | None:
        return next(map(str, self._problems.values()), None)

    async def document(self, max_age: float = DOCUMENT_SECONDS) -> ProviderDocument:
        """Raises Temporary, also for a document that must not be believed: it may be corrected."""
        async with self._asking:
            age = time.monotonic() - self._document_at
            if self._document is not None and age < max_age:
                return self._document
            if "discovery" not in self._problems or time.monotonic() - self._failed_at >= RETRY_SECONDS:
                await self._load_document()
            if self._document is None:
                raise self._unusable()
            return self._document

    async def _load_document(self) -> None:
        try:
            self._document = await self._discover()
            self._document_at = time.monotonic()
            self._note("discovery", None)
        except GpudeckError as error:
            self._document_at, self._failed_at = float("-inf"), time.monotonic()
            self._note("discovery", error)

    def _unusable(self) -> Temporary:
        why = self._problems["discovery"]
        return Temporary(f"{self.label} cannot be used now: {why.message}", why.hint or "Try again later.")

    async def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """Raises Temporary where the provider does not answer: the browser would be lost there."""
        document = await self.document(BEGIN_SECONDS)
        if "discovery" in self._problems:
            raise self._unusable()
        parameters = {
            **self.settings.parameters,
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        return str(add_params_to_uri(document.authorization_endpoint, list(parameters.items())))

    async def check_issuer(self, told: str | None) -> None:
        """Raises Refused where the answer of a login comes from another provider (RFC 9207)."""
        if told is None:
            if (await self.document()).authorization_response_iss_parameter_supported:
                raise Refused("the answer does not name its issuer, as this provider always does.")
        elif told != self.settings.issuer:
            raise Refused(f"the answer comes from another issuer: {clean(told[:120])}.")

    async def redeem(self, code: str, verifier: str, nonce: str) -> ProviderAnswer:
        """The claims behind a code. Raises GrantEnded for one that does not count."""
        form = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        answer = await self._ask_for_tokens({**form, "redirect_uri": self.redirect_uri})
        if answer.id_token is None:
            raise Refused("the provider sent no ID token.", "The scope openid is needed.")
        claims = await self._verify(answer.id_token, nonce=nonce, access_token=answer.access_token)
        return await self._complete(answer, claims)

    async def refresh(self, refresh_token: str, subject: str) -> ProviderAnswer:
        """The claims of now. Raises GrantEnded where the user is out."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        answer = await self._ask_for_tokens(form)
        claims: dict[str, Any] = {"sub": subject}
        if answer.id_token is not None:
            claims = await self._verify(answer.id_token, access_token=answer.access_token)
        if claims["sub"] != subject:
            raise GrantEnded("the refreshed token belongs to another user.")
        return await self._complete(answer, claims)

    async def read_logout_token(self, token: str) -> tuple[str | None, str | None, str]:
        """The user and the provider's session that end, and the token's own id. Raises Refused."""
        # Anybody can send these.
        claims = (await self._decode(token, RETRY_SECONDS)).claims
        now = self._now()
        issued, expires = claims.get("iat"), claims.get("exp", now + 1)
        audience = claims.get("aud")
        events, jti = claims.get("events"), claims.get("jti")
        subject, sid = claims.get("sub"), claims.get("sid")
        problem = None
        if claims.get("iss") != self.settings.issuer:
            problem = "it comes from another issuer"
        elif self.settings.client_id not in (audience if isinstance(audience, list) else [audience]):
            problem = "it is for another client"
        elif not isinstance(issued, int | float) or abs(now - issued) > LEEWAY_SECONDS + 300:
            problem = "it is too old, or from the future"
        elif not isinstance(expires, int | float) or expires < now - LEEWAY_SECONDS:
            problem = "it has expired"
        elif not isinstance(events, dict) or _LOGOUT_EVENT not in events or "nonce" in claims:
            problem = "it is no logout token"
        elif not isinstance(jti, str) or not (isinstance(subject, str) or isinstance(sid, str)):
            problem = "it names neither a user nor a session, or has no id"
        if problem is not None:
            raise Refused(f"the logout token does not count: {problem}.")
        return subject if isinstance(subject, str) else None, sid if isinstance(sid, str) else None, str(jti)

    def logout_url(self, id_token: str | None, after: str) -> str | None:
        """Where the user is logged out of the provider, which then sends them to `after`; None where it cannot."""
        if self._document is None or self._document.end_session_endpoint is None:
            return None
        parameters = {"client_id": self.settings.client_id, "post_logout_redirect_uri": after}
        hint = {} if id_token is None else {"id_token_hint": id_token}
        return str(add_params_to_uri(self._document.end_session_endpoint, list({**parameters, **hint}.items())))

    def _note(self, where: Literal["discovery", "client"], problem: GpudeckError | None) -> None:
        """Logged when it begins and when it ends."""
        before = self._problems.pop(where, None)
        if problem is not None:
            self._problems[where] = problem
            if str(problem) != str(before):
                log.warning("nobody can log in through %s now: %s", self.settings.name, problem)
        elif before is not None and self.problem is None:
            log.info("users can log in through %s again", self.settings.name)

    async def _discover(self) -> ProviderDocument:
        issuer = self.settings.issuer
        answer = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        document = _read(answer.body, ProviderDocument, "discovery document")
        if document.issuer != issuer:
            raise Refused(
                f"the discovery document is of the issuer {clean(document.issuer[:120])}, not {issuer}.",
                "Write the issuer exactly like that, if it is right.",
            )
        for name in msgspec.structs.fields(ProviderDocument):
            url = getattr(document, name.name)
            if isinstance(url, str) and name.name != "issuer":
                self._check_url(url, name.name)
        if not ALGORITHMS.intersection(document.id_token_signing_alg_values_supported):
            raise Refused("the provider signs ID tokens with no algorithm that can be verified with a public key.")
        return document

    def _check_url(self, url: str, name: str) -> None:
        """Raises Refused for an endpoint without TLS, unless the issuer itself is on this machine without it."""
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise Refused(f"{name} in the discovery document is no URL.") from error
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if not parts.hostname or not (
            parts.scheme == "https" or (is_local and self.settings.issuer.startswith("http:"))
        ):
            raise Refused(f"{name} in the discovery document does not begin with https://.")

    def _fetcher(self, url: str) -> Fetcher:
        """For the server of that URL. A host that only the document names must not be local."""
        parts = urlsplit(url)
        origin = (parts.scheme, parts.netloc)
        if origin not in self._fetchers:
            is_named = parts.hostname == urlsplit(self.settings.issuer).hostname
            guard = None if is_named else AddressGuard(parts.hostname or "", ())
            self._fetchers[origin] = Fetcher(
                deadline=DEADLINE_SECONDS, bytes_at_most=MAX_BYTES, trust=self._trust, guard=guard
            )
        return self._fetchers[origin]

    async def _get(self, url: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        with self._explaining(url):
            return await self._fetcher(url).get(url, {"Accept": "application/json", **(headers or {})})

    @contextlib.contextmanager
    def _explaining(self, url: str) -> Iterator[None]:
        """A refusal of the guard speaks about hosts to be monitored."""
        try:
            yield
        except Refused as error:
            if urlsplit(url).hostname != urlsplit(self.settings.issuer).hostname:
                raise Refused(
                    f"the discovery document leads to {clean(urlsplit(url).netloc[:120])}, which has a local address."
                ) from error
            raise

    async def _ask_for_tokens(self, form: dict[str, str]) -> _TokenAnswer:
        """Providers take the secret in the header or in the form, and many only in the way that the client was
        registered for: the other one is tried before the client or the user counts as refused."""
        supported = (await self.document()).token_endpoint_auth_methods_supported
        methods = [method for method in _METHODS if method in supported] or list(_METHODS[:1])
        methods.sort(key=lambda method: method != self._method)
        refusals = list[GpudeckError]()
        for method in methods:
            answer = await self._post_form(form, method)
            if answer.status == 200:
                self._method = method
                self._note("client", None)
                return _read(answer.body, _TokenAnswer, "answer with the tokens")
            refusals.append(self._token_refusal(answer))
            if _error_code(answer) not in {"invalid_client", "invalid_request"}:
                break
        # A refusal of the user comes from the method that the client is registered for.
        refusal = next((error for error in refusals if isinstance(error, GrantEnded)), refusals[-1])
        if isinstance(refusal, _ClientRefused | GrantEnded):
            self._note("client", refusal if isinstance(refusal, _ClientRefused) else None)
        raise refusal

    async def _post_form(self, form: dict[str, str], method: str) -> HttpResponse:
        url = (await self.document()).token_endpoint
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if method == "client_secret_basic":
            pair = f"{quote_plus(self.settings.client_id)}:{quote_plus(self.secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form = {**form, "client_id": self.settings.client_id, "client_secret": self.secret}
        try:
            async with self._turns:
                with self._explaining(url):
                    return await self._fetcher(url).post(url, urlencode(form).encode(), headers, accept={400, 401, 403})
        except Temporary:
            # Whether the provider is down is asked at once, not after DOCUMENT_SECONDS.
            self._document_at = float("-inf")
            raise

    def _token_refusal(self, answer: HttpResponse) -> GpudeckError:
        code = _error_code(answer)
        if code in _CLIENT_ERRORS or (answer.status == 401 and not code):
            return _ClientRefused(
                f"the provider does not accept this hub as a client ({code or answer.status}).",
                f"Correct client_id and client_secret_file of {self.settings.name}, or its client at the provider.",
            )
        if code in _SERVER_ERRORS:
            return Temporary(f"the provider answers {answer.status} ({code or 'without a reason'}).")
        return GrantEnded(f"the provider does not accept the code or the refresh token ({clean(code[:40])}).")

    async def _complete(self, answer: _TokenAnswer, claims: dict[str, Any]) -> ProviderAnswer:
        userinfo, problem = await self._read_userinfo(answer.access_token, str(claims["sub"]))
        return ProviderAnswer(claims, userinfo, problem, answer.id_token, answer.refresh_token)

    async def _read_userinfo(self, access_token: str, subject: str) -> tuple[dict[str, Any], str]:
        """Without it the ID token's claims alone count, and missing groups change nothing. Raises Refused for that of
        another user."""
        url = (await self.document()).userinfo_endpoint
        if url is None or not access_token.isascii() or not access_token.isprintable():
            return {}, "the provider has no userinfo endpoint"
        try:
            answer = await self._get(url, {"Authorization": f"Bearer {access_token}"})
            userinfo = _read(answer.body, dict[str, Any], "userinfo")
        except GpudeckError as error:
            return {}, f"userinfo cannot be read: {error}"
        if userinfo.get("sub") != subject:
            raise Refused("userinfo is about another user than the ID token.")
        return userinfo, ""

    async def _verify(self, id_token: str, *, access_token: str, nonce: str | None = None) -> dict[str, Any]:
        """The claims of an ID token of this provider for this client. Raises Refused."""
        token = await self._decode(id_token)
        parameters = {"client_id": self.settings.client_id, "access_token": access_token}
        options: Any = {
            "iss": {"essential": True, "value": self.settings.issuer},
            "aud": {"essential": True, "value": self.settings.client_id},
        }
        claims = CodeIDToken(token.claims, token.header, options, parameters)
        try:
            claims.validate(now=int(self._now()), leeway=LEEWAY_SECONDS)
        except JoseError as error:
            raise Refused(f"the ID token does not count: {_explain(error)}.") from error
        told = claims.get("nonce")
        if nonce is not None and not (isinstance(told, str) and hmac.compare_digest(told.encode(), nonce.encode())):
            raise Refused("the ID token does not count: it belongs to another login (nonce).")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise Refused("the ID token does not count: it names no user (sub).")
        return dict(claims)

    async def _decode(self, text: str, keys_at_least: float = 0.0) -> jwt.Token:
        """With keys asked for again where they do not fit, if they are so old: providers replace them."""
        document = await self.document()
        allowed = sorted(ALGORITHMS.intersection(document.id_token_signing_alg_values_supported))
        was_asked = await self._load_keys(document, at_least=KEYS_SECONDS)
        try:
            return _decode(text, self._keys, allowed)
        except Refused:
            if was_asked or not await self._load_keys(document, at_least=keys_at_least):
                raise
        return _decode(text, self._keys, allowed)

    async def _load_keys(self, document: ProviderDocument, *, at_least: float) -> bool:
        """Ask for the keys if those known are at least so old. Returns whether they were."""
        async with self._asking:
            if self._keys is not None and time.monotonic() - self._keys_at < at_least:
                return False
            try:
                answer = await self._get(document.jwks_uri)
                self._keys = _read_keys(answer.body)
            except GpudeckError:
                if self._keys is None:
                    raise
                log.warning("the keys of %s cannot be read; those known before still count", self.settings.name)
            self._keys_at = time.monotonic()
            return True


def redirect_uri(public_url: str, name: str) -> str:
    """The address that has to be registered with the provider of that name."""
    return f"{public_url.rstrip('/')}/api/v1/login/oidc/{name}/callback"


def _decode(text: str, keys: KeySet | None, algorithms: list[str]) -> jwt.Token:
    if keys is None or len(text) > MAX_BYTES:
        raise Refused("the token is too long.")
    try:
        return jwt.decode(text, keys, algorithms=algorithms)
    except JoseError as error:
        raise Refused(f"the token's signature does not count: {_explain(error)}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # No JWT at all, or one whose header names a key that is not there.
        raise Refused(f"the token is not signed with a key of the provider ({type(error).__name__}).") from error


def _read_keys(body: bytes) -> KeySet:
    """Only public keys for signatures: a secret one would be the attacker's."""
    found = _read(body, dict[str, Any], "key set").get("keys")
    wanted = [
        key
        for key in (found if isinstance(found, list) else [])[:_MAX_KEYS]
        if isinstance(key, dict) and key.get("kty") in {"RSA", "EC", "OKP"} and key.get("use", "sig") == "sig"
    ]
    try:
        return KeySet.import_key_set({"keys": wanted})
    except (JoseError, ValueError, KeyError, TypeError) as error:
        raise Temporary(f"the provider's keys cannot be read ({type(error).__name__}).") from error


def _read(body: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Temporary(f"the provider's {what} cannot be read: {type(error).__name__}.") from error


def _error_code(answer: HttpResponse) -> str:
    """Empty where the answer has none."""
    try:
        return msgspec.json.decode(answer.body, type=_TokenError).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _explain(error: JoseError) -> str:
    """Texts of the library repeat claims, which may be anything."""
    claim = clean(str(getattr(error, "claim", None) or "")[:40])
    return f"{error.error}{f' ({claim})' if claim else ''}"
