"""vesta's settings, a YAML file with keys in upper case, as a piece of gpudeck.yaml."""

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from gpudeck.compat.importing import ImportPlan, SkippedEntry, read_yaml_mapping
from gpudeck.model.errors import UsageError

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
_NOT_NEEDED_BY_SLACK: Final = {
    "KEYWORD_CMD_PREFIX": "the bot answers mentions, direct messages and its own channel, without a prefix",
    "SERVER_INFO_MSG": "`where` alone names the hub's address",
    "SLACKBOT_MEMBER_JOINED_CHANNEL_MSG": "the bot greets nobody; `help` lists its commands",
}
SLACK_KEYS: Final = frozenset(
    (
        *("SLACK_WEBHOOK", "SLACK_BOT_TOKEN", "SLACK_BOT_POST_CHANNEL", "SCHEDULE_FUNCTION"),
        *(*_EVENTS, *_COMMANDS, *_NOT_NEEDED_BY_SLACK),
    )
)
_PLACEHOLDER: Final = "it is empty, or the example's own text"
_WEBHOOK_FILE: Final = "/etc/gpudeck/slack-webhook.url"
_WORD: Final = re.compile(r"[^\s\"<>]{1,64}")
_CHANNEL: Final = re.compile(r"[CG][A-Z0-9]{2,30}")
_EVERY: Final = re.compile(
    r"\s*schedule\.every\((\d{0,4})\)\.(minutes?|hours?|days?|monday|tuesday|wednesday|thursday|friday|saturday|sunday)"
    r"(?:\.at\(\s*[\"'](\d{1,2}):(\d{2})(?::\d{2})?[\"']\s*\))?\.do\(\s*self\.send_(?:hosts_statuses|server_status)\b.*",
    re.DOTALL,
)
_DAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_REPORT: Final = (
    "curl -s 'http://127.0.0.1:{port}/?term=true' | jq -Rs '{{text: (\"```\" + . + \"```\")}}' "
    f'| curl -s -d @- "$(cat {_WEBHOOK_FILE})"'
)
_LONGEST: Final = 500
_LONGEST_NUMBER: Final = 64
_REPEATED: Final = re.compile(r"\)[*+?{]")
_MOST: Final = 4096
_ALL: Final = frozenset(range(256))
_ANY: Final = frozenset({"", ".", "*", "+", "?", ".*", ".+", ".*?", ".+?"})
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOOK: Final = "It is a YAML file with keys such as TOKEN, PORT_NUM and DB_NAME: example/local_settings.yaml shows all."
_TAKEN: Final = frozenset(
    (
        *("TOKEN", "PORT_NUM", "BIND_HOST", "VALID_NETWORK", "DB_NAME", "DB_DIR", "TIMESTAMP_FORMAT", "TERM_WIDTH"),
        *("SORT_BY", "DOWN_TH", "SAVE_INTERVAL", "SSL_CERT", "SSL_KEY"),
    )
)
_TITLE: Final = "the page has no title to set"
_SENDER: Final = "a setting of the senders, which keep it"
_PAUSE: Final = "the hub has no such pause"
_LOG: Final = "what the hub logs is chosen when it is started"
_NOT_NEEDED: Final = {
    "IP": "the address that senders post to: it stands in their own settings",
    "SERVER_NAME": "the hub shows no name of its own",
    "PAGE_PER_HOST_NUM": "the page shows all hosts",
    **dict.fromkeys(("PAGE_TITLE", "MAIN_PAGE_TITLE", "TABLE_PAGE_TITLE"), _TITLE),
    **dict.fromkeys(("PAGE_DESCRIPTION", "MAIN_PAGE_DESCRIPTION", "TABLE_PAGE_DESCRIPTION"), _TITLE),
    **dict.fromkeys(("SERVER_SLEEP_TIME", "WS_RECEIVE_TIMEOUT", "SLACK_BOT_SLEEP_TIME"), _PAUSE),
    **dict.fromkeys(("NVIDIA_SMI", "NVIDIA_SMI_PARSE_VER", "YAML_DIR", "YAML_NAME", "USE_HTTPS"), _SENDER),
    **dict.fromkeys(("QUIET", "DEBUG"), _LOG),
}
_LOCAL: Final = "[127.0.0.1]"
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
_ORDERS: Final = {"name": "name", "ip": "ip", "ipaddress": "ip", "ip_address": "ip", "address": "ip"}
_FORMATS: Final = {"MDY": "MDY", "YMD": "YMD", "DMY": "DMY"}
_LONGEST_INTERVAL: Final = 300


