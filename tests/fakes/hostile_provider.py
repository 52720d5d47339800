"""An OpenID Connect provider that does what a test tells it: for answers that no real provider gives."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "gpudeck", "a-secret-of-the-client"
_KEY = RSAKey.generate_key(2048, {"kid": "first", "use": "sig", "alg": "RS256"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "first", "use": "sig", "alg": "RS256"})


class HostileProvider(http.server.ThreadingHTTPServer):
    """`document` are changes of the discovery document; `claims` of the ID token; `sign` makes it. `forms` is what its
    token endpoint was sent; `refusal` is what that answers instead of tokens."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.key = _KEY
        self.document: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {"sub": "1"}
        self.padding = 0
        self.refusal: tuple[int, object] | None = None
        self.forms: list[dict[str, str]] = []
        self.asked: list[str] = []
        self.sign: Callable[[dict[str, Any]], str] = self.sign_well

    def sign_well(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def make_claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 300}
        told = {**usual, "preferred_username": "ada", **self.claims, **changes}
        return {name: value for name, value in told.items() if value is not None}

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, object]:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            own = {name: f"{self.issuer}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            more = {"userinfo_endpoint": f"{self.issuer}/userinfo", "padding": "x" * self.padding}
            return 200, {"issuer": self.issuer, **own, **more, **self.document}
        if path == "/jwks_uri":
            return 200, {"keys": [self.key.as_dict(private=False)]}
        if path == "/token_endpoint":
            self.forms.append(form)
            if self.refusal is not None:
                return self.refusal
            token = self.sign(self.make_claims())
            return 200, {"access_token": "at", "token_type": "Bearer", "id_token": token, "refresh_token": "rt"}
        return 200, self.userinfo


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HostileProvider

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        status, answer = self.server.answer(self.path, form)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def hostile_provider() -> Iterator[HostileProvider]:
    with HostileProvider() as provider:
        thread = threading.Thread(target=provider.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()
