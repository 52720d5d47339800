"""What the bot says about itself. Pure."""

from gpudeck.chat.blocks import Answer, say

_HELP = (
    "*What I answer* (in a direct message, to a mention, to `/gpu`)",
    "• `free`  what can be used now · `free h100`  · `free 2 40G same-host`",
    "• `gpu07`  one host · `gpu07 detail` · `hosts`  all hosts · `all`  all GPUs · `all down`  those that fit",
    "• `who gpu07` or `who gpu07:3`  who is on it · `where ada`  where somebody is · `users`  everybody",
    "• `alerts`  what is wrong · `alerts gpu07` · `where`  the hub itself",
    "• `all_cmd`  all GPUs as a table · `all_detail`  everything, as curl shows it",
    "• `book gpu07:0,1 for 4h` · `book 2 h100 for 1d from tomorrow 9:00 note a paper`",
    "• `bookings`, `bookings mine` · `release 12`",
    "• `watch 2 h100 40G`  tells you when they are free · `watches` · `unwatch 3`",
    "• `report`  who used how much · `report host 7d`",
    "Words mean what they mean in the page's search: `free`, `busy`, `held`, `&gt;40G`, `user:ada`, `-down` …",
)


def answer_help(hint: str = "") -> Answer:
    """`hint` stands above it, escaped already."""
    return say(*([hint] if hint else []), *_HELP)
