"""Who may report as whom: the token of all agents, and one for each host that was added by name."""

import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.api.reports import Grant
from gpudeck.app.tokens import hash_token, replace_file, token_check
from gpudeck.model.errors import UsageError


class _KeptToken(Struct, frozen=True):
    host: str
    hash: str
    made_at: float


class AgentTokens:
    """Who may report: `shared`, the token of all agents, as any host; each host's own token as that host alone.

    Looking a hash up in a dictionary tells nobody anything: they cannot choose what their token's hash begins with.
    """

    def __init__(self, file: Path, shared: str) -> None:
        """Raises UsageError when the file is there and makes no sense."""
        self._file = file
        self._is_shared = token_check(shared)
        self._kept: dict[str, _KeptToken] = {kept.hash: kept for kept in _read_tokens(file)}

    def find_grant(self, candidate: str) -> Grant | None:
        if self._is_shared(candidate):
            return Grant()
        kept = self._kept.get(hash_token(candidate))
        return Grant(kept.host) if kept is not None else None

    def make(self, host: str, now: float) -> str:
        """A new token for that host, in place of the one it had. Raises OSError when it cannot be kept."""
        token = secrets.token_urlsafe(32)
        new = _KeptToken(host, hash_token(token), now)
        self._keep([*(kept for kept in self._kept.values() if kept.host != host), new])
        return token

    def revoke(self, host: str) -> None:
        """Raises OSError."""
        if any(kept.host == host for kept in self._kept.values()):
            self._keep([kept for kept in self._kept.values() if kept.host != host])

    def _keep(self, tokens: list[_KeptToken]) -> None:
        replace_file(self._file, msgspec.json.format(msgspec.json.encode(tokens)) + b"\n")
        self._kept = {kept.hash: kept for kept in tokens}


def _read_tokens(file: Path) -> list[_KeptToken]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_KeptToken])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"the hosts' tokens in {file} cannot be read: {error}.",
            "Mend the file, or delete it and add those hosts again.",
        ) from error
