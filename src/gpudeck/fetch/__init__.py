"""HTTP as the hub asks others: with a deadline, a bound on the answer, and no trust in what it says."""

from gpudeck.fetch.fetcher import Answer, Fetcher, explain, shared_trust, trust_from

__all__ = ["Answer", "Fetcher", "explain", "shared_trust", "trust_from"]
