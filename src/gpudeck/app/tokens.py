"""The agent token of a hub: made once, readable by its owner alone, compared in constant time."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from gpudeck.agent.push import read_token
from gpudeck.model.errors import UsageError


def ensure_token(file: Path) -> str:
    """The token in the file, which is made with a new one if it is not there. Raises UsageError."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(file)
    except OSError as error:
        raise UsageError(f"the token file {file} cannot be made: {error.strerror}.", "Check token_file.") from error
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
    return read_token(file)


def token_check(token: str) -> Callable[[str], bool]:
    """A function that says whether a text is that token; it keeps only the token's hash."""
    wanted = hashlib.sha256(token.encode()).digest()

    def may_ingest(candidate: str) -> bool:
        return hmac.compare_digest(hashlib.sha256(candidate.encode()).digest(), wanted)

    return may_ingest
