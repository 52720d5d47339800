"""Text from outside as a chat may show it. Names of hosts, jobs and people come from anywhere: none of them may call a
whole channel, look like a link that it is not, or be taken for HTML. Pure.

What a chat acts upon is taken apart with a space of no width. A person reads the same; the hundred services that
Apprise knows differ in their marks, but none of them finds one in it.
"""

import re

from gpudeck.model.printable import clean

_GAP = "\u200b"
_MARKS = re.compile(
    r"""
      (?<=@)(?=[\w&!])        # @everyone, @here, <@U012>, <@&role>
    | (?<=<)(?=[^\s=])        # <!channel>, <https://…|bank>, <b>
    | (?<=\])(?=\()           # [bank](https://…)
    | (?<=\])(?=\[)           # [bank][1]
    | (?<=:)(?=//)            # https://…
    | (?<=\bwww)(?=\.)        # www.…
    | (?<=\bmailto)(?=:)
    """,
    re.VERBOSE | re.IGNORECASE,
)


def for_chat(text: str) -> str:
    """What no chat acts upon."""
    return _MARKS.sub(_GAP, clean(text))


def for_slack(text: str) -> str:
    """The same for what is sent to Slack as it is: three characters have to be written in another way."""
    return for_chat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
