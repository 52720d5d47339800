"""vesta's settings, a YAML file with keys in upper case, as a piece of gpudeck.yaml."""

import ipaddress
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml

from gpudeck.compat.importing import ImportPlan, SkippedEntry, read_yaml_mapping
from gpudeck.model.errors import UsageError

_LOOK: Final = "It is a YAML file with keys such as TOKEN, PORT_NUM and DB_NAME: example/local_settings.yaml shows all."
_TITLE: Final = "the page has no title to set"
_SENDER: Final = "a setting of the senders, which keep it"
_PAUSE: Final = "the hub has no such pause"
_LOG: Final = "set when the hub is started"
_NOT_NEEDED: Final = {
    "IP": "the address that senders post to: it stands in their own settings",
    "SERVER_NAME": "the hub shows no name of its own",
    "PAGE_PER_HOST_NUM": "the page shows all hosts",
    "KEYWORD_CMD_PREFIX": "the bot answers mentions, direct messages and its own channel, without a prefix",
    "SERVER_INFO_MSG": "`where` alone names the hub's address",
    "SLACKBOT_MEMBER_JOINED_CHANNEL_MSG": "the bot greets nobody; `help` lists its commands",
    **dict.fromkeys(("PAGE_TITLE", "MAIN_PAGE_TITLE", "TABLE_PAGE_TITLE"), _TITLE),
    **dict.fromkeys(("PAGE_DESCRIPTION", "MAIN_PAGE_DESCRIPTION", "TABLE_PAGE_DESCRIPTION"), _TITLE),
    **dict.fromkeys(("SERVER_SLEEP_TIME", "WS_RECEIVE_TIMEOUT", "SLACK_BOT_SLEEP_TIME"), _PAUSE),
    **dict.fromkeys(("NVIDIA_SMI", "NVIDIA_SMI_PARSE_VER", "YAML_DIR", "YAML_NAME", "USE_HTTPS"), _SENDER),
    **dict.fromkeys(("QUIET", "DEBUG"), _LOG),
}
_EVENTS: Final = {
    "SERVER_UP_MSG": "hub_started",
    "REGISTER_UPLINK_MSG": "host_seen",
    "RE_UPLINK_MSG": "host_up",
    "UPDATE_UPLINK_MSG": "host_up",
    "HOST_DOWN_MSG": "host_down",
}
_COMMANDS: Final = {
    "KEYWORD_PRINT_HOSTS": "hosts",
    "KEYWORD_PRINT_ALL_HOSTS": "all",
    "KEYWORD_PRINT_ALL_HOSTS_CMD": "all_cmd",
    "KEYWORD_PRINT_ALL_HOSTS_DETAIL": "all_detail",
    "KEYWORD_PRINT_HOST_INFO": "where",
    "KEYWORD_PRINT_HELP": "help",
}
_TAKEN: Final = frozenset(
    (
        *("TOKEN", "PORT_NUM", "BIND_HOST", "VALID_NETWORK", "DB_NAME", "DB_DIR", "TIMESTAMP_FORMAT", "TERM_WIDTH"),
        *("SORT_BY", "DOWN_TH", "SAVE_INTERVAL", "SSL_CERT", "SSL_KEY", "SLACK_WEBHOOK", "SLACK_BOT_TOKEN"),
        *("SLACK_BOT_POST_CHANNEL", "SCHEDULE_FUNCTION", *_EVENTS, *_COMMANDS),
    )
)
_WORD: Final = re.compile(r"[^\s\"<>]{1,64}")
_CHANNEL: Final = re.compile(r"[CG][A-Z0-9]{2,30}")
_ANY_NUMBER: Final = re.compile(r"(?:(?:\\d|\[0-9\])(?:[+*]|\{1,3\})|[*+])?")
_ORDERS: Final = {"name": "name", "ip": "ip", "ipaddress": "ip", "ip_address": "ip", "address": "ip"}
_FORMATS: Final = {"MDY": "MDY", "YMD": "YMD", "DMY": "DMY"}
_MAX_INTERVAL: Final = 300
_WEBHOOK_FILE: Final = "/etc/gpudeck/slack-webhook.url"
_PLACEHOLDER: Final = "it is empty, or the example's own text"
_NETWORKS: Final = (
    r"networks such as 192.0.2.0/24, or the numbers of an address such as 192\.0\.2\.\d+, from the first on"
)
_TAKES_ALL: Final = (
    "is empty, so vesta takes every post. The hub needs a token: set one on the senders first; the old server takes any"
)
_ALONE: Final = (
    "read_from names single addresses. vesta searches for VALID_NETWORK within an address, so 192.0.2.1 also let "
    "192.0.2.10 read: add such readers to read_from."
)
_RESTRICTS: Final = (
    "read_from restricts /states/ and the text view, as VALID_NETWORK did. The page and the API follow `read`: with "
    "`read: login` they need an account."
)
_REPORT: Final = (
    "For a crontab, the scheduled report, here each day at 9: 0 9 * * * curl -s 'http://127.0.0.1:{port}/?term=true' "
    '| jq -Rs \'{{text: ("```" + . + "```")}}\' '
    f'| curl -s -d @- "$(cat {_WEBHOOK_FILE})"'
)


