"""vesta's settings, a YAML file with keys in upper case, as a piece of gpudeck.yaml."""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from gpudeck.compat.importing import Left, Plan, read_small_file
from gpudeck.compat.vesta.slack_settings import SLACK_KEYS, write_chat, write_notify, write_reports
from gpudeck.compat.vesta.valid_network import read_networks
from gpudeck.compat.vesta.yaml_keys import Keys
from gpudeck.model.errors import UsageError

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
_BY_ADDRESS: Final = ("ip", "ipaddress", "ip_address", "address")
_LONGEST_INTERVAL: Final = 300


def read_settings(file: Path) -> Plan:
    """Raises UsageError for what is no settings file of vesta."""
    plan = Plan()
    values, lines = _load(file)
    if not values.keys() & (_TAKEN | _NOT_NEEDED.keys() | SLACK_KEYS):
        raise UsageError(f"{file} is no settings file of vesta.", _LOOK)
    keys = Keys(values, lines, plan)
    for name, value in values.items():
        if name in _NOT_NEEDED:
            keys.pass_over(name, _NOT_NEEDED[name])
        elif name not in _TAKEN | SLACK_KEYS and not isinstance(value, dict):
            plan.left.append(Left(f"line {lines[name]}", f"{name[:40]!r} is no setting of vesta's server"))
    plan.settings = "\n".join([*_write_vesta(keys), *_write_hub(keys), *write_notify(keys), *write_chat(keys)]) + "\n"
    plan.over.sort(key=lambda left: int(left.place.removeprefix("line ")))
    plan.notes = _advise(values, restricts_readers="read_from:" in plan.settings) + write_reports(keys)
    plan.notes += [_ALONE] if "/32" in plan.settings.replace("127.0.0.1/32", "") else []
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


def _write_vesta(keys: Keys) -> list[str]:
    """Secrets are not shown: they are written over by hand. What is not set has vesta's defaults here too."""
    which = "the TOKEN of the file" if "TOKEN" in keys else "the file has no TOKEN: its senders bring 0000"
    if "TOKEN" in keys and not keys.text("TOKEN"):
        which = "the one that you give to the senders"
        keys.refuse("TOKEN", _TAKES_ALL)
    vesta = {
        "read_from": _write_readers(keys),
        "down_after": keys.take("DOWN_TH", _seconds(1, 3600), "seconds, from 1 to 3600"),
        "timestamp_format": keys.take("TIMESTAMP_FORMAT", _read_format, "MDY, YMD or DMY"),
        "sort_by": keys.take("SORT_BY", _read_order, "name or ip"),
        "term_width": keys.take("TERM_WIDTH", _whole(60, 240), "a number from 60 to 240"),
    }
    lines = ["compat:", "  vesta:", f'    token: "…"  # {which}']
    return lines + [f"    {name}: {value}" for name, value in vesta.items() if value is not None]


def _write_readers(keys: Keys) -> str | None:
    """Who may read. Where that is not known nobody else than this machine may; senders are heard from everywhere."""
    if "VALID_NETWORK" not in keys:
        return f"{_LOCAL}  # vesta's default; unless its command line has --valid_network"
    found = keys.take("VALID_NETWORK", _read_networks, _NETWORKS)
    return f"{_LOCAL}  # write the networks of VALID_NETWORK here" if found is None else found or None


def _write_hub(keys: Keys) -> list[str]:
    host = keys.take("BIND_HOST", _read_address, "an address")
    port = keys.take("PORT_NUM", _whole(1, 65535), "a port")
    lines = [
        f"listen: {host or ''}:{port or 8080}".replace("0.0.0.0:", ":"),
        "read: open  # everybody who can reach the hub can read the page; with login: who has an account",
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


def _read_format(value: Any) -> str:
    return _word("MDY", "YMD", "DMY")(str(value).upper())


def _read_order(value: Any) -> str:
    word = str(value).lower()
    return "ip" if word in _BY_ADDRESS else _word("name")(word)


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
