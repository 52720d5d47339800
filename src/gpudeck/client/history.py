"""A metric over time, as arrays: of the standard library, numpy, pandas or polars, whichever is installed. Unknown
values are NaN, never zero."""

from array import array
from datetime import datetime, timezone
from importlib import import_module
from math import nan
from typing import Any, Final

from gpudeck.model.errors import UsageError
from gpudeck.model.history import Answer, Series

COLUMNS: Final = ("time", "mean", "min", "max")
"""Of a point: when its step begins (Unix seconds), the mean over it, the smallest and the largest value."""


class History(Answer):
    """The answer of the hub: `series` has one for each GPU, user, … that was asked for. `step` is in seconds."""

    def to_arrays(self) -> dict[str, dict[str, "array[float]"]]:
        """By the name of each series its columns, see `COLUMNS`, as arrays of floats."""
        return {name_of(one): _columns(one) for one in self.series}

    def to_numpy(self) -> dict[str, dict[str, Any]]:
        """The same as numpy arrays. Raises UsageError where numpy is not installed."""
        numpy = _load("numpy")
        return {
            name: {column: numpy.frombuffer(values, dtype=float) for column, values in columns.items()}
            for name, columns in self.to_arrays().items()
        }

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each point of each series; `time` is in UTC. Raises UsageError where pandas is not
        installed."""
        pandas = _load("pandas")
        table = pandas.DataFrame(self._table())
        table["time"] = pandas.to_datetime(table["time"].astype(float), unit="s", utc=True)
        return table

    def to_polars(self) -> Any:
        """A DataFrame of polars, as `to_pandas`, with null for unknown values. Raises UsageError where polars is not
        installed."""
        polars = _load("polars")
        table = self._table()
        times = [datetime.fromtimestamp(at, timezone.utc) for at in table["time"]]
        return polars.DataFrame(table | {"time": times}).with_columns(polars.col(COLUMNS[1:]).fill_nan(None))

    def _table(self) -> dict[str, Any]:
        named = [(name_of(one), _columns(one)) for one in self.series]
        table: dict[str, Any] = {"series": [name for name, columns in named for _ in columns["time"]]}
        return table | {
            column: array("d", (value for _, columns in named for value in columns[column])) for column in COLUMNS
        }


def name_of(series: Series) -> str:
    """The UUID of a GPU, the id of a host, the name of a user, `run 12`, or `fleet`. Two of them where a host or a GPU
    was split, and `unknown` for users who are not known."""
    run = None if series.run is None else f"run {series.run}"
    names = [name for name in (series.host, series.gpu, series.user, run, "fleet" if series.fleet else None) if name]
    return " ".join(names) or "unknown"


def _columns(series: Series) -> dict[str, "array[float]"]:
    return {
        column: array("d", (nan if point[at] is None else point[at] for point in series.points))  # type: ignore[misc]
        for at, column in enumerate(COLUMNS)
    }


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed.", f"Install it, or use to_arrays(): pip install {name}") from error
