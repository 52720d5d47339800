"""What is wrong is told to people, and no token and no ticket with it."""

import pytest

from fakes.slack import APP_TOKEN, BOT_TOKEN
from gpudeck.chat.slack import mask, refuse, unreachable
from gpudeck.model.errors import Refused, Temporary


@pytest.mark.parametrize(
    "secret", [APP_TOKEN, BOT_TOKEN, "xoxp-1-2", "wss://wss-primary.slack.com/link/?ticket=1a2b", "?ticket=1a2b"]
)
def test_secrets_are_taken_out_wherever_they_stand(secret: str) -> None:
    shown = mask(f"could not open {secret} here")
    assert shown.startswith("could not open …")
    assert "1a2b" not in shown
    assert "secret" not in shown
    assert "1-2" not in shown


def test_an_error_of_the_network_names_the_place_and_no_secret() -> None:
    error = unreachable(OSError(f"refused {BOT_TOKEN} at wss://x/?ticket=1a2b"), "slack.com")
    assert error.message == "Slack cannot be reached at slack.com: refused … at …."
    assert unreachable(TimeoutError(), "slack.com").message == "Slack cannot be reached at slack.com: TimeoutError."


def test_what_a_person_has_to_act_upon_is_told_apart_from_what_passes() -> None:
    assert isinstance(refuse("token_revoked", "", "bot_token"), Refused)
    assert isinstance(refuse("missing_scope", "chat:write", "bot_token"), Refused)
    assert isinstance(refuse("internal_error", "", "bot_token"), Temporary)
    assert "xapp-" in refuse("invalid_auth", "", "app_token").hint
