"""Real OpenID Connect providers: oidc-provider from npm in its own process; pytest-iam brings Canaille."""

import contextlib
import fcntl
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from joserfc.jwk import RSAKey

from fakes.ports import free_port
from fakes.waiting import wait_until

SOURCES = Path(__file__).parents[1] / "auth" / "oidc_provider"
INSTALLED = Path(__file__).parents[2] / "build" / "oidc-provider"
SECRET = "a-secret-of-the-client-that-is-long-enough"
CLIENT = "gpudeck"
USERS: dict[str, dict[str, Any]] = {
    "ada": {"preferred_username": "ada", "email": "ada@example.org", "groups": ["gpu-admins", "lab-vision"]},
    "uli": {"preferred_username": "uli", "email": "uli@example.org", "groups": ["staff"]},
}


def make_key(kid: str) -> dict[str, Any]:
    return dict(RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"}).as_dict(private=True))


def _install() -> Path:
    """By npm, from the lock file with its hashes; once, until that changes."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no node and npm here (Debian, Ubuntu: apt install nodejs npm)")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = ("package.json", "package-lock.json", "provider.mjs")
        wanted = "".join((SOURCES / name).read_text() for name in names)
        stamp = INSTALLED / "stamp"
        if not stamp.exists() or stamp.read_text() != wanted:
            for name in names:
                shutil.copy(SOURCES / name, INSTALLED)
            command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
            done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, timeout=100, check=False)
            if done.returncode:
                pytest.skip(f"npm cannot install oidc-provider here: {done.stderr.strip()[-200:]}")
            stamp.write_text(wanted)
    return INSTALLED


class NodeProvider:
    """oidc-provider on a port of this machine. `start` again after `stop` for the same issuer with other keys."""

    def __init__(self, folder: Path, hub: str, name: str = "node", users: Mapping[str, Any] = USERS) -> None:
        """`hub` is the public address of the hub, `name` what it calls this provider."""
        self._place = _install()
        self._folder = folder
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        base = f"{hub}/api/v1/login/oidc/{name}"
        self._settings: dict[str, Any] = {
            "port": self.port,
            "users": dict(users),
            "client": {
                "client_id": CLIENT,
                "client_secret": SECRET,
                "redirect_uris": [f"{base}/callback"],
                "post_logout_redirect_uris": [f"{hub}/"],
                "backchannel_logout_uri": f"{base}/logout",
                "backchannel_logout_session_required": True,
            },
        }
        self.gives_refresh_tokens = True
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, kid: str = "first") -> None:
        file = self._folder / f"oidc-{self.port}.json"
        file.write_text(
            json.dumps({**self._settings, "refresh": self.gives_refresh_tokens, "jwks": {"keys": [make_key(kid)]}})
        )
        log = (self._folder / f"oidc-{self.port}.log").open("ab")
        command = ["node", "provider.mjs", str(file)]
        self._process = subprocess.Popen(command, cwd=self._place, stdout=log, stderr=log)
        log.close()
        wait_until(self._answers, "oidc-provider")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def change_user(self, name: str, claims: Mapping[str, Any] | None) -> None:
        """None: the user is disabled."""
        body = b"" if claims is None else json.dumps(claims).encode()
        httpx.put(f"{self.issuer}/test/users/{name}", content=body).raise_for_status()

    def change_secret(self, secret: str) -> None:
        """The client's; also after a restart. Everything else goes on."""
        self._settings["client"]["client_secret"] = secret
        httpx.put(f"{self.issuer}/test/secret", content=secret.encode()).raise_for_status()

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.issuer}/.well-known/openid-configuration").status_code == 200
        return False


@contextlib.contextmanager
def node_provider(
    folder: Path, hub: str, name: str = "node", users: Mapping[str, Any] = USERS
) -> Iterator[NodeProvider]:
    provider = NodeProvider(folder, hub, name, users)
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


def pass_forms(browser: httpx.Client, url: str, user: str, until: str) -> str:
    """Log in with the forms of oidc-provider, as a browser does; the address that it sends back to `until`."""
    for _ in range(12):
        answer = browser.get(url)
        while not answer.is_redirect:
            action = re.search(r'action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert action is not None, answer.text[:500]
            assert prompt is not None, answer.text[:500]
            fields = {"prompt": prompt[1], "login": user, "password": "any"}
            answer = browser.post(urljoin(str(answer.url), action[1]), data=fields)
        url = urljoin(str(answer.url), answer.headers["location"])
        if url.startswith(until):
            return url
    raise AssertionError(f"no end at {url}")


def prepare_canaille(iam: Any, callback: str) -> tuple[str, Any, Any]:
    """The issuer, which knows the user grace and this hub; and its records of both."""
    user = iam.models.User(
        user_name="grace", family_name="H", given_name="Grace", emails=["grace@example.org"], password="correct horse"
    )
    iam.backend.save(user)
    group = iam.models.Group(display_name="staff", members=[user])
    iam.backend.save(group)
    iam.backend.reload(user)
    client = iam.models.Client(
        client_id=CLIENT,
        client_secret=SECRET,
        client_name="gpudeck",
        client_uri="http://127.0.0.1",
        redirect_uris=[callback],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="client_secret_basic",
        scope=["openid", "profile", "email", "groups"],
    )
    iam.backend.save(client)
    client.audience = [client]
    iam.backend.save(client)
    document = httpx.get(f"{iam.url}.well-known/openid-configuration").json()
    return str(document["issuer"]), user, client
