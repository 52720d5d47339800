"""Where `gpudeck show --html` puts its page: whole or not at all."""

import os
from pathlib import Path

from gpudeck.model.errors import GpudeckError, UsageError


def check_alone(form: str | None, *, detail: bool, watch: str | None) -> str:
    """The form of a page; raises UsageError beside options that make no sense with it."""
    others = [*([f"--{form}"] if form else []), *(["--detail"] if detail else []), *(["--watch"] if watch else [])]
    if others:
        raise UsageError(f"--html and {others[0]} exclude each other: a page is of one moment, with all details.")
    return "html"


def write_page(file: str, page: str) -> None:
    """Whoever reads the file meanwhile sees the page before or this one, never a part. Raises GpudeckError."""
    # What a link leads to is replaced, not the link.
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():
            target.write_text(page, encoding="utf-8")
        else:
            _replace(target, page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GpudeckError(
            f"{file} could not be written: {reason}.", "Give another file, or - for the output."
        ) from error


def _replace(target: Path, page: str) -> None:
    fresh = target.with_name(f".{target.name[:200]}.{os.getpid()}.new")
    try:
        fresh.write_text(page, encoding="utf-8")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
