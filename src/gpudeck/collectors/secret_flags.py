"""Flags that take a password without saying so in their names, by program: `mysql -pabc`, `docker login -p abc`.

Each is known twice: among arguments, where a value with spaces goes as a whole, and within a longer text (`sh -c`).
"""

import re

# `login` is whatever logs in: docker, podman, helm registry, az, oc.
_ATTACHED = {
    "-p": (
        *("mysql", "mysqladmin", "mysqldump", "mysqlimport", "mysqlsh", "mariadb", "mariadb-admin", "mariadb-dump"),
        *("7z", "7za", "7zr", "7zz", "rar", "unrar"),
    ),
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


def _make_pattern(flags: dict[str, str], parting: str) -> "re.Pattern[str]":
    programs = "|".join(f"{re.escape(program)}(?=\\s)(?:[^|;&]{{0,200}}?\\s){flag}" for program, flag in flags.items())
    return re.compile(rf"""((?<![\w.-])(?:{programs}){parting})(?=\S)(?!-){_VALUE}""", re.DOTALL)


_USER = r"(?<![\w.-])(?:--(?:proxy-)?user(?:=|\s++)|-[uU]\s++|curl(?=\s)(?:[^|;&]{0,200}?\s)-[uU])"
PATTERNS = (
    _make_pattern(ATTACHED, ""),
    _make_pattern(SEPARATE, r"\s*+"),
    re.compile(rf"({_USER}[^\s:\"'/]++:)(?=\S){_VALUE}", re.DOTALL),
    re.compile(rf"""({_USER}(["'])[^:"']++:)(?:(?!\2).)++""", re.DOTALL),
    re.compile(rf"(\becho\s++(?:-\w+\s++)*+){_VALUE}(?=\s*+\|(?:\s*+sudo\s++-S|[^|;&]{{0,200}}?-stdin)\b)", re.DOTALL),
)
"""Within a text: the first group stays, what follows it is the password."""

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
