"""What a service or a library said about a message it did not take, in words for people. Pure.

Libraries tell in their own words, with addresses and tokens among them: only what is known here is repeated.
"""

import re

from gpudeck.alerts.notifiers.order import SENT, Outcome

_HOST = Outcome("temporary", "the name of its host cannot be found.", "Check the host in the address, and the DNS.")
_REFUSES = Outcome("temporary", "its host refuses the connection.", "Check host and port; is the service running?")
_AWAY = Outcome("temporary", "its host cannot be reached.", "Check the network between the hub and that host.")
_SLOW = Outcome("temporary", "it does not answer in time.", "Check host and port; a firewall may swallow what is sent.")
_TRUST = Outcome("refused", "its certificate is not trusted.", "Check the host's name, or add `?verify=no`.")
_PLAIN = Outcome("refused", "it does not speak TLS there, or other TLS.", "Check the port and the kind of address.")
_TOKEN = Outcome("refused", "it refuses the token or the password.", "Make a new one and write it into the address.")
_GONE = Outcome("refused", "it does not know this address.", "It may have been deleted there: copy it anew.")
_RECIPIENT = Outcome("unreached", "it refuses the recipient.", "Check to whom it goes.")
_SENDER = Outcome("refused", "it refuses the sender.", "Check `from` in the address.")
_CONTENT = Outcome("refused", "it does not accept what it was sent.", "Check the kind of address.")
_CROWD = Outcome("temporary", "it takes no more messages for now.")
_TROUBLE = Outcome("temporary", "it has trouble of its own.")
_ELSEWHERE = Outcome("refused", "it sends on to another address.", "Write that one into the settings.")
_UNCLEAR = Outcome("temporary", "it did not take the message, and gave no reason.", "Check every part of the address.")

_SAID = (
    (r"invalid_auth|not_authed|token_revoked|token_expired|account_inactive|missing_scope|invalid_token", _TOKEN),
    (r"channel_not_found|user_not_found|is_archived|not_in_channel|no_team|invalid_user", _RECIPIENT),
    (r"ratelimited|rate_limited|too many requests", _CROWD),
    (r"smtpauthenticationerror|authentication (failed|error)|\(53[0-9],|auth extension not supported", _TOKEN),
    (r"smtprecipientsrefused|recipients? refused", _RECIPIENT),
    (r"smtpsenderrefused|sender refused", _SENDER),
    (r"\{'[^']*': \(5[0-9]{2},", _RECIPIENT),
    (r"\{'[^']*': \(4[0-9]{2},", _CROWD),
    (r"certificate.verify|certificate_verify|hostname mismatch|self.signed", _TRUST),
    (r"wrong_version_number|wrong version number|ssl: |sslerror|starttls extension not supported", _PLAIN),
    (r"nameresolution|getaddrinfo|name or service not known|failed to resolve|name resolution|no address assoc", _HOST),
    (r"connection refused|errno 111", _REFUSES),
    (r"timed out|timeout", _SLOW),
    (r"unreachable|no route to host|errno 113|errno 101", _AWAY),
    (r"connection (aborted|reset)|remote end closed|connection unexpectedly closed|errno 104", _TROUBLE),
)


def of_status(status: int) -> Outcome:
    """From the status of an HTTP answer."""
    if 200 <= status < 300:
        return SENT
    known = {401: _TOKEN, 403: _TOKEN, 404: _GONE, 405: _GONE, 410: _GONE, 408: _SLOW, 429: _CROWD}
    found = known.get(status)
    if found is None:
        found = _ELSEWHERE if status < 400 else _CONTENT if status < 500 else _TROUBLE
    return Outcome(found.kind, f"{found.words[:-1]} (HTTP {status}).", found.hint)


def of_words(said: str) -> Outcome:
    """From what a library said, which may be secret in part."""
    said = said.lower()
    if found := re.search(r"\berror=([1-5][0-9]{2})\b", said):
        return of_status(int(found[1]))
    return next((outcome for pattern, outcome in _SAID if re.search(pattern, said)), _UNCLEAR)


def unknown_address(scheme: str, *, is_known: bool) -> Outcome:
    """Where an address makes no sense at all."""
    if is_known:
        return Outcome("refused", f"the address {scheme}:// is not complete.", "Compare it with Apprise's documents.")
    return Outcome("refused", f"there is no kind of address {scheme}://.", "Apprise's documents list those there are.")
