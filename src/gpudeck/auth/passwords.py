"""Passwords and secrets: what a password may be, argon2id hashes, and random secrets kept as their hash.

Checking the password of an unknown account takes as long as checking a known one.
"""

import asyncio
import hashlib
import logging
import secrets
import unicodedata
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from gpudeck.model.errors import UsageError

SHORTEST = 10
LONGEST = 1024
FEWEST_DIFFERENT = 4
AT_ONCE = 2
"""Each takes 64 MiB and all it can get of several cores for some hundredths of a second."""

_HINT = f"It needs {SHORTEST} to {LONGEST} characters; four random words are a good one."

log = logging.getLogger(__name__)
_T = TypeVar("_T")
LENGTH = 43
"""Characters of 256 random bits."""


class Passwords:
    """Hashes and compares, in threads of its own: no more than two at once, also when a caller stops waiting.

    The same letters count as the same password however a keyboard composes them.
    """

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="password")
        self._placeholder = _hash_of_nothing(self._hasher)

    def check(self, password: str, name: str) -> None:
        """Raises UsageError when the account of that name cannot have that password."""
        if len(password) < SHORTEST:
            raise UsageError(f"the password has fewer than {SHORTEST} characters.", _HINT)
        if len(password) > LONGEST:
            raise UsageError(f"the password has more than {LONGEST} characters.", _HINT)
        if password.casefold() == name.casefold():
            raise UsageError("the password is the account's name.", _HINT)
        if any(unicodedata.category(character) == "Cc" for character in password):
            raise UsageError("the password holds control characters, which most forms do not take.", _HINT)
        if len(set(password)) < FEWEST_DIFFERENT:
            raise UsageError(f"the password has fewer than {FEWEST_DIFFERENT} different characters.", _HINT)
        if _prepare(password) is None:
            raise UsageError("the password holds characters that cannot be stored.", _HINT)

    async def hash(self, password: str) -> str:
        """What to keep of a password that `check` let pass. Raises UsageError for what cannot be one."""
        prepared = _prepare(password)
        if prepared is None:
            raise UsageError("the password is too long, or holds characters that cannot be stored.", _HINT)
        return await self._run(lambda: self._hasher.hash(prepared))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether it is that password. It never is where there is no hash, and takes as long to say so."""
        prepared = _prepare(password)
        if password_hash is None or prepared is None:
            await self.waste_time()
            return False
        return await self._run(lambda: self._matches(password_hash, prepared))

    async def waste_time(self) -> None:
        """As much work as comparing a password, for names that do not exist."""
        await self._run(lambda: self._matches(self._placeholder, b""))

    def is_outdated(self, password_hash: str) -> bool:
        """Whether it was made with other parameters than new ones are: it should be made anew at the next chance."""
        return self._hasher.check_needs_rehash(password_hash)

    def _matches(self, password_hash: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except VerifyMismatchError:
            return False
        except (InvalidHashError, VerificationError) as error:
            log.warning("a password's hash in the database cannot be used: %s", type(error).__name__)
            return False

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _prepare(password: str) -> bytes | None:
    """The bytes that are hashed; None for text that is longer than any password, or that is no text."""
    if len(password) > LONGEST:
        return None
    try:
        return unicodedata.normalize("NFC", password).encode()
    except UnicodeEncodeError:
        return None


def _hash_of_nothing(hasher: PasswordHasher) -> str:
    """A hash of the usual form and cost that no password has: both of its halves are random."""
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, tag = (
        b64encode(secrets.token_bytes(size)).rstrip(b"=").decode() for size in (hasher.salt_len, hasher.hash_len)
    )
    return f"$argon2id$v=19${cost}${salt}${tag}"


def make_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """What is kept of it. Fast on purpose: 2^256 of them cannot be tried. Takes any text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
