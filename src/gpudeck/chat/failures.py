"""What went wrong with Slack, in words for the hub's admins, and never with a secret."""

import re
from typing import Final

from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.settings import where_to_find
from gpudeck.model.errors import PluginError, Refused, Temporary

_SECRETS: Final = re.compile(r"x(?:ox[a-z]|app)-[\w-]+|wss?://\S+|[?&](?:ticket|token)=\S+")
_TOKEN_CODES: Final = frozenset(
    (
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "not_allowed_token_type",
        "access_denied",
        "org_login_required",
    )
)
_PERSON_CODES: Final = frozenset(
    ("user_not_found", "user_not_visible", "user_disabled", "cannot_dm_bot", "channel_not_found", "is_archived")
)
_SETTINGS_CODES: Final = frozenset(("no_permission", "missing_scope", "forbidden_team", "team_access_not_granted"))


def mask(text: str) -> str:
    """Without tokens, and without the addresses of sockets, which carry a ticket."""
    return _SECRETS.sub("…", text)


def refuse(code: str, needed: str, token: str) -> PluginError:
    """What Slack's error `code` means for a call that was made with that `token` (`app_token` or `bot_token`).

    `needed` are the scopes that Slack names as missing, if any.
    """
    if code in _TOKEN_CODES:
        return Refused(
            f"Slack refuses the bot's {token} ({code}).", f"Put a valid one into chat.slack: {where_to_find(token)}."
        )
    if code in _SETTINGS_CODES:
        scopes = f" {mask(needed)[:200]}" if needed else ""
        return Refused(
            f"Slack says that the bot lacks a permission ({code}{scopes}).",
            "Add it in the app's settings, and install the app again.",
        )
    if code in _PERSON_CODES:
        return Unreached(f"Slack does not let the bot write to this person ({code}).", "Check their ID in `people`.")
    return Temporary(f"Slack answers {mask(code)[:60]}.", "It is tried again.")


def unreachable(error: Exception, host: str) -> Temporary:
    reason = mask(str(error))[:200] or type(error).__name__
    return Temporary(f"Slack cannot be reached at {host}: {reason}.", "It is tried again.")
