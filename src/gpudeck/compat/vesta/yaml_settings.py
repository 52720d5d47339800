"""vesta's settings, a YAML file with keys in upper case, as a piece of gpudeck.yaml."""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from gpudeck.compat.importing import Left, Plan, read_small_file
from gpudeck.compat.vesta.valid_network import read_networks
from gpudeck.model.errors import UsageError

_LOOK: Final = "It is a YAML file with keys such as TOKEN, PORT_NUM and DB_NAME: example/local_settings.yaml shows all."
_KNOWN: Final = frozenset(
    (
        *("IP", "PORT_NUM", "TOKEN", "BIND_HOST", "VALID_NETWORK", "DB_NAME", "DB_DIR", "TIMESTAMP_FORMAT"),
        *("PAGE_PER_HOST_NUM", "TERM_WIDTH", "SORT_BY", "SLACK_WEBHOOK", "SLACK_BOT_TOKEN"),
        *("SLACK_BOT_POST_CHANNEL", "DOWN_TH", "SAVE_INTERVAL"),
    )
)
_LOCAL: Final = "[127.0.0.1]"
_NETWORKS: Final = (
    r"networks such as 192.0.2.0/24, or the numbers of an address such as 192\.0\.2\.\d+, from the first on"
)
_SLACK: Final = ("SLACK_WEBHOOK", "SLACK_BOT_TOKEN", "SLACK_BOT_POST_CHANNEL")


class _Keys:
    """The keys of the file: what is taken is taken once, and what is wrong is told with its line."""

    def __init__(self, values: dict[str, Any], lines: dict[str, int], plan: Plan) -> None:
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
        except (ValueError, TypeError):
            self._plan.left.append(Left(f"line {self._lines[name]}", f"{name} has to be {expected}"))
            return None


def read_settings(file: Path) -> Plan:
    """Raises UsageError for what is no settings file of vesta."""
    plan = Plan()
    values, lines = _load(file)
    if not values.keys() & _KNOWN:
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    for name, value in values.items():
        if name not in _KNOWN and not isinstance(value, dict):
            plan.left.append(Left(f"line {lines[name]}", f"{name[:40]!r} is no setting of vesta's server"))
    keys = _Keys(values, lines, plan)
    plan.settings = _write(keys)
    plan.notes = _advise(keys, values, restricts_readers="read_from:" in plan.settings)
    if "PAGE_PER_HOST_NUM" in keys:
        plan.over.append(Left(f"line {lines['PAGE_PER_HOST_NUM']}", "PAGE_PER_HOST_NUM: the page shows all hosts"))
    return plan


def _load(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        content = read_small_file(file)
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        values = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{place}: this is no YAML.", _LOOK) from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in root.value}
    return {str(name): value for name, value in values.items()}, lines


def _write(keys: _Keys) -> str:
    """Secrets are not shown: they are written over by hand."""
    token = "# the TOKEN of the file" if "TOKEN" in keys else "# the file has no TOKEN: its senders bring 0000"
    vesta = {
        "read_from": _write_readers(keys),
        "down_after": keys.take("DOWN_TH", _seconds(1, 3600), "seconds, from 1 to 3600"),
        "timestamp_format": keys.take("TIMESTAMP_FORMAT", _word("MDY", "YMD", "DMY"), "MDY, YMD or DMY"),
        "sort_by": keys.take("SORT_BY", _word("name", "ip"), "name or ip"),
        "term_width": keys.take("TERM_WIDTH", _whole(60, 240), "a number from 60 to 240"),
    }
    lines = ["compat:", "  vesta:", f'    token: "…"  {token}']
    lines += [f"    {name}: {value}" for name, value in vesta.items() if value is not None]
    host = keys.take("BIND_HOST", _read_address, "an address")
    port = keys.take("PORT_NUM", _whole(1, 65535), "a port")
    if port is not None or host is not None:
        lines += [
            f"listen: {host or ''}:{port or 8080}".replace("0.0.0.0:", ":"),
            "read: open  # as there: everybody who can reach it may look",
        ]
    every = keys.take("SAVE_INTERVAL", _seconds(1, 300), "seconds, from 1 to 300")
    if every is not None:
        lines += ["history:", f"  every: {every}"]
    return "\n".join(lines) + "\n"


def _write_readers(keys: _Keys) -> str | None:
    """Who may read. Where that is not known nobody else than this machine may; senders are heard from everywhere."""
    if "VALID_NETWORK" not in keys:
        return f"{_LOCAL}  # vesta's default; unless its command line has --valid_network"
    found = keys.take("VALID_NETWORK", _read_networks, _NETWORKS)
    return f"{_LOCAL}  # write the networks of VALID_NETWORK here" if found is None else found or None


def _advise(keys: _Keys, values: dict[str, Any], *, restricts_readers: bool) -> list[str]:
    notes = []
    folder, name = values.get("DB_DIR") or "data", values.get("DB_NAME") or "gpu_states.db"
    if ("DB_NAME" in keys or "DB_DIR" in keys) and isinstance(folder, str) and isinstance(name, str):
        place = Path(folder) / name
        notes.append(f"Then import its database: gpudeck import vesta {place}")
    if restricts_readers:
        notes.append(
            "read_from restricts /states/ and the text view, as VALID_NETWORK did. The page and the API follow `read`: "
            "with `read: login` they need an account."
        )
    if any(name in keys for name in _SLACK):
        notes.append("What it tells Slack is set up with the hub's alerts: see docs/migrate/vesta.md.")
    return notes


def _check_flat(value: Any) -> Any:
    """Raises ValueError for lists within lists: a few lines of YAML make millions of them."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        raise ValueError
    return value


def _read_networks(value: Any) -> str:
    found = read_networks(map(str, value) if isinstance(value, list) else str(value))
    words = (f'"{one}"' if ":" in one else one for one in found)
    return f"[{', '.join(words)}]" if found else ""


def _read_address(value: Any) -> str:
    found = ipaddress.ip_address(str(value))
    return f"[{found}]" if found.version == 6 else str(found)


def _word(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        return words[words.index(str(value))]

    return read


def _whole(low: int, high: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        number = int(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return str(number)

    return read


def _seconds(low: int, high: int) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        number = float(value)
        if isinstance(value, bool) or not low <= number <= high:
            raise ValueError
        return f"{number:g}s"

    return read