def read_settings(file: Path) -> ImportPlan:
    """Raises UsageError for what is no settings file of vesta."""
    plan = ImportPlan()
    values, lines = _load(file)
    if not values.keys() & (_TAKEN | _NOT_NEEDED.keys()):
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    keys = _Keys(values, lines, plan)
    for name, value in values.items():
        if name in _NOT_NEEDED:
            keys.pass_over(name, _NOT_NEEDED[name])
        elif name not in _TAKEN and not isinstance(value, dict):
            plan.leave(f"line {lines[name]}", f"{name[:40]!r} is no setting of vesta's server")
    settings = {"compat": {"vesta": _translate_vesta(keys)}, **_translate_hub(keys), **_translate_slack(keys)}
    written = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=200)
    plan.settings = written.replace("token: …", 'token: "…"')
    plan.over.sort(key=lambda left: int(left.place.removeprefix("line ")))
    return plan


class _Keys:
    """The values of the file. A value that makes no sense is put into the plan with its line. A key without a value is
    not there."""

    def __init__(self, values: dict[str, Any], lines: dict[str, int], plan: ImportPlan) -> None:
        self._values = values
        self._lines = lines
        self._plan = plan

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def take(self, name: str, read: Callable[[Any], Any], expected: str) -> Any:
        """The value as gpudeck.yaml has it; None where there is none, or it makes no sense."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return read(_check_flat(value))
        except (LookupError, ValueError, TypeError, OverflowError):
            self.refuse(name, f"has to be {expected}")
            return None

    def text(self, name: str) -> str:
        """A text, or a number as text; empty where there is none."""
        value = self._values.get(name)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""

    def is_set(self, name: str) -> bool:
        """Whether it holds something else than the example has in place of a secret, such as `your BOT token`."""
        text = self.text(name)
        return bool(text) and not any(sign in text for sign in "< >")

    def refuse(self, name: str, reason: str) -> None:
        """It cannot be imported as it is: `reason` goes on after its name."""
        self._plan.leave(f"line {self._lines[name]}", f"{name} {reason}")

    def pass_over(self, name: str, reason: str) -> None:
        """It needs no import."""
        if name in self:
            self._plan.over.append(SkippedEntry(f"line {self._lines[name]}", f"{name}: {reason}"))

    def note(self, note: str) -> None:
        self._plan.notes.append(note)


def _check_flat(value: Any) -> Any:
    """Raises ValueError for lists within lists: a few lines of YAML make millions of them."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        raise ValueError
    return value


