"""Imports vesta's settings, a YAML file with keys in upper case, as a part of gpudeck.yaml."""

import ipaddress
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml

from gpudeck.compat.importing import ImportPlan, read_yaml_mapping, write_yaml
from gpudeck.model.errors import UsageError

_LOOK: Final = "It is a YAML file with keys such as TOKEN, PORT_NUM and DB_NAME: example/local_settings.yaml shows all."
_WEBHOOK_FILE: Final = "/etc/gpudeck/slack-webhook.url"
_MAX_INTERVAL: Final = 300
_ORDERS: Final = {"name": "name", "ip": "ip", "ipaddress": "ip", "ip_address": "ip", "address": "ip"}
_CHANNEL: Final = re.compile(r"[CG][A-Z0-9]{2,30}")
_WORD: Final = re.compile(r"[^\s\"<>]{1,64}")
_ANY_NUMBER: Final = re.compile(r"(?:(?:\\d|\[0-9\])(?:[+*]|\{1,3\})|[*+])?")
_NETWORKS: Final = (
    r"networks such as 192.0.2.0/24, or the numbers of an address such as 192\.0\.2\.\d+, from the first on"
)


def _number(low: float, high: float, unit: str = "") -> Callable[[str], float | str]:
    """A number from `low` to `high`, with its unit. Raises ValueError."""

    def read(text: str) -> float | str:
        number = float(text)
        if not low <= number <= high:
            raise ValueError(text)
        return f"{number:g}{unit}" if unit else int(number)

    return read


def _interval(text: str) -> str | None:
    """None for 0: the default of the hub is shorter than any sender's interval."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(text)
    return f"{min(max(number, 1), _MAX_INTERVAL):g}s" if number else None


def _file(text: str) -> str:
    if not text.isprintable() or text == UNREADABLE:
        raise ValueError(text)
    return text


def _listen_host(text: str) -> str:
    address = ipaddress.ip_address(text)
    return "" if address.is_unspecified and address.version == 4 else f"[{text}]" if address.version == 6 else text


def _networks(text: str) -> list[str] | None:
    """The networks; None if all may read. VALID_NETWORK is a regular expression: the first numbers of an address are
    understood, with any others behind them. Raises ValueError for another one."""
    words = [word for word in re.split(r"[|\s]|,(?![0-9]})", text) if word]
    networks = [_network(word.strip("()")) for word in words]
    if not networks or any(network.prefixlen == 0 for network in networks):
        return None
    four = ipaddress.collapse_addresses(each for each in networks if isinstance(each, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(each for each in networks if isinstance(each, ipaddress.IPv6Network))
    return [str(network) for network in (*four, *six)]


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        plain = text.removeprefix("^").removesuffix("$").replace("\\.", ".").replace("[.]", ".")
    parts = plain.split(".")
    numbers = list(takewhile(str.isdecimal, parts))
    if len(numbers) > 3 or not all(map(_ANY_NUMBER.fullmatch, parts[len(numbers) :])):
        raise ValueError(text)
    return ipaddress.IPv4Network(f"{'.'.join([*numbers, *['0'] * (4 - len(numbers))])}/{8 * len(numbers)}")


UNREADABLE: Final = "[…]"
_SETTINGS: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    "VALID_NETWORK": ("compat.vesta.read_from", _networks, _NETWORKS),
    "DOWN_TH": ("compat.vesta.down_after", _number(1, 3600, "s"), "seconds, from 1 to 3600"),
    "TIMESTAMP_FORMAT": (
        "compat.vesta.timestamp_format",
        lambda text: {form: form for form in ("MDY", "YMD", "DMY")}[text.upper()],
        "MDY, YMD or DMY",
    ),
    "SORT_BY": ("compat.vesta.sort_by", lambda text: _ORDERS[text.lower()], "name or ip"),
    "TERM_WIDTH": ("compat.vesta.term_width", _number(60, 240), "a number from 60 to 240"),
    "BIND_HOST": ("listen.host", _listen_host, "an address"),
    "PORT_NUM": ("listen.port", _number(1, 65535), "a port"),
    "SSL_CERT": ("tls.cert_file", _file, "a file"),
    "SSL_KEY": ("tls.key_file", _file, "a file"),
    "SAVE_INTERVAL": ("history.every", _interval, "seconds, or 0 for every post"),
}
"""For each of vesta's settings the setting in gpudeck.yaml, how its value is converted, and what it can be."""
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
_OTHERS: Final = frozenset({"TOKEN", "DB_NAME", "DB_DIR"})
_WITH_WEBHOOK: Final = frozenset({"SLACK_WEBHOOK", "SCHEDULE_FUNCTION", *_EVENTS})
_WITH_BOT: Final = frozenset({"SLACK_BOT_TOKEN", "SLACK_BOT_POST_CHANNEL", *_COMMANDS})
_NOT_NEEDED: Final = frozenset(
    (
        *("IP", "SERVER_NAME", "PAGE_PER_HOST_NUM", "KEYWORD_CMD_PREFIX", "SERVER_INFO_MSG"),
        *("SLACKBOT_MEMBER_JOINED_CHANNEL_MSG", "PAGE_TITLE", "MAIN_PAGE_TITLE", "TABLE_PAGE_TITLE"),
        *("PAGE_DESCRIPTION", "MAIN_PAGE_DESCRIPTION", "TABLE_PAGE_DESCRIPTION", "SERVER_SLEEP_TIME"),
        *("WS_RECEIVE_TIMEOUT", "SLACK_BOT_SLEEP_TIME", "NVIDIA_SMI", "NVIDIA_SMI_PARSE_VER", "YAML_DIR"),
        *("YAML_NAME", "USE_HTTPS", "QUIET", "DEBUG"),
    )
)
"""Settings without a counterpart: of the senders, of the old pages, or of the old server's own loops."""
_KNOWN: Final = _SETTINGS.keys() | _NOT_NEEDED | _OTHERS | _WITH_WEBHOOK | _WITH_BOT
_UNSAFE: Final = (
    "TOKEN is empty, so vesta takes every post. The hub needs a token: set one on the senders first; the old server "
    "takes any"
)
_READERS: Final = (
    "read_from restricts /states/ and the text view, as VALID_NETWORK did; the page and the API follow `read`. vesta "
    "searches for VALID_NETWORK within an address, so 192.0.2.1 also let 192.0.2.10 read: add such readers."
)
_READERS_UNKNOWN: Final = "read_from is this machine alone, vesta's default. Write the networks that may read there."
_READ: Final = "With `read: open` everyone who can reach the hub can read; with `login` only users with an account."
_BOT: Final = "docs/slack.md creates the bot's app and its two tokens: vesta's are of a kind that Slack has ended."
_REPORT: Final = (
    "For a crontab, the scheduled report, here each day at 9: 0 9 * * * curl -s 'http://127.0.0.1:{port}/?term=true' "
    '| jq -Rs \'{{text: ("```" + . + "```")}}\' '
    f'| curl -s -d @- "$(cat {_WEBHOOK_FILE})"'
)