class KnownKeys:
    """What makes no sense is in the plan with its line. A key without a value is not there."""

    def __init__(self, values: dict[str, Any], lines: dict[str, int], plan: ImportPlan) -> None:
        self._values = values
        self._lines = lines
        self._plan = plan

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def take(self, name: str, read: Callable[[Any], str], expected: str) -> str | None:
        """The value as it is written in gpudeck.yaml; None where there is none, or it makes no sense."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return read(_check_flat(value))
        except (LookupError, ValueError, TypeError, OverflowError):
            self.refuse(name, f"has to be {expected}")
            return None

    def text(self, name: str) -> str:
        """A text, or what is written like one; empty where there is none."""
        value = self._values.get(name)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""

    def texts(self, name: str) -> list[str]:
        """A list of texts, or one."""
        value = self._values.get(name)
        return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)][:100]

    def refuse(self, name: str, reason: str) -> None:
        """It cannot be taken as it is: `reason` goes on after its name."""
        self._plan.leave(f"line {self._lines[name]}", f"{name} {reason}")

    def pass_over(self, name: str, reason: str) -> None:
        """It needs no taking: named in one line."""
        self._plan.over.append(SkippedEntry(f"line {self._lines[name]}", f"{name}: {reason}"))


def _check_flat(value: Any) -> Any:
    """Raises ValueError for lists within lists: a few lines of YAML make millions of them."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        raise ValueError
    return value


def write_notify(keys: KnownKeys) -> list[str]:
    """The channel for hosts up, down and new, and for the hub's start, in the site's own words."""
    if not _is_set(keys, "SLACK_WEBHOOK"):
        _pass_over(keys, ("SLACK_WEBHOOK",), _PLACEHOLDER)
        _pass_over(keys, tuple(_EVENTS), "there is no SLACK_WEBHOOK to post to")
        return []
    texts = {event: _translate(keys.text(name), keys) for name, event in _EVENTS.items() if keys.text(name).strip()}
    lines = [
        "notify:",
        "  channels:",
        "    slack:",
        f"      url_file: {_WEBHOOK_FILE}  # a file with the SLACK_WEBHOOK",
        "      events: [hub_started, host_down, host_up, host_seen]",
    ]
    lines += ["      texts:"] if texts else []
    return lines + [f"        {event}: {_quote(text)}" for event, text in texts.items()]


def write_chat(keys: KnownKeys) -> list[str]:
    """The bot, which needs an app of its own in Slack: vesta's was of a kind that Slack has ended."""
    _pass_over(keys, tuple(_NOT_NEEDED_BY_SLACK))
    if not _is_set(keys, "SLACK_BOT_TOKEN"):
        _pass_over(keys, ("SLACK_BOT_TOKEN",), _PLACEHOLDER)
        _pass_over(keys, ("SLACK_BOT_POST_CHANNEL", *_COMMANDS), "there is no bot without a SLACK_BOT_TOKEN")
        return []
    lines = [
        "chat:",
        "  slack:  # docs/slack.md makes its app: vesta's tokens are of a kind that Slack has ended",
        "    app_token_file: /etc/gpudeck/slack-app.token",
        "    bot_token_file: /etc/gpudeck/slack-bot.token",
    ]
    if "SLACK_BOT_POST_CHANNEL" in keys:
        channel = keys.text("SLACK_BOT_POST_CHANNEL")
        is_id = _CHANNEL.fullmatch(channel) is not None
        lines.append(f"    channel: {channel}" if is_id else "    # channel: the ID of SLACK_BOT_POST_CHANNEL")
    return lines + _write_keywords(keys)


