"""The tokens that count, by their hashes, in a file: agents and scripts go on when a hub starts without its
database."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpudeck.agent.push import read_token
from gpudeck.app.local_copy import LocalCopy
from gpudeck.auth.caller import Role
from gpudeck.auth.import_files import ADMIN_NAME, AGENTS_NAME
from gpudeck.auth.parts import Auth
from gpudeck.auth.secret import hash_secret
from gpudeck.auth.tokens import Token

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
        self._files: tuple[tuple[Path, str, Role], ...] = (
            (agent_file, AGENTS_NAME, "agent"),
            (data_dir / "admin.token", ADMIN_NAME, "admin"),
        )
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
        """Without a copy the tokens in the hub's own files count; with one that is too old, those of them that counted
        then. Whether there are accounts is taken to be so: nobody is let in for sitting at the machine."""
        auth, copy = self._auth, self._copy.read()
        of_files = dict(self._read_files())
        known = of_files if copy is None else copy.tokens
        if copy is not None and not 0 <= auth.tokens.now() - copy.at < LONGEST:
            known = {digest: token for digest, token in known.items() if digest in of_files}
        tokens = {bytes.fromhex(digest): token for digest, token in known.items()}
        auth.adopt(tokens, has_accounts=True if copy is None else copy.has_accounts)

    def _read_files(self) -> Iterable[tuple[str, Token]]:
        for file, name, role in self._files:
            secret = read_token(file, if_unreadable="Check its owner and its mode.", if_none="Delete it.")
            yield hash_secret(secret), Token(0, name, role, None, None, 0.0, "", None, None, None)
