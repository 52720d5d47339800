"""Makes a command line fit to leave the machine: secrets hidden, control characters gone, length bounded.

Command lines hold passwords, tokens and keys. What looks like one is replaced before anything else sees it. In doubt a
value is hidden: a hidden batch size costs a glance, a shown token costs an account.
"""

import re
from collections.abc import Iterable
from typing import Literal

from gpudeck.collectors.secret_flags import ATTACHED, PATTERNS, SEPARATE, VALUE, find_password
from gpudeck.collectors.secret_names import looks_secret

__all__ = ["HIDDEN", "LENGTH", "Commands", "clean", "looks_secret", "redact", "show"]

Commands = Literal["full", "redacted", "name", "none"]
"""How much of a command line leaves the machine."""

HIDDEN = "***"
LENGTH = 300
"""Characters of a command line that are kept."""

_FLAG = re.compile(r"-{1,2}([A-Za-z][\w.-]*)")
_ASSIGNED = re.compile(r"([-+]*+[\w.-]++)[=:](?!//)(?=.)", re.DOTALL)
# A name and what parts it from its value, wherever it stands in a longer text (`sh -c`, JSON, a process title).
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<dashes>-{0,2})(?P<name>\w[\w.-]*+)(?P<parting>\\?["']?\]?\s*+[=:]\s*+|[\s"',)\]]++)"""
)
# Behind a bare name only what nobody would type: `aws configure set aws_secret_access_key <40 letters>`.
_LONG = re.compile(r"(?=[A-Za-z+/_=-]*[0-9])[A-Za-z0-9+/_=-]{20,}")
# Behind `login` also past what is said before it: `wandb login --relogin <40 digits>`.
_LOGIN = "login"
_AFTER_LOGIN = re.compile(r"""(?<![^\s"'(])""" + _LONG.pattern)
_END_OF_COMMAND = re.compile(r"[|;&]")
_LOGIN_LENGTH = 200
_HIDDEN_ALREADY = re.compile(r"""\*{3}(?=["'\s]|$)""")
_PLAIN_VALUES = {"true", "false", "none", "null", "yes", "no", "on", "off"}


_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL), HIDDEN),
    # A token may stand where the user does: `https://<token>:x-oauth-basic@host`.
    (re.compile(r"://[^\s/@:]{20,}+:\S*@"), f"://{HIDDEN}@"),
    # A password may itself hold `@` or `/`: everything up to the last `@` of the word goes.
    (re.compile(r"(://[^\s/@:]*+:)\S*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"://[^\s/@:]++@"), f"://{HIDDEN}@"),
    # A header goes up to the quote that ends it. Where it was an argument of its own it is hidden already.
    (
        re.compile(r"""(?i)(\b(?:authorization|cookie)\\?["']?\s*+[=:]\s*+)(?!\*{3}(?:\s|$))(?:\\?["'])?[^"'\\]*+"""),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)(\bbearer\s+)[^\s\"']+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i:(\bbasic\s+))(?=[a-z]*[A-Z0-9+/=])[A-Za-z0-9+/_-]{6,}={0,2}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|/bot(?=\d{6,}:))\S+"), rf"\1{HIDDEN}"),
    # Makers whose tokens have an opening of their own. `hf_` and the like also open ordinary names (`hf_model_name`).
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:hf|npm|gsk|r8)_(?=[a-z]*[0-9A-Z]|[a-z]{20})\w{8,}"
            r"|(?:sk|pypi)-(?=[\w-]*[0-9A-Z]|[\w-]{30})[\w-]{8,}"
            r"|gh[pousr]_\w{8,}|github_pat_\w{8,}|gl(?:pat|dt|rt|oas)-[\w-]{8,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}"
            r"|tskey-[\w-]{8,}|(?:tvly|pplx|xai)-[\w-]{20,}|(?:glsa|lin_api|lsv2|pcsk|shpat|whsec)_\w{20,}"
            r"|hv[bs]\.[\w-]{20,}|dapi[0-9a-f]{32}|ATATT[\w=-]{20,}"
            r"|nvapi-[\w-]{8,}|dckr_pat_[\w-]{8,}|[rs]k_(?:live|test)_\w{8,}|dop_v1_\w{8,}|SG\.[\w-]{8,}\.[\w-]+"
            r"|ya29\.[\w-]{8,}|AGE-SECRET-KEY-\w{8,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{20,}"
            r"|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
            # Our own, whose second word is the role.
            r"|gd_(?:agent|calendar|viewer|user|admin)_[\w-]{8,})"
        ),
        HIDDEN,
    ),
    *((pattern, rf"\1{HIDDEN}") for pattern in PATTERNS),
)


