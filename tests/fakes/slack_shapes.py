"""What Slack demands of calls and of Block Kit, as its documents say it: each mistake in words."""

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

REQUIRED: dict[str, tuple[str, ...]] = {
    "auth.test": (),
    "apps.connections.open": (),
    "chat.postMessage": ("channel", "text"),
    "chat.postEphemeral": ("channel", "user", "text"),
    "conversations.open": ("users",),
    "users.info": ("user",),
    "files.getUploadURLExternal": ("filename", "length"),
    "files.completeUploadExternal": ("files",),
}
_TYPES = {"section", "context", "actions", "header", "divider"}
_BARE = re.compile(r"&(?!amp;|lt;|gt;)")


def check_call(method: str, arguments: Json) -> Iterator[str]:
    if method not in REQUIRED:
        yield f"there is no method {method} here"
        return
    for name in REQUIRED[method]:
        if arguments.get(name) in {None, ""}:
            yield f"{method} lacks {name}"
    if len(str(arguments.get("text", ""))) > 4000:
        yield f"{method}: the text is longer than 4000 characters"
    if "blocks" in arguments:
        yield from check_blocks(arguments["blocks"])


def check_blocks(blocks: Any) -> Iterator[str]:
    if not isinstance(blocks, list) or not 1 <= len(blocks) <= 50:
        yield "a message has 1 to 50 blocks"
        return
    for block in blocks:
        yield from _check_block(block)


def check_markup(text: str) -> Iterator[str]:
    """Nothing but dates may stand in angle brackets, and every other sign is escaped."""
    rest = re.sub(r"<!date\^\d+\^[^<>|]+\|[^<>|]+>", "", text)
    if "<" in rest or ">" in rest:
        yield f"a mention or a link: {rest[:80]!r}"
    if _BARE.search(rest):
        yield f"an & that is not escaped: {rest[:80]!r}"


def _check_block(block: Json) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _TYPES:
        yield f"there is no block {kind}"
    elif kind == "section":
        yield from _check_text(block["text"], 3000)
    elif kind == "context":
        if not 1 <= len(block["elements"]) <= 10:
            yield "a context has 1 to 10 elements"
        for element in block["elements"]:
            yield from _check_text(element, 3000)
    elif kind == "actions":
        if not 1 <= len(block["elements"]) <= 25:
            yield "actions have 1 to 25 elements"
        for element in block["elements"]:
            yield from _check_button(element)


def _check_text(text: Json, most: int) -> Iterator[str]:
    if text.get("type") not in {"mrkdwn", "plain_text"}:
        yield f"there is no text {text.get('type')}"
    if not 1 <= len(text.get("text", "")) <= most:
        yield f"a text has 1 to {most} characters, not {len(text.get('text', ''))}"
    if text.get("type") == "mrkdwn":
        yield from check_markup(text["text"])
        if text.get("verbatim") is not True:
            yield "names in this text may become links"


def _check_button(button: Json) -> Iterator[str]:
    if button.get("type") != "button":
        yield f"there is no element {button.get('type')}"
        return
    yield from _check_text(button["text"], 75)
    if not 1 <= len(button["action_id"]) <= 255:
        yield "an action_id has 1 to 255 characters"
