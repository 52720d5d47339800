"""Prepares a command line for leaving the machine: secrets hidden, control characters removed, length bounded.

In doubt a value is hidden. A secret is known by its name (`HF_TOKEN`, `--db.password`, not `--eos_token`), by its form,
or by its program's flags (`mysql -pabc`), which are looked for among arguments and within longer text (`sh -c`).
"""

import sys
from collections.abc import Iterable
from typing import Literal

if sys.version_info >= (3, 11):
    import re
else:
    import regex as re  # possessive quantifiers: a command line that was made to takes no longer than others

# `login` is whatever logs in: docker, podman, helm registry, az, oc.
_ATTACHED = {
    "-p": (
        *("mysql", "mysqladmin", "mysqldump", "mysqlimport", "mysqlsh", "mariadb", "mariadb-admin", "mariadb-dump"),
        *("7z", "7za", "7zr", "7zz", "rar", "unrar"),
    )
}
_SEPARATE = {
    "-a": ("redis-cli", "http", "https"),
    "-b": ("curl",),
    "-p": ("login", "sshpass", "mongo", "mongodump", "mongorestore", "mongosh"),
    "-P": ("sqlcmd", "unzip", "zip"),
    "-w": ("ldapadd", "ldapmodify", "ldapsearch"),
}
ATTACHED = {program: flag for flag, programs in _ATTACHED.items() for program in programs}
"""The flag by program, where the password follows without a space."""
SEPARATE = {program: flag for flag, programs in _SEPARATE.items() for program in programs}
"""The flag by program, where it may also be the next argument."""

_VALUE = r"""(?:"(?:\\.|[^"\\])*+"?|'[^']*+'?|\\.|[^\s"'])++"""
VALUE = re.compile(_VALUE, re.DOTALL)
"""A word as a shell reads it, quotes and all."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_ENDINGS = ("apikey", "credential", "credentials", "passphrase", "passwd", "password", "secret", "token")
_SECRET_LAST_WORDS = {
    *("auth", "authorization", "cookie", "cred", "creds", "jwt", "key", "otp", "pass", "pat", "pwd", "pw", "secrets"),
    *("sig", "signature"),
    # One word where others write two. Not all that end so: a `lowpass` is a filter.
    *("dbpass", "keypass", "requirepass", "storepass", "userpass"),
}
_SECRET_PAIRS = ("apikey", "accesskey", "secretkey", "privatekey", "accesstoken", "apitoken", "authtoken", "authkey")
# `--token-file` names a place and `--token-dim` a size: neither is a secret, both are worth reading.
_HARMLESS_LAST_WORDS = {
    *("budget", "count", "dim", "dims", "idx", "index", "len", "length", "limit", "loss", "rate", "size", "type"),
    *("dir", "directory", "file", "folder", "name", "path", "stdin"),
}
# `--eos_token`, `data.prompt_key`: training programs call a piece of text a token, and a column of data a key.
_ORDINARY_BEFORE_LAST = {
    *("audio", "bos", "class", "cls", "end", "eos", "image", "mask", "pad", "per", "sep", "special", "start", "stop"),
    *("unk", "video"),
    *("answer", "caption", "chosen", "column", "content", "data", "feature", "fn", "group", "input", "json", "label"),
    *("loss", "messages", "metric", "monitor", "output", "partition", "primary", "prompt", "public", "question"),
    *("rejected", "response", "reward", "solution", "sort", "target", "text"),
}
Commands = Literal["full", "redacted", "name", "none"]
"""How much of a command line leaves the machine."""

HIDDEN = "***"
LENGTH = 300

_FLAG = re.compile(r"-{1,2}([A-Za-z][\w.-]*)")
_ASSIGNED = re.compile(r"([-+]*+[\w.-]++)[=:](?!//)(?=.)", re.DOTALL)
# A name and what parts it from its value, wherever it stands in a longer text (`sh -c`, JSON, a process title).
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<dashes>-{0,2})(?P<name>\w[\w.-]*+)(?P<parting>\\?["']?\]?\s*+[=:]\s*+|[\s"',)\]]++)"""
)
# Behind a bare name only long random text: `aws configure set aws_secret_access_key <40 letters>`.
_LONG = re.compile(r"(?=[A-Za-z+/_=-]*[0-9])[A-Za-z0-9+/_=-]{20,}")
# Behind `login` also after other arguments: `wandb login --relogin <40 digits>`.
_LOGIN = "login"
_AFTER_LOGIN = re.compile(r"""(?<![^\s"'(])""" + _LONG.pattern)
_END_OF_COMMAND = re.compile(r"[|;&]")
_LOGIN_LENGTH = 200
_HIDDEN_ALREADY = re.compile(r"""\*{3}(?=["'\s]|$)""")
_PLAIN_VALUES = {"true", "false", "none", "null", "yes", "no", "on", "off"}