def _load(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    root, content = read_yaml_mapping(file, "vesta", _LOOK)
    try:
        values = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: this is no YAML.", _LOOK) from error
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    return {str(name): value for name, value in values.items()}, lines


def _translate_vesta(keys: _Keys) -> dict[str, Any]:
    """Secrets are not shown: you write them over the dots. What is not set has vesta's defaults here too."""
    which = "the TOKEN of the file" if "TOKEN" in keys else "the file has no TOKEN: its senders bring 0000"
    if "TOKEN" in keys and not keys.text("TOKEN"):
        which = "the one that you give to the senders"
        keys.refuse("TOKEN", _TAKES_ALL)
    keys.note(f"Write the token in place of the dots: {which}.")
    vesta = {
        "token": "…",
        "read_from": _find_readers(keys),
        "down_after": keys.take("DOWN_TH", _number(float, 1, 3600, "s"), "seconds, from 1 to 3600"),
        "timestamp_format": keys.take(
            "TIMESTAMP_FORMAT", lambda value: _FORMATS[str(value).upper()], "MDY, YMD or DMY"
        ),
        "sort_by": keys.take("SORT_BY", lambda value: _ORDERS[str(value).lower()], "name or ip"),
        "term_width": keys.take("TERM_WIDTH", _number(int, 60, 240), "a number from 60 to 240"),
    }
    return {name: value for name, value in vesta.items() if value is not None}


def _find_readers(keys: _Keys) -> list[str] | None:
    """The networks that may read, None for all; this machine alone if they are not known, as in vesta."""
    found = keys.take("VALID_NETWORK", _read_networks, _NETWORKS)
    if found is None:
        networks = "" if "VALID_NETWORK" in keys else ", vesta's default: unless its command line has --valid_network"
        keys.note(f"read_from is this machine alone{networks}. Write the networks that may read there.")
        return ["127.0.0.1"]
    if any(network.endswith("/32") and network != "127.0.0.1/32" for network in found):
        keys.note(_ALONE)
    if found:
        keys.note(_RESTRICTS)
    return found or None


def _read_networks(value: Any) -> list[str]:
    """The networks; none if all may read. VALID_NETWORK is a regular expression: numbers of an address from the first
    on are understood, with any others behind them. Raises ValueError for another one."""
    texts = map(str, value if isinstance(value, list) else [value])
    words = [word for text in texts for word in re.split(r"[|\s]|,(?![0-9]})", text)]
    found = [_read_network(word.strip("()")) for word in words if word]
    if not found or any(network.prefixlen == 0 for network in found):
        return []
    four = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv6Network))
    return [str(network) for network in (*four, *six)]


def _read_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        plain = text.removeprefix("^").removesuffix("$").replace("\\.", ".").replace("[.]", ".")
    parts = plain.split(".")
    numbers = list(takewhile(str.isdecimal, parts))
    if len(numbers) > 3 or not all(map(_ANY_NUMBER.fullmatch, parts[len(numbers) :])):
        raise ValueError(text)
    return ipaddress.IPv4Network(f"{'.'.join([*numbers, *['0'] * (4 - len(numbers))])}/{8 * len(numbers)}")


def _translate_hub(keys: _Keys) -> dict[str, Any]:
    host = keys.take("BIND_HOST", _read_address, "an address")
    port = keys.take("PORT_NUM", _number(int, 1, 65535), "a port")
    keys.note("With `read: open` everyone who can reach the hub can read; with `login` only users with an account.")
    files = [keys.take(name, _read_text, "a file") for name in ("SSL_CERT", "SSL_KEY")]
    every = keys.take("SAVE_INTERVAL", _read_interval, "seconds, or 0 for every post")
    folder, name = keys.text("DB_DIR") or "data", keys.text("DB_NAME") or "gpu_states.db"
    keys.note(f"Then import its database: gpudeck import vesta {Path(folder) / name}")
    return {
        "listen": f"{host or ''}:{port or 8080}".replace("0.0.0.0:", ":"),
        "read": "open",
        **({"tls": {"cert_file": files[0], "key_file": files[1]}} if all(files) else {}),
        **({"history": {"every": every}} if every else {}),
    }