def _write_keywords(keys: KnownKeys) -> list[str]:
    told = {}
    for name, command in _COMMANDS.items():
        word = keys.text(name)
        if word and not _WORD.fullmatch(word):
            keys.pass_over(name, f"the bot's word for it stays {command}: a keyword is one word")
        elif word.lower() not in {"", command}:
            told[word.lower()] = command
    return ["    keywords:", *(f"      {_quote(word)}: {command}" for word, command in told.items())] if told else []


def write_reports(keys: KnownKeys) -> list[str]:
    """Scheduled reports as lines of a crontab."""
    notes = []
    for text in keys.texts("SCHEDULE_FUNCTION"):
        when = _read_schedule(text)
        if when is None:
            keys.pass_over("SCHEDULE_FUNCTION", f"only reports at fixed times can be taken, and not {text[:80]!r}")
        elif not _is_set(keys, "SLACK_WEBHOOK"):
            keys.pass_over("SCHEDULE_FUNCTION", "there is no SLACK_WEBHOOK to post to")
        else:
            port = keys.text("PORT_NUM") if keys.text("PORT_NUM").isdigit() else "8080"
            notes.append(f"For a crontab, the scheduled report: {when} {_REPORT.format(port=port)}")
    return notes


def _read_schedule(text: str) -> str | None:
    """The five fields of a crontab; None for what runs something else, or at no fixed time."""
    found = _EVERY.fullmatch(text)
    if found is None:
        return None
    count, unit, hour, minute = int(found[1] or 1), found[2].rstrip("s"), int(found[3] or 0), int(found[4] or 0)
    if hour > 23 or minute > 59:
        return None
    if found[2] in _DAYS:
        return f"{minute} {hour} * * {_DAYS.index(found[2])}" if count == 1 else None
    every = {"minute": (60, "*/{} * * * *"), "hour": (24, "0 */{} * * *"), "day": (2, f"{minute} {hour} * * *")}
    most, fields = every[unit]
    return fields.format(count) if 0 < count < most else None


def _translate(text: str, keys: KnownKeys) -> str:
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


def _is_set(keys: KnownKeys, name: str) -> bool:
    """Not where it holds what the example has in place of a secret, such as `your BOT token`."""
    text = keys.text(name)
    return bool(text) and not any(sign in text for sign in "< >")


def _pass_over(keys: KnownKeys, names: tuple[str, ...], reason: str = "") -> None:
    for name in names:
        if name in keys:
            keys.pass_over(name, reason or _NOT_NEEDED_BY_SLACK[name])


def _quote(text: str) -> str:
    """A text of YAML, which takes what JSON writes."""
    return json.dumps(text, ensure_ascii=False)


def read_networks(told: str | Iterable[str]) -> list[str]:
    """The networks that may read; none if all may. Raises ValueError for what cannot be expressed as networks."""
    words = [told] if isinstance(told, str) else list(told)
    found = [network for word in words for network in _read(word)]
    if not words or any(network.prefixlen == 0 for network in found):
        return []
    four = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv6Network))
    return [str(network) for network in (*four, *six)]


def _read(text: str) -> list[_Network]:
    if len(text) > _LONGEST:
        raise ValueError("it is too long")
    words = [word for piece in text.split() for word in _split(piece, ",") if word] or [""]
    return [network for word in words for part in _split(_unwrap(word), "|") for network in _read_one(part)]


def _read_one(text: str) -> list[_Network]:
    try:
        return [ipaddress.ip_network(text, strict=False)]
    except ValueError:
        return [*_read_numbers(_unwrap(text.removeprefix("^")))]


