"""The names of a hub's hosts for shells that complete them: kept for a minute, and silent when there is no hub."""

import contextlib
import hashlib
import os
import re
import threading
import time
from pathlib import Path

_KEPT = 60.0
_RETRY = 10.0
"""How soon a hub that was slow or away is asked again."""
_PATIENCE = 1.0
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""What every hub's names are made of. Whatever else an answer holds does not reach a shell."""


def find_names(hub: str) -> list[str]:
    """Never raises, never prints, and takes a second at most. Where the hub does not answer, the names that it told
    last."""
    file = _cache_file(hub)
    try:
        kept, age = file.read_text().split(), time.time() - file.stat().st_mtime
    except (OSError, UnicodeError):
        kept, age = [], _KEPT
    if 0 <= age < _KEPT:
        return kept
    told = _ask_in_time(hub)
    _keep(file, kept if told is None else told, 0.0 if told is not None else _KEPT - _RETRY)
    return kept if told is None else told


def _cache_file(hub: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "gpudeck" / f"hosts-{hashlib.sha256(hub.encode()).hexdigest()[:16]}"  # noqa: PTH111 - a home that cannot be found is no error here


def _ask_in_time(hub: str) -> list[str] | None:
    """In a thread that is left alone when it takes too long: looking up a name in the network knows no deadline."""
    told: list[list[str]] = []
    asking = threading.Thread(target=_ask, args=(hub, told), daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    return told[0] if told else None


def _ask(hub: str, told: list[list[str]]) -> None:
    from gpudeck.cli.asking import ask_fleet  # noqa: PLC0415 - what is kept needs no HTTP
    from gpudeck.model.errors import GpudeckError  # noqa: PLC0415 - the same

    try:
        names = [host.name for host in ask_fleet(hub).fleet.hosts]
    except GpudeckError:
        return
    told.append([name for name in names if _SAFE.fullmatch(name)])


def _keep(file: Path, names: list[str], age: float) -> None:
    """Another shell may read at the same time: the file is replaced as a whole."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new.touch(0o600)
        new.write_text("\n".join(names))
        os.utime(new, (time.time() - age, time.time() - age))
        new.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
