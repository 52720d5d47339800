"""What docs/slack.md has people paste is what the bot needs."""

import re
from pathlib import Path
from typing import Any

import yaml

from fakes.slack_shapes import REQUIRED

DOCUMENT = Path(__file__).parents[2] / "docs" / "slack.md"
SCOPES = {
    "chat.postMessage": "chat:write",
    "chat.postEphemeral": "chat:write",
    "conversations.open": "im:write",
    "users.info": "users:read",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    # These two need none of the bot's.
    "auth.test": None,
    "apps.connections.open": None,
}
EVENTS = {
    "app_mention": "app_mentions:read",
    "message.im": "im:history",
    "message.channels": "channels:history",
    "message.groups": "groups:history",
}


def manifest() -> dict[str, Any]:
    block = re.findall(r"```yaml[^\n]*\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def test_the_manifest_asks_for_every_scope_that_is_used_and_for_no_other() -> None:
    assert SCOPES.keys() == REQUIRED.keys()
    used = {scope for scope in SCOPES.values() if scope} | set(EVENTS.values()) | {"commands"}
    assert set(manifest()["oauth_config"]["scopes"]["bot"]) == used


def test_the_manifest_subscribes_to_what_the_bot_listens_to() -> None:
    settings = manifest()["settings"]
    assert set(settings["event_subscriptions"]["bot_events"]) == EVENTS.keys()
    assert settings["socket_mode_enabled"] is True
    assert settings["interactivity"]["is_enabled"] is True
    assert manifest()["features"]["app_home"]["messages_tab_read_only_enabled"] is False
