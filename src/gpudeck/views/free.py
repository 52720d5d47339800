"""GPUs that could be used now as a table, in the order in which they fit."""

from collections.abc import Sequence

from gpudeck.model.quantity import show_gib
from gpudeck.model.wanted import OfferedGpu
from gpudeck.views.safe import clean
from gpudeck.views.table import Column, render

_COLUMNS = (
    Column("HOST", 5),
    Column("GPU", 4, "right"),
    Column("MODEL", 2),
    Column("GiB", 3, "right"),
    Column("UUID", 1, widest=48),
)


def render_free(gpus: Sequence[OfferedGpu], *, width: int | None = None, colour: bool = False) -> str:
    """Ends in a newline."""
    rows = [
        [(clean(text), "") for text in (gpu.host, gpu.label, gpu.display_name, _gib(gpu), gpu.uuid)] for gpu in gpus
    ]
    return "\n".join(render(_COLUMNS, rows, width, colour)) + "\n"


def _gib(gpu: OfferedGpu) -> str:
    return show_gib(gpu.memory_total_bytes, 0)