def show(arguments: Iterable[str], name: str, commands: Commands) -> str | None:
    """What is told of a command line; None where nothing is. `name` is the program's, and all there is of zombies.

    Also with `full` it is one line of printable text of at most LENGTH characters.
    """
    if commands == "none":
        return None
    if commands == "name":
        return clean(name)
    text = redact(arguments) if commands == "redacted" else _cut(clean(" ".join(arguments)))
    # `ps` shows what has no command line the same way.
    return text or f"[{name}]"


def redact(arguments: Iterable[str]) -> str:
    """The command line as one line of printable text of at most LENGTH characters, without its secrets."""
    text = " ".join(_hide_arguments(clean(argument) for argument in arguments))
    for pattern, shown in _PATTERNS:
        text = pattern.sub(shown, text)
    return _cut(_hide_named(text))


def clean(text: str) -> str:
    """`text` without control and other invisible characters; line breaks and tabs become spaces."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c in "\t\r\n" else "" for c in text)


def _cut(text: str) -> str:
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"


def _hide_arguments(arguments: Iterable[str]) -> Iterable[str]:
    """Where argument ends and argument begins is known here, so values with spaces go as a whole."""
    before, program = "", ""
    for argument in arguments:
        if _announces_secret(before) and not argument.startswith("--"):
            yield _hide(argument)
        elif (start := find_password(before, argument, program)) is not None:
            yield argument[:start] + HIDDEN
        else:
            yield _hide_assignment(argument)
        name = argument.rpartition("/")[2]
        program = name if name in ATTACHED or name in SEPARATE else program
        before = argument


def _announces_secret(argument: str) -> bool:
    flag = _FLAG.fullmatch(argument)
    return flag is not None and looks_secret(flag[1])


def _hide_assignment(argument: str) -> str:
    """Also one within another: `--set=db.password=abc`."""
    end = 0
    while assigned := _ASSIGNED.match(argument, end):
        end = assigned.end()
        if looks_secret(assigned[1]):
            return argument[:end] + _hide(argument[end:])
    return argument


def _hide(value: str) -> str:
    """HIDDEN, but for what is a switch and no secret: `--use-auth-token true`."""
    return value if value.lower() in _PLAIN_VALUES else HIDDEN


def _hide_named(text: str) -> str:
    """Hides the values of secret names inside a text whose argument boundaries are not known."""
    shown: list[str] = []
    done = 0
    for named in _NAMED.finditer(text):
        value = _find_value(text, named) if named.start() >= done else None
        if value is not None and not _HIDDEN_ALREADY.match(text, value.start()):
            shown += text[done : value.start()], _hide(value[0])
            done = value.end()
    return "".join(shown) + text[done:]


def _find_value(text: str, named: "re.Match[str]") -> "re.Match[str] | None":
    """The secret that belongs to the name, if its name or its looks tell that it is one."""
    parting = named["parting"]
    if not looks_secret(named["name"]):
        return _find_login(text, named.end()) if named["name"] == _LOGIN else None
    if "=" in parting or ":" in parting:
        return VALUE.match(text, named.end())
    after_space = named.end() - len(parting.lstrip())
    if named["dashes"] and parting[0].isspace() and not text.startswith("--", after_space):
        return VALUE.match(text, after_space)
    return _LONG.match(text, named.end())


def _find_login(text: str, start: int) -> "re.Match[str] | None":
    end = _END_OF_COMMAND.search(text, start, start + _LOGIN_LENGTH)
    found = _AFTER_LOGIN.search(text, start, end.start() if end else start + _LOGIN_LENGTH)
    return _LONG.match(text, found.start()) if found else None
