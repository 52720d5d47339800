"""Text between Slack and us. Everything that comes from outside goes through `escape` on its way out: names of hosts,
people and models, notes, what somebody typed. Pure."""

import re

from gpudeck.model.printable import clean

LONGEST = 120
"""Characters of one name. Longer ones are cut: a phone shows forty on a line."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "ˋ"})
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " "})
_LINK = re.compile(r"<(?!@)[^<>|]*\|([^<>]*)>|<(?!@)(?:mailto:|https?://)?([^<>|]*)>")
_DASH = re.compile(r"(?<!\S)[—–](?=[a-z])")
"""What a phone makes of two hyphens."""


def escape(text: str, longest: int = LONGEST) -> str:
    """Text that Slack shows as it is: no mention, no link, no markup that begins or ends within it, on one line.

    A backtick, for which Slack has no escape, becomes a letter that looks like one.
    """
    shown = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return clean(shown).translate(_ENTITIES)


def unescape(text: str) -> str:
    """What somebody typed, out of what Slack sends: links as their text, entities as characters, and the quotes and
    dashes that phones put in as those that were meant. Mentions of people stay: <@U012AB3CD>."""
    plain = _LINK.sub(lambda found: found[1] if found[1] is not None else found[2], text)
    plain = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return _DASH.sub("--", plain.translate(_QUOTES))
