"""Exports tables as CSV or Parquet. They are encoded part by part, so a table of any size needs little memory.
pyarrow is imported only for Parquet."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudeck.model.plugins import need
from gpudeck.views.csv import Value, write_csv

if TYPE_CHECKING:
    from gpudeck.history.codec import Floats

Format = Literal["csv", "parquet"]
Kind = Literal["text", "time", "number", "integer", "flag"]
Column = Sequence[Any] | NDArray[Any]
"""Values of one kind; None, or NaN in an array of numbers, is unknown. Times are Unix seconds."""
_ROWS_A_GROUP: Final = 131_072
"""Rows of a Parquet file that are compressed, and in memory, at once."""


class Field(NamedTuple):
    name: str
    kind: Kind = "text"


class CsvEncoder:
    """CSV with a header line. Times are in UTC; unknown values are empty."""

    media_type = "text/csv"

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._head = write_csv([[field.name for field in fields]])

    def add(self, columns: Sequence[Column]) -> bytes:
        if not columns or not len(columns[0]):
            return b""
        head, self._head = self._head, ""
        shown = [_show(column, field.kind) for column, field in zip(columns, self._fields, strict=True)]
        return (head + write_csv(zip(*shown, strict=True))).encode()

    def finish(self) -> bytes:
        return self._head.encode()


def _show(column: Column, kind: Kind) -> list[Value]:
    if kind == "time":
        times = np.array(column, dtype=np.float64)
        texts = np.datetime_as_string(np.round(times * 1000).astype("datetime64[ms]"), "ms").astype(object) + "Z"
        return _without_nan(texts, times)
    if isinstance(column, np.ndarray) and kind == "number":
        return _without_nan(np.round(column, 6).astype(object), column)
    return ["true" if value else "false" for value in column] if kind == "flag" else list(column)


def _without_nan(shown: NDArray[Any], numbers: "Floats") -> list[Value]:
    shown[np.isnan(numbers)] = None
    found: list[Value] = shown.tolist()
    return found


class ParquetEncoder:
    """Parquet, compressed with zstd. Times are timestamps in UTC."""

    media_type = "application/vnd.apache.parquet"

    def __init__(self, fields: Sequence[Field]) -> None:
        need("export", "writing Parquet")
        import pyarrow as pa  # noqa: PLC0415 - an extra, and 55 MB
        from pyarrow import parquet  # noqa: PLC0415 - the same

        kinds = {
            "text": pa.string(),
            "time": pa.timestamp("ms", "UTC"),
            "number": pa.float64(),
            "integer": pa.int64(),
            "flag": pa.bool_(),
        }
        self._pa = pa
        self._schema = pa.schema([(field.name, kinds[field.kind]) for field in fields])
        self._sink = _Sink()
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, columns: Sequence[Column]) -> bytes:
        if columns and len(columns[0]):
            made = [self._encode(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._waiting.append(self._pa.record_batch(made, schema=self._schema))
            self._rows += len(columns[0])
        if self._rows >= _ROWS_A_GROUP or not self._sink.is_begun:
            # The first at once: it tells how long the file will be.
            self._write()
        return self._sink.take()

    def finish(self) -> bytes:
        self._write()
        self._writer.close()
        return self._sink.take()

    def _encode(self, column: Column, kind: Any) -> Any:
        if self._pa.types.is_timestamp(kind):
            times = np.array(column, dtype=np.float64)
            moments = np.round(np.nan_to_num(times) * 1000).astype(np.int64)
            return self._pa.array(moments, mask=np.isnan(times)).cast(kind)
        return self._pa.array(column, type=kind, from_pandas=True)

    def _write(self) -> None:
        if self._rows:
            self._writer.write_table(self._pa.Table.from_batches(self._waiting), row_group_size=self._rows)
        self._waiting, self._rows = [], 0


TableEncoder = CsvEncoder | ParquetEncoder
"""The file of a table is the bytes of all `add` calls and of one final `finish`."""


def make_encoder(form: Format, fields: Sequence[Field]) -> TableEncoder:
    """Raises UsageError if the library for Parquet is not installed."""
    return CsvEncoder(fields) if form == "csv" else ParquetEncoder(fields)


class _Sink(io.RawIOBase):
    """A file whose bytes are removed while it is written: only its position grows."""

    def __init__(self) -> None:
        self._written = bytearray()
        self._position = 0

    @property
    def is_begun(self) -> bool:
        return self._position > len(b"PAR1")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._written += data
        self._position += size
        return size

    def take(self) -> bytes:
        made, self._written = bytes(self._written), bytearray()
        return made


def sample_fields(metrics: Sequence[str]) -> list[Field]:
    """The columns of samples. A row is a GPU at a moment."""
    texts = ("host", "gpu", "index", "model", "state", "users")
    return [
        Field("time", "time"),
        Field("unix_seconds", "number"),
        *map(Field, texts),
        *(Field(name, "number") for name in metrics),
    ]
