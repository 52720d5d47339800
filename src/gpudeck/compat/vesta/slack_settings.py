"""What vesta posts to Slack, as settings of this hub: its messages, its bot, and its scheduled reports.

Of secrets the key is named and never the value: each goes into a file that only the hub can read.
"""

import json
import re
from typing import Final

from gpudeck.compat.vesta.yaml_keys import Keys

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
_NOT_NEEDED: Final = {
    "KEYWORD_CMD_PREFIX": "the bot answers mentions, direct messages and its own channel, without a prefix",
    "SERVER_INFO_MSG": "`where` alone names the hub's address",
    "SLACKBOT_MEMBER_JOINED_CHANNEL_MSG": "the bot greets nobody; `help` lists its commands",
}
SLACK_KEYS: Final = frozenset(
    (
        *("SLACK_WEBHOOK", "SLACK_BOT_TOKEN", "SLACK_BOT_POST_CHANNEL", "SCHEDULE_FUNCTION"),
        *(*_EVENTS, *_COMMANDS, *_NOT_NEEDED),
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


def write_notify(keys: Keys) -> list[str]:
    """The channel that is told of hosts up, down and new, and of the hub's start, in the site's own words."""
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


def write_chat(keys: Keys) -> list[str]:
    """The bot, which needs an app of its own in Slack: vesta's was of a kind that Slack has ended."""
    _pass_over(keys, tuple(_NOT_NEEDED))
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


def _write_keywords(keys: Keys) -> list[str]:
    told = {}
    for name, command in _COMMANDS.items():
        word = keys.text(name)
        if word and not _WORD.fullmatch(word):
            keys.pass_over(name, f"the bot's word for it stays {command}: a keyword is one word")
        elif word.lower() not in {"", command}:
            told[word.lower()] = command
    return ["    keywords:", *(f"      {_quote(word)}: {command}" for word, command in told.items())] if told else []


def write_reports(keys: Keys) -> list[str]:
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


def _translate(text: str, keys: Keys) -> str:
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


def _is_set(keys: Keys, name: str) -> bool:
    """Not where it holds what the example has in place of a secret, such as `your BOT token`."""
    text = keys.text(name)
    return bool(text) and not any(sign in text for sign in "< >")


def _pass_over(keys: Keys, names: tuple[str, ...], reason: str = "") -> None:
    for name in names:
        if name in keys:
            keys.pass_over(name, reason or _NOT_NEEDED[name])


def _quote(text: str) -> str:
    """A text of YAML, which takes what JSON writes."""
    return json.dumps(text, ensure_ascii=False)