def _read_numbers(text: str) -> Iterable[ipaddress.IPv4Network]:
    """`10\\.1\\.[23]\\.`, `10.1.`, `10.1.0.*`: numbers from the first on; those that are left out may be any."""
    is_complete = text.endswith("$") and not text.endswith("\\$")
    text = text.removesuffix("$").replace("[.]", "\\.")
    # With dots that are escaped, the others stand for any sign.
    numbers = _split(text, "\\." if "\\." in text else ".")
    numbers = numbers[:-1] if len(numbers) > 1 and numbers[-1] in _ANY else numbers
    if not text.strip("".join(_ANY)):
        return [ipaddress.IPv4Network("0.0.0.0/0")]
    if len(numbers) > 4 or (is_complete and len(numbers) < 4 and not text.endswith(("*", "+"))):
        raise ValueError("it does not begin with the first number of an address")
    sets = [_fitting(number) for number in numbers]
    while sets and sets[-1] == _ALL:
        sets.pop()
    return _networks(sets)


def _networks(sets: list[frozenset[int]]) -> Iterable[ipaddress.IPv4Network]:
    if math.prod(map(len, sets)) > _MOST:
        raise ValueError("it means too many networks")
    for numbers in product(*map(sorted, sets)):
        address = ".".join(map(str, (*numbers, *(0,) * (4 - len(numbers)))))
        yield ipaddress.IPv4Network(f"{address}/{8 * len(numbers)}")


def _fitting(number: str) -> frozenset[int]:
    """The numbers of an address that the piece of an expression matches. Raises ValueError where there are none, and
    for a group that is repeated: only those take long on three signs."""
    if len(number) > _LONGEST_NUMBER or _REPEATED.search(number):
        raise ValueError(f"{number[:40]!r} is too complicated")
    try:
        pattern = re.compile(".*" if number in _ANY else number)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    found = frozenset(one for one in _ALL if pattern.fullmatch(str(one)))
    if not found:
        raise ValueError(f"{number!r} fits no number of an address")
    return found


def _split(text: str, mark: str) -> list[str]:
    """At each mark that stands in no brackets."""
    parts, start, depth, at = list[str](), 0, 0, 0
    while at < len(text):
        if depth == 0 and text.startswith(mark, at):
            parts.append(text[start:at])
            start = at = at + len(mark)
            continue
        if text[at] == "\\":
            at += 1
        else:
            depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return [*parts, text[start:]]


def _unwrap(text: str) -> str:
    """Without brackets around all of it."""
    inner = text.removeprefix("(").removeprefix("?:").removesuffix(")")
    is_wrapped = text.startswith("(") and text.endswith(")") and ")" not in inner
    return inner if is_wrapped else text


def read_settings(file: Path) -> ImportPlan:
    """Raises UsageError for what is no settings file of vesta."""
    plan = ImportPlan()
    values, lines = _load(file)
    if not values.keys() & (_TAKEN | _NOT_NEEDED.keys() | SLACK_KEYS):
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    keys = KnownKeys(values, lines, plan)
    for name, value in values.items():
        if name in _NOT_NEEDED:
            keys.pass_over(name, _NOT_NEEDED[name])
        elif name not in _TAKEN | SLACK_KEYS and not isinstance(value, dict):
            plan.leave(f"line {lines[name]}", f"{name[:40]!r} is no setting of vesta's server")
    plan.settings = "\n".join([*_write_vesta(keys), *_write_hub(keys), *write_notify(keys), *write_chat(keys)]) + "\n"
    plan.over.sort(key=lambda left: int(left.place.removeprefix("line ")))
    plan.notes = _advise(values, restricts_readers="read_from:" in plan.settings) + write_reports(keys)
    plan.notes += [_ALONE] if "/32" in plan.settings.replace("127.0.0.1/32", "") else []
    return plan


