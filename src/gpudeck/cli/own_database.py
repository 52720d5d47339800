"""What commands share that work on the database of this machine's hub."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpudeck.model.errors import UsageError

if TYPE_CHECKING:
    from gpudeck.database.engine import Database

_T = TypeVar("_T")


@contextlib.contextmanager
def need_hub(what: str) -> Iterator[None]:
    """For imports of the hub's parts. Raises UsageError where they are not installed: `what` are made where it runs."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"the hub's parts are not installed ({error.name}), and {what} are made where the hub runs.",
            "Install gpudeck with its hub extra: pip install '<where gpudeck came from>[hub]'.",
        ) from error


def use_database(config: Path | None, what: str, work: "Callable[[Database], Awaitable[_T]]") -> _T:
    """Do something with it. Raises UsageError where the hub is not installed: `what` are made where it runs."""
    with need_hub(what):
        from gpudeck.ops import own_database  # noqa: PLC0415 - the hub may not be installed
    return own_database.use_database(config, work)