def read_settings(file: Path) -> ImportPlan:
    """Raises UsageError for a file that is not a settings file of vesta."""
    values, lines = _load(file)
    if not values.keys() & _KNOWN:
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    plan = ImportPlan()
    reasons = dict.fromkeys(_NOT_NEEDED, "the hub has no such setting, and needs none")
    if not _is_secret(values.get("SLACK_WEBHOOK", "")):
        reasons |= dict.fromkeys(_WITH_WEBHOOK, "no SLACK_WEBHOOK is set")
    if not _is_secret(values.get("SLACK_BOT_TOKEN", "")):
        reasons |= dict.fromkeys(_WITH_BOT, "no SLACK_BOT_TOKEN is set")
    settings: dict[str, dict[str, Any]] = {"compat.vesta": {"token": "…"}, "listen": {"host": "", "port": 8080}}
    for name, text in values.items():
        place = f"line {lines[name]}"
        if name in reasons:
            plan.skip(place, f"{name}: {reasons[name]}")
        elif name not in _KNOWN:
            plan.leave(place, f"{name[:40]!r} is no setting of vesta's server")
        elif name in _SETTINGS:
            path, convert, expected = _SETTINGS[name]
            group, _, key = path.rpartition(".")
            try:
                settings.setdefault(group, {})[key] = convert(text)
            except (LookupError, ValueError, OverflowError):
                plan.leave(place, f"{name} has to be {expected}")
        elif name in _COMMANDS and text and not _WORD.fullmatch(text):
            plan.skip(place, f"{name}: the bot's word stays {_COMMANDS[name]}: a keyword is one word")
    if "TOKEN" in values and not values["TOKEN"]:
        plan.leave(f"line {lines['TOKEN']}", _UNSAFE)
    _add_notes(values, settings["compat.vesta"], plan)
    listen, tls = settings["listen"], settings.get("tls", {})
    written: dict[str, Any] = {
        "compat": {"vesta": {key: value for key, value in settings["compat.vesta"].items() if value is not None}},
        "listen": f"{listen['host']}:{listen['port']}",
        "read": "open",
    }
    written |= {"tls": tls} if len(tls) == 2 else {}
    written |= {"history": settings["history"]} if settings.get("history", {}).get("every") else {}
    if "SLACK_WEBHOOK" in values.keys() - reasons.keys():
        written["notify"] = {"channels": {"slack": _make_channel(values)}}
    if "SLACK_BOT_TOKEN" in values.keys() - reasons.keys():
        written["chat"] = {"slack": _make_bot(values, plan)}
    plan.settings = write_yaml(written).replace("token: …", 'token: "…"')
    return plan


