"""Makes a command line fit to leave the machine: secrets hidden, control characters gone, length bounded.

Command lines hold passwords, tokens and keys. What looks like one is replaced before anything else sees it. In doubt a
value is hidden: a hidden batch size costs a glance, a shown token costs an account.
"""

import re
from collections.abc import Iterable
from typing import Literal

Commands = Literal["full", "redacted", "name", "none"]
"""How much of a command line leaves the machine."""

HIDDEN = "***"
LENGTH = 300
"""Characters of a command line that are kept."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_ENDINGS = ("apikey", "credential", "credentials", "passphrase", "passwd", "password", "secret", "token")
_SECRET_LAST_WORDS = {
    *("auth", "authorization", "cookie", "jwt", "key", "pass", "pwd", "pw", "secrets", "sig", "signature"),
}
_SECRET_PAIRS = ("apikey", "accesskey", "secretkey", "privatekey", "accesstoken", "apitoken", "authtoken", "authkey")
# `--token-file` names a place and `--token-dim` a size: neither is a secret, both are worth reading.
_HARMLESS_LAST_WORDS = {
    *("budget", "count", "dim", "dims", "idx", "index", "len", "length", "limit", "rate", "size", "type"),
    *("dir", "directory", "file", "folder", "name", "path", "stdin"),
}

_FLAG = re.compile(r"-{1,2}([A-Za-z][\w.-]*)")
_ASSIGNMENT = re.compile(r"([-+]*[\w.-]+?)([=:])(?!//).+", re.DOTALL)
# A name and what parts it from its value, wherever it stands in a longer text (`sh -c`, JSON, a process title).
_NAMED = re.compile(r"""(?<![\w.-])(?P<dashes>-{0,2})(?P<name>\w[\w.-]*+)(?P<parting>["']?\s*+[=:]\s*+|\s++)""")
_VALUE = re.compile(r"""(?:"(?:\\.|[^"\\])*+"?|'[^']*+'?|\\.|[^\s"'])++""", re.DOTALL)

_KNOWN_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,}"
    r"|nvapi-[\w-]{8,}|npm_\w{8,}|pypi-[\w-]{8,}|dckr_pat_[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?)"
)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL), HIDDEN),
    # A password may itself hold `@` or `/`: everything up to the last `@` of the word goes.
    (re.compile(r"(://[^\s/@:]*+:)\S*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"://[^\s/@:]++@"), f"://{HIDDEN}@"),
    (re.compile(r"""(?i)(\bauthorization["']?\s*[=:]\s*["']?)(?:\w+\s+)?\S+"""), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)\S+"), rf"\1{HIDDEN}"),
    (_KNOWN_TOKENS, HIDDEN),
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


def _cut(text: str) -> str:
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"


def clean(text: str) -> str:
    """`text` without control and other invisible characters; line breaks and tabs become spaces."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " if c in "\t\r\n" else "" for c in text)


def looks_secret(name: str) -> bool:
    """Whether a value called `name` is one to hide: `HF_TOKEN`, `apiKey`, `--db.password`; not `--max-tokens`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return False
    joined = "".join(words)
    return (
        words[-1] in _SECRET_LAST_WORDS
        or any(word.endswith(_SECRET_ENDINGS) for word in words)
        or any(pair in joined for pair in _SECRET_PAIRS)
    )


def _hide_arguments(arguments: Iterable[str]) -> Iterable[str]:
    """Where argument ends and argument begins is known here, so values with spaces go as a whole."""
    before = ""
    for argument in arguments:
        if _announces_secret(before) and not argument.startswith("--"):
            shown = HIDDEN
        elif before in {"-u", "--user"} and ":" in argument:
            shown = argument.partition(":")[0] + ":" + HIDDEN
        else:
            shown = _hide_assignment(argument)
        yield shown
        before = argument


def _announces_secret(argument: str) -> bool:
    flag = _FLAG.fullmatch(argument)
    return flag is not None and looks_secret(flag[1])


def _hide_assignment(argument: str) -> str:
    assignment = _ASSIGNMENT.fullmatch(argument)
    if assignment is None or not looks_secret(assignment[1]):
        return argument
    return assignment[1] + assignment[2] + HIDDEN


def _hide_named(text: str) -> str:
    """Hides the values of secret names inside a text whose argument boundaries are not known."""
    shown: list[str] = []
    done = 0
    for named in _NAMED.finditer(text):
        if named.start() < done or not looks_secret(named["name"]):
            continue
        if named["parting"].isspace() and (not named["dashes"] or text.startswith("--", named.end())):
            continue
        value = _VALUE.match(text, named.end())
        if value is not None:
            shown += text[done : named.end()], HIDDEN
            done = value.end()
    return "".join(shown) + text[done:]
