"""The tokens that count, by their hashes, in a file: agents and scripts go on when a hub starts without its
database."""

import logging
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpudeck.agent.push import read_token
from gpudeck.auth.local_copy import LocalCopy
from gpudeck.auth.parts import Auth
from gpudeck.auth.secret import hash_secret
from gpudeck.auth.tokens import Token

log = logging.getLogger(__name__)

FILE_NAME: Final = "tokens.json"
LONGEST: Final = 86_400.0
"""A token that was revoked elsewhere while this hub could not ask works for so long at most after a restart."""
_AGAIN_SECONDS: Final = 600.0


class KnownTokens(Struct, frozen=True):
    """`at` is when the database last said so, in Unix seconds. The SHA-256 of each secret is in hex."""

    at: float
    has_accounts: bool
    tokens: dict[str, Token]


class TokenCopy:
    """`keep` every few seconds while the hub runs; `use` at a start without the database."""

    def __init__(self, auth: Auth, data_dir: Path, agent_file: Path) -> None:
        self._auth = auth
        self._copy = LocalCopy(data_dir / FILE_NAME, KnownTokens)
        self._files = (agent_file, data_dir / "admin.token")
        self._written: dict[bytes, Token] | None = None
        self._written_at = 0.0

    async def keep(self) -> None:
        """Write what counts, where it is other than before, or was confirmed again since."""
        auth = self._auth
        at = auth.tokens.confirmed_at
        live = auth.tokens.live
        if at is None or (live is self._written and 0 <= at - self._written_at < _AGAIN_SECONDS):
            return
        self._written, self._written_at = live, at
        tokens = {digest.hex(): token for digest, token in live.items()}
        await self._copy.write(KnownTokens(at, auth.has_accounts, tokens))

    def use(self) -> None:
        """With a copy that is too old the tokens in the hub's own files count, if they counted then. Without one none
        does, as any may have been revoked, and there are taken to be accounts: nobody is let in for sitting at the
        machine."""
        auth, copy = self._auth, self._copy.read()
        if copy is None:
            log.warning("there is no copy of the tokens that count: all are refused until the database answers")
            auth.adopt({}, has_accounts=True)
            return
        known = copy.tokens
        if not 0 <= auth.tokens.now() - copy.at < LONGEST:
            of_files = {self._hash(file) for file in self._files}
            known = {digest: token for digest, token in known.items() if digest in of_files}
        auth.adopt({bytes.fromhex(digest): token for digest, token in known.items()}, has_accounts=copy.has_accounts)

    def _hash(self, file: Path) -> str:
        return hash_secret(read_token(file, if_unreadable="Check its owner and its mode.", if_none="Delete it."))