def _load(file: Path) -> tuple[dict[str, str], dict[str, int]]:
    """The values of the file as they are written, lists joined by `|`, and their lines. Keys without a value and
    sections are left out."""
    values, lines = dict[str, str](), dict[str, int]()
    for key, node in read_yaml_mapping(file, "vesta", _LOOK).value:
        name, entries = str(key.value), node.value if isinstance(node, yaml.SequenceNode) else [node]
        if isinstance(node, yaml.MappingNode) or node.tag.endswith(":null"):
            continue
        # Lists in lists are not read: with aliases a few lines make millions of them.
        is_flat = all(isinstance(entry, yaml.ScalarNode) for entry in entries)
        values[name] = "|".join(str(entry.value) for entry in entries) if is_flat else UNREADABLE
        lines[name] = key.start_mark.line + 1
    return values, lines


def _is_secret(text: str) -> bool:
    """Whether it is more than the example's own text in place of a secret, such as `your BOT token`."""
    return bool(text) and not any(sign in text for sign in "< >")


def _add_notes(values: dict[str, str], vesta: dict[str, Any], plan: ImportPlan) -> None:
    which = "the TOKEN of the file" if "TOKEN" in values else "the file has no TOKEN: its senders bring 0000"
    which = "the one that you give to the senders" if values.get("TOKEN") == "" else which
    plan.notes.append(f"Write the token in place of the dots: {which}.")
    if "read_from" not in vesta:
        # As in vesta: without networks, or with ones that are not understood.
        vesta["read_from"] = ["127.0.0.1"]
        plan.notes.append(_READERS_UNKNOWN)
    elif vesta["read_from"]:
        plan.notes.append(_READERS)
    database = Path(values.get("DB_DIR") or "data") / (values.get("DB_NAME") or "gpu_states.db")
    plan.notes += [_READ, f"Then import its database: gpudeck import vesta {database}"]
    if "SCHEDULE_FUNCTION" in values and _is_secret(values.get("SLACK_WEBHOOK", "")):
        plan.notes.append(_REPORT.format(port=values.get("PORT_NUM", "8080")))


def _make_channel(values: dict[str, str]) -> dict[str, Any]:
    """The channel for hosts up, down and new, and for the hub's start, with the site's own texts."""
    texts = {event: _convert_text(values[name], values) for name, event in _EVENTS.items() if values.get(name)}
    events = ["hub_started", "host_down", "host_up", "host_seen"]
    return {"url_file": _WEBHOOK_FILE, "events": events} | ({"texts": texts} if texts else {})


def _convert_text(text: str, values: dict[str, str]) -> str:
    """`{}` is the host, and the second one how long it was silent; later versions name them."""
    limit = values.get("DOWN_TH", "60")
    names = {
        "host_name": "{host}",
        "lost_th": limit,
        "ip": values.get("IP", "the hub"),
        "port": values.get("PORT_NUM", "8080"),
        "bind_host": values.get("BIND_HOST", "0.0.0.0"),  # noqa: S104 - a word of a message
    }
    text = text.replace("{}", "{host}", 1).replace("{}", limit)
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _make_bot(values: dict[str, str], plan: ImportPlan) -> dict[str, Any]:
    plan.notes.append(_BOT)
    bot = {"app_token_file": "/etc/gpudeck/slack-app.token", "bot_token_file": "/etc/gpudeck/slack-bot.token"}
    channel = values.get("SLACK_BOT_POST_CHANNEL")
    if channel and _CHANNEL.fullmatch(channel):
        bot["channel"] = channel
    elif channel:
        plan.notes.append("Set chat.slack.channel to the ID of SLACK_BOT_POST_CHANNEL.")
    words = {command: values[name].lower() for name, command in _COMMANDS.items() if values.get(name)}
    keywords = {word: command for command, word in words.items() if word != command and _WORD.fullmatch(word)}
    return bot | ({"keywords": keywords} if keywords else {})
