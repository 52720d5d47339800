"""Random secrets: made once, shown once, kept as their hash."""

import hashlib
import secrets

LENGTH = 43
"""Characters of 256 random bits."""


def make_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """What is kept of it. Fast on purpose: nobody can try 2^256 of them. Takes any text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
