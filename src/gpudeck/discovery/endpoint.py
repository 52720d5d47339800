"""A server that is asked for hosts: with the token that it wants to see and the certificates that are believed."""

import asyncio
from collections.abc import Callable, Mapping

from gpudeck.agent.push import read_token
from gpudeck.discovery.watched import find_path
from gpudeck.fetch import Answer, Fetcher, trust_from
from gpudeck.model.errors import Refused, UsageError

DEADLINE = 10.0
"""For one question that the server is to answer at once, in seconds."""
BYTES_AT_MOST = 48 * 1024 * 1024
"""Consul tells some 2 kB about each host."""


class Endpoint:
    """Asks one server. Files are read when they are needed: a token that is changed counts from the next question on.

    Raises Temporary and Refused only. `close` when done; it may be used again then.
    """

    def __init__(
        self, token_file: str | None, ca_file: str | None, authorize: Callable[[str], Mapping[str, str]]
    ) -> None:
        """`authorize` makes the header that shows the token."""
        self._token_file = token_file
        self._ca_file = ca_file
        self._authorize = authorize
        self._fetcher: Fetcher | None = None

    async def get(self, url: str, deadline: float = DEADLINE) -> Answer:
        try:
            if self._fetcher is None:
                trust = await asyncio.to_thread(trust_from, self._ca_file) if self._ca_file else None
                self._fetcher = Fetcher(deadline=DEADLINE, bytes_at_most=BYTES_AT_MOST, trust=trust)
            return await self._fetcher.get(url, await asyncio.to_thread(self._headers), deadline)
        except UsageError as error:
            raise Refused(error.message, error.hint) from error
        except Refused as error:
            hint = error.hint if self._token_file else "Set token_file, if it wants to see a token."
            raise Refused(error.message, hint) from error

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
            self._fetcher = None

    def _headers(self) -> Mapping[str, str]:
        if self._token_file is None:
            return {}
        token = read_token(find_path(self._token_file), "Check token_file.", "Put the token there.")
        return self._authorize(token)