def _make_pattern(flags: dict[str, str], parting: str) -> "re.Pattern[str]":
    programs = "|".join(f"{re.escape(program)}(?=\\s)(?:[^|;&]{{0,200}}?\\s){flag}" for program, flag in flags.items())
    return re.compile(rf"""((?<![\w.-])(?:{programs}){parting})(?=\S)(?!-){_VALUE}""", re.DOTALL)


_USER = r"(?<![\w.-])(?:--(?:proxy-)?user(?:=|\s++)|-[uU]\s++|curl(?=\s)(?:[^|;&]{0,200}?\s)-[uU])"

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
    # Programs that take a password without its name: the first group stays, what follows is the password.
    *(
        (pattern, rf"\1{HIDDEN}")
        for pattern in (
            _make_pattern(ATTACHED, ""),
            _make_pattern(SEPARATE, r"\s*+"),
            re.compile(rf"({_USER}[^\s:\"'/]++:)(?=\S){_VALUE}", re.DOTALL),
            re.compile(rf"""({_USER}(["'])[^:"']++:)(?:(?!\2).)++""", re.DOTALL),
            re.compile(
                rf"(\becho\s++(?:-\w+\s++)*+){_VALUE}(?=\s*+\|(?:\s*+sudo\s++-S|[^|;&]{{0,200}}?-stdin)\b)", re.DOTALL
            ),
        )
    ),
)

_USER_FLAGS = {"-u", "-U", "--user", "--proxy-user"}
_USER_ASSIGNED = re.compile(r"--(?:proxy-)?user=[^:]*+:(?=.)", re.DOTALL)
_USER_ATTACHED = re.compile(r"-[uU][^:]++:(?=.)", re.DOTALL)


def find_password(before: str, argument: str, program: str) -> int | None:
    """Where in the argument a password begins, None where none does. `before` is the argument before it, `program`
    the last of these programs that was named."""
    flag = ATTACHED.get(program) or SEPARATE.get(program)
    if before in _USER_FLAGS and ":" in argument:
        return argument.index(":") + 1
    if before == SEPARATE.get(program) and not argument.startswith("--"):
        return 0
    if flag and argument.startswith(flag) and argument != flag:
        return len(flag)
    user = _USER_ASSIGNED.match(argument) or (_USER_ATTACHED.match(argument) if program == "curl" else None)
    return user.end() if user else None


def looks_secret(name: str) -> bool:
    """Whether a value called `name` is one to hide: `HF_TOKEN`, `apiKey`, `--db.password`; not `--max-tokens`."""
    words = _drop_ordinary([word.lower() for word in _WORDS.findall(name)])
    if not words or words[-1] in _HARMLESS_LAST_WORDS:
        return False
    joined = "".join(words)
    return (
        words[-1] in _SECRET_LAST_WORDS
        or any(word.endswith(_SECRET_ENDINGS) for word in words)
        or any(pair in joined for pair in _SECRET_PAIRS)
    )


def _drop_ordinary(words: list[str]) -> list[str]:
    """`words` without a token or key that is none: `eos_token_id` becomes `eos`."""
    if words[-2:-1] == ["token"] and words[-1] in {"id", "ids"}:
        words = words[:-1]
    is_ordinary = words[-1:] in (["token"], ["key"]) and words[-2:-1] and words[-2] in _ORDINARY_BEFORE_LAST
    return words[:-1] if is_ordinary else words


def show(arguments: Iterable[str], name: str, commands: Commands) -> str | None:
    """The part of a command line that is sent; None for nothing. `name` is the program's, and all there is of zombies.
    Also with `full` it is one line of printable text."""
    if commands == "none":
        return None
    if commands == "name":
        return clean(name)
    text = redact(arguments) if commands == "redacted" else _cut(clean(" ".join(arguments)))
    # `ps` shows what has no command line the same way.
    return text or f"[{name}]"


def redact(arguments: Iterable[str]) -> str:
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
    """The borders of arguments are known here, so that values with spaces are hidden as a whole."""
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
