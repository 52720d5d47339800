"""HTTP as the hub asks others: with a deadline, a bound on the answer, and no trust in what it says."""

from gpudeck.fetch.fetcher import Answer, Fetcher, explain, shared_trust, show_url, trust_from

__all__ = ["Answer", "Fetcher", "explain", "shared_trust", "show_url", "trust_from"]
