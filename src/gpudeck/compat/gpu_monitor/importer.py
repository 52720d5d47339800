"""What gpu-monitor keeps: bookings in comments.json, names in index.php or hosts.json, and the folder of files."""

import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpudeck.compat.gpu_monitor.comments import plan_bookings
from gpudeck.compat.importing import Here, ImportPlan, Left, read_small_file
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.model.errors import UsageError

_ARRAY = r"\${}\s*=\s*(?:array\s*\(|\[)(.*?)(?:\)|\])\s*;"
_COMMENT = re.compile(r"""("(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?)|//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
_STRING = r"""(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)')"""
_PAIR = re.compile(rf"{_STRING}\s*=>\s*{_STRING}")
_COMMENTS = "comments.json"
_HOSTS = "hosts.json"
_LONGEST = 64


def read_names(text: str, variable: str) -> dict[str, str] | None:
    """The pairs of an array of strings, such as `$HOSTS = array("gpu1" => "Big one");`. None where there is none.
    Nothing is run: what is no string is passed over."""
    plain = _COMMENT.sub(lambda found: found[1] or "", text)
    found = re.search(_ARRAY.format(variable), plain, re.DOTALL)
    if found is None:
        return None
    pairs = _PAIR.findall(found[1])
    return {_unescape(one or other): _unescape(double or single) for one, other, double, single in pairs}


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def read(file: Path, here: Here) -> ImportPlan:
    """The plan of a comments.json, a hosts.json, an index.php, or the folder of data files. Raises UsageError for
    anything else."""
    plan = ImportPlan()
    if file.is_dir():
        _read_folder(file, here, plan)
        return plan
    content = read_small_file(file)
    if file.suffix == ".php" or content.lstrip()[:5].lower() in {b"<?php", b"<!doc", b"<html"}:
        _read_page(content.decode(errors="replace"), file, plan)
    elif (names := _read_hosts(content)) is not None:
        plan.settings = _write(_name_hosts(names, plan))
    else:
        plan_bookings(content, str(file), here, plan)
    return plan


def _read_folder(folder: Path, here: Here, plan: ImportPlan) -> None:
    names = sorted(path.name.removesuffix("_gpus.csv") for path in folder.glob("*_gpus.csv"))
    comments = folder / _COMMENTS
    if not names and not comments.exists():
        raise UsageError(f"{folder} has no file *_gpus.csv and no {_COMMENTS}.", "Give the `data` folder of its page.")
    plan.left += [Left(quote(name), "is no name of a host") for name in names if not is_host_name(name)]
    hosts = folder / _HOSTS
    shown = _name_hosts(_read_hosts(read_small_file(hosts)) or {}, plan) if hosts.exists() else {}
    if names:
        plan.settings = _write({"compat": {"gpu_monitor": {"folder": str(folder.resolve())}}} | shown)
        plan.notes.append(f"With these lines and a restart {len(names)} host(s) are read out of that folder.")
    if comments.exists():
        plan_bookings(read_small_file(comments), str(comments), here, plan)


def _read_hosts(content: bytes) -> dict[str, str] | None:
    """What its page shows for each host, as fetch_stats.py writes it into hosts.json; None for another file."""
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _name_hosts(names: dict[str, str], plan: ImportPlan) -> dict[str, Any]:
    chosen = _choose(_HOSTS, names, plan)
    return {"names": {"hosts": chosen}} if chosen else {}


def _read_page(text: str, file: Path, plan: ImportPlan) -> None:
    hosts, models = read_names(text, "HOSTS"), read_names(text, "SHORT_GPU_NAMES")
    if hosts is None and models is None:
        raise UsageError(f"{file} sets neither $HOSTS nor $SHORT_GPU_NAMES: it is no index.php of gpu-monitor.")
    names = {"hosts": _choose("$HOSTS", hosts or {}, plan), "models": _choose("$SHORT_GPU_NAMES", models or {}, plan)}
    if told := {key: pairs for key, pairs in names.items() if pairs}:
        plan.settings = _write({"names": told})


def _choose(variable: str, pairs: dict[str, str], plan: ImportPlan) -> dict[str, str]:
    """Those that a name can be. One that is the same as before says nothing."""
    chosen = {}
    for key, shown in pairs.items():
        if not shown or len(shown) > _LONGEST or not shown.isprintable():
            reason = f"{quote(shown)} cannot be shown: that is 1 to {_LONGEST} characters"
            plan.left.append(Left(f"{variable}, {quote(key)}", reason))
        elif key != shown:
            chosen[key] = shown
    return chosen


def _write(settings: dict[str, Any]) -> str:
    return "" if not settings else yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
