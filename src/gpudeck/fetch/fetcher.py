"""One kept HTTP connection to one other machine, and what can go wrong with it, in words for people."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx
from msgspec import Struct

from gpudeck.model.errors import Refused, Temporary, UsageError

BYTES_AT_MOST = 8 * 1024 * 1024
_SHOWN = 120


class Answer(Struct, frozen=True):
    """What was answered, whole. `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Asks one server, over a connection that is kept. Follows no redirect and knows no proxy: what a hub watches is
    near it.

    `deadline` is for a whole question, in seconds; an answer of more than `bytes_at_most` is not read to its end.
    `trust` are the certificates that are believed (`trust_from`). `close` when done.
    """

    def __init__(
        self, *, deadline: float, bytes_at_most: int = BYTES_AT_MOST, trust: ssl.SSLContext | None = None
    ) -> None:
        self._deadline = deadline
        self._bytes_at_most = bytes_at_most
        self._client = httpx.AsyncClient(
            verify=trust or shared_trust(),
            timeout=None,  # noqa: S113 - the deadline below is for the whole question
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=600.0),
            headers={"User-Agent": "gpudeck-hub"},
        )

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer, if its status is 200. Raises Refused for 401 and 403, Temporary for anything else."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._get(url, headers)
        except TimeoutError as error:
            raise Temporary(f"{url} did not answer within {self._deadline:g} s.") from error
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UsageError(f"{url!r} is no address: {error}.") from error
        except (httpx.HTTPError, OSError) as error:
            raise Temporary(f"{url} does not answer: {explain(error)}.") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(self, url: str, headers: Mapping[str, str] | None) -> Answer:
        async with self._client.stream("GET", url, headers=headers) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._bytes_at_most:
                    raise Temporary(f"{url} answers more than {self._bytes_at_most // 2**20} MiB.")
        _check_status(url, response, bytes(body))
        return Answer(
            response.status_code, {key.lower(): value for key, value in response.headers.items()}, bytes(body)
        )


def _check_status(url: str, response: httpx.Response, body: bytes) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code in {401, 403}:
        raise Refused(f"{url} answers {response.status_code}: the token is not accepted.", "Check the token file.")
    if response.has_redirect_location:
        raise Temporary(f"{url} leads elsewhere, to {response.headers['location'][:_SHOWN]}.", "Give that address.")
    said = " ".join(body[:_SHOWN].decode(errors="replace").split())
    raise Temporary(f"{url} answers {response.status_code}{f': {said}' if said else ''}.")


def explain(error: Exception) -> str:
    """The innermost reason, in the words of the system."""
    while isinstance(error.__cause__ or error.__context__, Exception):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).rstrip(".") or type(error).__name__


_shared: ssl.SSLContext | None = None


def shared_trust() -> ssl.SSLContext:
    """The certificates that this machine believes; loaded once, as that takes longer than many questions."""
    global _shared  # noqa: PLW0603
    if _shared is None:
        _shared = ssl.create_default_context()
    return _shared


def trust_from(ca_file: str) -> ssl.SSLContext:
    """Only certificates signed by those in the file. Raises UsageError when it holds none."""
    try:
        return ssl.create_default_context(cafile=str(Path(ca_file).expanduser()))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the certificates in {ca_file} cannot be read: {reason}.") from error
