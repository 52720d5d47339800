"""Which configuration file counts: the first that exists, and the one that was asked for must exist."""

from collections.abc import Mapping
from pathlib import Path

from gpudeck.config.mistakes import ConfigMistakes, Mistake

FILE_NAME = "gpudeck.yaml"
VARIABLE = "GPUDECK_CONFIG"


def find_config(
    explicit: str | Path | None, environ: Mapping[str, str], cwd: Path, home: Path, etc: Path = Path("/etc")
) -> Path | None:
    """The file to load, or None when there is none anywhere: then every setting has its default.

    `explicit` is what `--config` names; it and `$GPUDECK_CONFIG` (empty means unset) may be relative to `cwd`. Raises
    ConfigMistakes when a file was asked for in one of these ways and is not there.
    """
    if explicit is not None:
        return _demand(cwd / _expand(explicit, home), "--config")
    if environ.get(VARIABLE):
        return _demand(cwd / _expand(environ[VARIABLE], home), f"${VARIABLE}")
    candidates = [cwd, home / ".config" / "gpudeck", etc / "gpudeck"]
    return next((folder / FILE_NAME for folder in candidates if _is_file(folder / FILE_NAME)), None)


def _expand(path: str | Path, home: Path) -> Path:
    """The path with a leading `~` replaced: no shell does that for a service's environment."""
    first, *rest = Path(path).parts or (".",)
    return home.joinpath(*rest) if first == "~" else Path(path)


def _demand(path: Path, asked_by: str) -> Path:
    if _is_file(path):
        return path
    problem = "no such file, or its folder may not be read"
    raise ConfigMistakes([Mistake(str(path), None, None, "", problem, suggestion=f"{asked_by} names it")])


def _is_file(path: Path) -> bool:
    """False also where the folder may not be looked into: somebody else's home must not hide the next place."""
    try:
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):
        return False
