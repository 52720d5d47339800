"""Which configuration file counts: the first that exists, and the one that was asked for must exist."""

from collections.abc import Mapping
from pathlib import Path

from gpudeck.config.mistakes import ConfigMistakes, Mistake

FILE_NAME = "gpudeck.yaml"
VARIABLE = "GPUDECK_CONFIG"


def find_config(
    explicit: str | Path | None,
    environ: Mapping[str, str],
    cwd: Path | None,
    home: Path | None,
    etc: Path = Path("/etc"),
) -> Path | None:
    """The file to load, or None when there is none anywhere: then every setting has its default.

    `explicit` is what `--config` names; it and `$GPUDECK_CONFIG` (empty means unset) may be relative to `cwd`.
    A working directory that was deleted and a user without a home (None) are passed over. Raises ConfigMistakes when
    a file was asked for in one of these ways and is not there.
    """
    if explicit is not None:
        return _demand(_expand(explicit, cwd, home), "--config")
    if environ.get(VARIABLE):
        return _demand(_expand(environ[VARIABLE], cwd, home), f"${VARIABLE}")
    candidates = [cwd, home and home / ".config" / "gpudeck", etc / "gpudeck"]
    files = (folder / FILE_NAME for folder in candidates if folder is not None)
    return next(filter(_is_file, files), None)


def _expand(path: str | Path, cwd: Path | None, home: Path | None) -> Path:
    """The whole path, with a leading `~` replaced: no shell does that for a service's environment."""
    first, *rest = Path(path).parts or (".",)
    expanded = home.joinpath(*rest) if first == "~" and home is not None else Path(path)
    return expanded if cwd is None else cwd / expanded


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
