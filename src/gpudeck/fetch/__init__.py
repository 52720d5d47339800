"""HTTP as the hub asks others: with a deadline, a bound on the answer, and no trust in what it says."""

from gpudeck.fetch.addresses import AddressGuard, look_up
from gpudeck.fetch.fetcher import (
    Fetcher,
    HttpResponse,
    TokenRefused,
    content_kind,
    explain,
    log_beginning,
    shared_trust,
    trust_from,
)
from gpudeck.model.hub_url import show_url

__all__ = [
    "AddressGuard",
    "Fetcher",
    "HttpResponse",
    "TokenRefused",
    "content_kind",
    "explain",
    "log_beginning",
    "look_up",
    "shared_trust",
    "show_url",
    "trust_from",
]
