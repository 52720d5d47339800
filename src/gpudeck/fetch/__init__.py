"""HTTP as the hub asks others: with a deadline, a bound on the answer, and no trust in what it says."""

from gpudeck.fetch.addresses import AddressGuard, look_up
from gpudeck.fetch.fetcher import (
    Answer,
    Fetcher,
    TokenRefused,
    content_kind,
    explain,
    log_beginning,
    shared_trust,
    show_url,
    trust_from,
)

__all__ = [
    "AddressGuard",
    "Answer",
    "Fetcher",
    "TokenRefused",
    "content_kind",
    "explain",
    "log_beginning",
    "look_up",
    "shared_trust",
    "show_url",
    "trust_from",
]
