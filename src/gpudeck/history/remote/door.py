"""HTTP to the store: its two addresses, credentials, certificates, and what went wrong in words for people. Blocks."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from msgspec import Struct
from urllib3.util import make_headers

from gpudeck import __version__
from gpudeck.agent.push import read_token
from gpudeck.fetch import content_kind, explain, show_url, trust_from
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import Temporary, UsageError

log = logging.getLogger(__name__)

_SHOWN = 200
_ERROR_TYPE = re.compile(
    rb'"errorType"\s*:\s*"(timeout|canceled|execution|bad_data|internal|unavailable|not_found|not_acceptable|\d{3})"'
)
"""Prometheus' own kinds of errors; VictoriaMetrics puts the status there."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PIECE = 64 * 1024


class Reply(Struct, frozen=True):
    """What the store answered. `body` is whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Door:
    """To one address of the store. Several threads may ask at once. `close` when done.

    Raises UsageError for an address or a file that cannot be used. Secrets are read again after a refusal, so that a
    new token needs no restart.
    """

    def __init__(self, url: str, settings: HistorySettings, *, name: str, seconds: float, connections: int = 1) -> None:
        """`name` is that of the setting that the address is from; `seconds` is how long to wait for an answer."""
        self.shown = show_url(url)
        self._url = _check_url(url, name)
        self._settings = settings
        self._headers = self._make_headers()
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=connections,
            block=True,
            retries=False,
            timeout=urllib3.Timeout(connect=5.0, read=seconds),
            ssl_context=trust_from(settings.ca_file) if settings.ca_file else None,
        )

    def post(self, path: str, body: bytes, headers: Mapping[str, str], *, bytes_at_most: int = _PIECE) -> Reply:
        """Raises Temporary when there is no answer, or one of more than `bytes_at_most`."""
        try:
            answer = self._pool.request(
                "POST",
                self._url + path,
                body=body,
                headers={**self._headers, **headers},
                redirect=False,
                preload_content=False,
            )
            try:
                return Reply(answer.status, answer.headers, self._read(answer, bytes_at_most))
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Temporary(f"{self.shown} does not answer: {_explain(error)}.") from error

    def read_secrets_again(self) -> None:
        """After a refusal. A file that cannot be read now leaves things as they are."""
        try:
            self._headers = self._make_headers()
        except UsageError as error:
            raise Temporary(error.message, error.hint) from error

    def close(self) -> None:
        self._pool.clear()

    def _read(self, answer: urllib3.BaseHTTPResponse, at_most: int) -> bytes:
        body = bytearray()
        for piece in answer.stream(_PIECE, decode_content=True):
            body += piece
            if len(body) > at_most:
                answer.close()
                raise Temporary(f"{self.shown} answers more than {at_most / 2**20:g} MiB.", "Ask for less.")
        return bytes(body)

    def _make_headers(self) -> dict[str, str]:
        """The operator's own come last: they know their proxies best."""
        settings = self._settings
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept-Encoding": "gzip"}
        if settings.token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(settings.token_file)}"
        if settings.user is not None:
            password = _secret(settings.password_file) if settings.password_file is not None else ""
            headers |= _basic(settings.user, password)
        for name, value in settings.headers.items():
            if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise UsageError(f"history.headers: {name[:40]!r} is no header that can be sent.", "Correct it.")
        return headers | settings.headers


def describe(reply: Reply) -> str:
    """The status and, for everybody to read, no more than the kind of error or of content: what the store says goes
    into the log."""
    log.debug("the store answers %d: %s", reply.status, quote(reply.body))
    found = _ERROR_TYPE.search(reply.body[:4000])
    kind = found[1].decode() if found else content_kind(reply.headers.get("Content-Type", ""))
    return f"{reply.status} ({kind})" if kind else str(reply.status)


def quote(body: bytes) -> str:
    """The store's own words, shortened: of an answer in JSON its `error`, of a page for browsers its title."""
    text = body[:4000].decode("utf-8", "replace")
    found = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)*)', text) or re.search(
        r"<title[^>]*>([^<]*)", text, re.IGNORECASE
    )
    line = " ".join((found[1] if found else text).replace('\\"', '"').split())
    return "".join(letter for letter in line if letter.isprintable())[:_SHOWN].rstrip(" .")


def _check_url(url: str, name: str) -> str:
    hint = f"Give history.{name} as https://store.example/path."
    try:
        parts = urlsplit(url.strip())
        is_right = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
        parts = urlsplit("")
    if not is_right or parts.fragment:
        raise UsageError(f"{show_url(url)!r} is no address of http or https.", hint)
    if parts.username is not None:
        raise UsageError(f"history.{name} has a name or a password in it.", "Use history.user and password_file.")
    return url.strip().rstrip("/")


def _secret(file: str) -> str:
    return read_token(Path(file).expanduser(), "Check who may read it.", "Write it into the file.")


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": make_headers(basic_auth=f"{user}:{password}")["authorization"]}


def _explain(error: Exception) -> str:
    """Of a connection that cannot be made urllib3 keeps the reason in its arguments."""
    is_refused = isinstance(error, urllib3.exceptions.NewConnectionError)
    if isinstance(error, urllib3.exceptions.TimeoutError) and not is_refused:
        return "it took too long"
    return explain(error).rpartition(": ")[2].rstrip(".")