def _translate_slack(keys: _Keys) -> dict[str, Any]:
    """The channel for hosts up, down and new, and for the hub's start, in the site's own words; and the bot."""
    has_webhook, has_bot = keys.is_set("SLACK_WEBHOOK"), keys.is_set("SLACK_BOT_TOKEN")
    if not has_webhook:
        keys.pass_over("SLACK_WEBHOOK", _PLACEHOLDER)
        for name in (*_EVENTS, "SCHEDULE_FUNCTION"):
            keys.pass_over(name, "there is no SLACK_WEBHOOK to post to")
    elif "SCHEDULE_FUNCTION" in keys:
        keys.note(_REPORT.format(port=keys.text("PORT_NUM") or "8080"))
    if not has_bot:
        keys.pass_over("SLACK_BOT_TOKEN", _PLACEHOLDER)
        for name in ("SLACK_BOT_POST_CHANNEL", *_COMMANDS):
            keys.pass_over(name, "there is no bot without a SLACK_BOT_TOKEN")
    given = {event: keys.text(name) for name, event in _EVENTS.items() if keys.text(name).strip()}
    texts = {event: _translate_text(text, keys) for event, text in given.items()}
    channel: dict[str, Any] = {
        "url_file": _WEBHOOK_FILE,
        "events": ["hub_started", "host_down", "host_up", "host_seen"],
        **({"texts": texts} if texts else {}),
    }
    return {
        **({"notify": {"channels": {"slack": channel}}} if has_webhook else {}),
        **({"chat": {"slack": _translate_bot(keys)}} if has_bot else {}),
    }


def _translate_bot(keys: _Keys) -> dict[str, Any]:
    keys.note("docs/slack.md creates the bot's app and its two tokens: vesta's are of a kind that Slack has ended.")
    bot: dict[str, Any] = {
        "app_token_file": "/etc/gpudeck/slack-app.token",
        "bot_token_file": "/etc/gpudeck/slack-bot.token",
    }
    if _CHANNEL.fullmatch(keys.text("SLACK_BOT_POST_CHANNEL")):
        bot["channel"] = keys.text("SLACK_BOT_POST_CHANNEL")
    elif "SLACK_BOT_POST_CHANNEL" in keys:
        keys.note("Set chat.slack.channel to the ID of SLACK_BOT_POST_CHANNEL.")
    keywords = {}
    for name, command in _COMMANDS.items():
        word = keys.text(name)
        if word and not _WORD.fullmatch(word):
            keys.pass_over(name, f"the bot's word for it stays {command}: a keyword is one word")
        elif word.lower() not in {"", command}:
            keywords[word.lower()] = command
    return bot | ({"keywords": keywords} if keywords else {})


def _translate_text(text: str, keys: _Keys) -> str:
    """`{}` is the host, and the second one how long it was silent; later versions name them."""
    limit = keys.text("DOWN_TH") or "60"
    names = {
        "host_name": "{host}",
        "lost_th": limit,
        "ip": keys.text("IP") or "the hub",
        "port": keys.text("PORT_NUM") or "8080",
        "bind_host": keys.text("BIND_HOST") or "0.0.0.0",  # noqa: S104 - a word of a message
    }
    text = text.replace("{}", "{host}", 1).replace("{}", limit)
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _read_address(value: Any) -> str:
    found = ipaddress.ip_address(str(value))
    return f"[{found}]" if found.version == 6 else str(found)


def _read_interval(value: Any) -> str:
    """Empty for 0: what is not written keeps its default, which is more often than any sender posts."""
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < 1e9:
        raise ValueError
    return f"{min(max(number, 1), _MAX_INTERVAL):g}s" if number else ""


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError
    return value


def _number(kind: type[int | float], low: int, high: int, unit: str = "") -> Callable[[Any], float | str]:
    def read(value: Any) -> float | str:
        number = kind(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return f"{number:g}{unit}" if unit else number

    return read