def _load(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    root, content = read_yaml_mapping(file, "vesta", _LOOK)
    try:
        values = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: this is no YAML.", _LOOK) from error
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    return {str(name): value for name, value in values.items()}, lines


def _write_vesta(keys: KnownKeys) -> list[str]:
    """Secrets are not shown: they are written over by hand. What is not set has vesta's defaults here too."""
    which = "the TOKEN of the file" if "TOKEN" in keys else "the file has no TOKEN: its senders bring 0000"
    if "TOKEN" in keys and not keys.text("TOKEN"):
        which = "the one that you give to the senders"
        keys.refuse("TOKEN", _TAKES_ALL)
    vesta = {
        "read_from": _write_readers(keys),
        "down_after": keys.take("DOWN_TH", _number(float, 1, 3600, "s"), "seconds, from 1 to 3600"),
        "timestamp_format": keys.take(
            "TIMESTAMP_FORMAT", lambda value: _FORMATS[str(value).upper()], "MDY, YMD or DMY"
        ),
        "sort_by": keys.take("SORT_BY", lambda value: _ORDERS[str(value).lower()], "name or ip"),
        "term_width": keys.take("TERM_WIDTH", _number(int, 60, 240), "a number from 60 to 240"),
    }
    lines = ["compat:", "  vesta:", f'    token: "…"  # {which}']
    return lines + [f"    {name}: {value}" for name, value in vesta.items() if value is not None]


def _write_readers(keys: KnownKeys) -> str | None:
    """Who may read; this machine alone if that is not known. Senders may report from anywhere."""
    if "VALID_NETWORK" not in keys:
        return f"{_LOCAL}  # vesta's default; unless its command line has --valid_network"
    found = keys.take("VALID_NETWORK", _read_networks, _NETWORKS)
    return f"{_LOCAL}  # write the networks of VALID_NETWORK here" if found is None else found or None


def _write_hub(keys: KnownKeys) -> list[str]:
    host = keys.take("BIND_HOST", _read_address, "an address")
    port = keys.take("PORT_NUM", _number(int, 1, 65535), "a port")
    lines = [
        f"listen: {host or ''}:{port or 8080}".replace("0.0.0.0:", ":"),
        "read: open  # everyone who can reach the hub can read; login: only users with an account",
    ]
    files = [keys.take(name, _read_text, "a file") for name in ("SSL_CERT", "SSL_KEY")]
    if all(files):
        lines += ["tls:", f"  cert_file: {files[0]}", f"  key_file: {files[1]}"]
    every = keys.take("SAVE_INTERVAL", _read_interval, "seconds, or 0 for every post")
    return lines + (["history:", f"  every: {every}"] if every else [])


def _advise(values: dict[str, Any], *, restricts_readers: bool) -> list[str]:
    notes = []
    folder, name = values.get("DB_DIR") or "data", values.get("DB_NAME") or "gpu_states.db"
    if isinstance(folder, str) and isinstance(name, str):
        notes.append(f"Then import its database: gpudeck import vesta {Path(folder) / name}")
    if restricts_readers:
        notes.append(
            "read_from restricts /states/ and the text view, as VALID_NETWORK did. The page and the API follow `read`: "
            "with `read: login` they need an account."
        )
    return notes


def _read_networks(value: Any) -> str:
    found = read_networks(map(str, value) if isinstance(value, list) else str(value))
    words = (f'"{one}"' if ":" in one else one for one in found)
    return f"[{', '.join(words)}]" if found else ""


def _read_address(value: Any) -> str:
    found = ipaddress.ip_address(str(value))
    return f"[{found}]" if found.version == 6 else str(found)


def _read_interval(value: Any) -> str:
    """Empty for 0: what is not written keeps its default, which is more often than any sender posts."""
    number = float(value)
    if isinstance(value, bool) or not 0 <= number < 1e9:
        raise ValueError
    return f"{min(max(number, 1), _LONGEST_INTERVAL):g}s" if number else ""


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _number(kind: type[int | float], low: int, high: int, unit: str = "") -> Callable[[Any], str]:
    def read(value: Any) -> str:
        number = kind(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return f"{number:g}{unit}"

    return read
