"""A matrix of readings as bytes and back: one metric of one host's hour, a row per GPU, a column per sample.

Values become integer multiples of their precision. A row becomes its first value and the differences between samples.
Numbers are split into planes of their first, second … bytes, and each plane is deflated separately. Unknown values are
a bit mask. Hours, quarter hours and journal entries are framed by `add_checksum`: version, CRC-32 and content.
"""

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from itertools import compress
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from gpudeck.model.catalog import Metric

MATRIX_VERSION: Final = 1
MAX_VALUES: Final = 1 << 22
"""Largest matrix that is written or read: twice the hour of 512 GPUs sampled each second."""

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]
_Whole = NDArray[np.int64]
_Unsigned = NDArray[np.uint64]

_NOTHING, _GAPS, _ONE_BASE, _ALL_VARY = 1, 2, 4, 8
_LARGEST: Final = 2.0**61
"""Differences of such numbers fit into 64 bits. Larger values are kept as unknown."""
_MIN_DEFLATED: Final = 24
"""Bytes: deflating less gains nothing."""
_SHORT: Final = 32
"""Bytes: a matrix of one value has fewer."""
_LEVEL: Final = 1
"""Of deflating: 6 takes a sixth longer for a whole hour and saves 4 % of its bytes."""
_Size = Annotated[int, Meta(ge=0, le=MAX_VALUES)]
_Planes = Annotated[list[bytes], Meta(max_length=8)]

_MAX_NAMES: Final = 1 << 16
"""Bytes that a list of names may have."""
# The deflater's dictionary for names. Never change it: every existing file needs it.
_WORDS: Final = msgspec.msgpack.encode(
    """
    utilization_percent memory_utilization_percent memory_used_bytes memory_total_bytes temperature_celsius
    power_watts power_limit_watts fan_percent clock_sm_mhz clock_memory_mhz encoder_percent decoder_percent
    memory_temperature_celsius performance_state throttled_power throttled_thermal throttled_hardware
    ecc_corrected_count ecc_uncorrected_count remapped_rows_count remapped_rows_pending nvlink_active_count
    nvlink_inactive_count energy_joules pcie_receive_bytes_per_second pcie_transmit_bytes_per_second cpu_percent
    cpu_count load_1m memory_used_bytes memory_total_bytes disk_used_bytes disk_total_bytes swap_used_bytes
    swap_total_bytes network_receive_bytes_per_second network_transmit_bytes_per_second uptime_seconds
    """.split()  # noqa: SIM905 - one name a line would be forty lines
)
_FINEST: Final = 1e-6
_UNZIGZAGGED: Final = bytes(((number >> 1) ^ -(number & 1)) & 255 for number in range(256))
"""For `bytes.translate`: the number of one byte, as a signed one."""


class Damaged(ValueError):
    """The bytes are not those that were written."""


class _PackedMatrix(Struct, array_like=True, frozen=True):
    """`precision` is in the short form. `varying` has one bit per row, `known` one bit per value."""

    precision: int | float
    rows: _Size
    samples: _Size
    flags: Annotated[int, Meta(ge=0, le=15)]
    bases: _Planes = field(default_factory=list)
    steps: _Planes = field(default_factory=list)
    varying: bytes = b""
    known: bytes = b""


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_PackedMatrix).decode
_FIRST: Final = bytes([MATRIX_VERSION])
_min, _max = np.minimum.reduce, np.maximum.reduce
_NO_ENDS: Final = np.array([np.nan, np.nan])


def encode_matrix(matrix: Floats, precision: float) -> bytes:
    """`matrix` is (rows, samples) with NaN for unknown. `decode_matrix` returns values within half a precision."""
    rows, samples = matrix.shape
    if rows * samples > MAX_VALUES:
        raise ValueError(f"a matrix of {rows} × {samples} is more than {MAX_VALUES} values")
    kept = short_precision(precision)
    shape = (kept, rows, samples)
    # NaN is what these are if any of them is, and no number is like it.
    ends = to_steps(np.array([_min(matrix, axis=None), _max(matrix, axis=None)]), kept) if matrix.size else _NO_ENDS
    low, high = ends.tolist()
    is_whole = -_LARGEST <= low <= high <= _LARGEST
    if is_whole and low == high:
        return _FIRST + _pack((*shape, _ONE_BASE, _pack_base(int(low))))
    scaled = to_steps(matrix, kept)
    if is_whole:
        return _FIRST + _pack((*shape, *_pack_rows(scaled.astype(np.int64))))
    known = np.abs(scaled) <= _LARGEST
    if not known.any():
        return _FIRST + _pack((*shape, _NOTHING))
    flags, *parts = _pack_rows(_fill(scaled, known))
    gaps = _deflate(np.packbits(known, axis=1).tobytes())
    return _FIRST + _pack((*shape, flags | _GAPS, *parts, gaps))


def decode_matrix(blob: bytes) -> Floats:
    """The matrix with NaN for unknown. Raises Damaged for anything that `encode_matrix` did not make."""
    return _unpack_matrix(_open(blob))


def decode_columns(blobs: Sequence[bytes], places: Sequence[int]) -> tuple[Floats, list[int]]:
    """Decode one sample of every row of each matrix, and return the rows of all matrices in one array, with the number
    of rows of each. Same as `decode_matrix(blob)[:, place]` for each, but faster. Raises Damaged."""
    constants = [_read_constant(blob) if len(blob) <= _SHORT else None for blob in blobs]
    is_varying = [constant is None for constant in constants]
    packed = [_open(blob) for blob in compress(blobs, is_varying)]
    rest = iter(packed)
    shapes = [constant or ((one := next(rest)).rows, one.samples, math.nan) for constant in constants]
    for (_, samples, _), place in zip(shapes, places, strict=True):
        if not 0 <= place < samples:
            raise Damaged(f"a matrix of {samples} samples has none at {place}")
    rows = [count for count, _, _ in shapes]
    values: Floats = np.repeat([value for _, _, value in shapes], rows)
    values[np.repeat(is_varying, rows)] = _unpack_columns(packed, list(compress(places, is_varying)))
    return values, rows


@lru_cache(maxsize=8192)
def _read_constant(blob: bytes) -> tuple[int, int, float] | None:
    """Rows, samples and value of a matrix that has a single value; None for other matrices. Many hosts share the bytes
    of metrics that never change, hence the cache. Raises Damaged."""
    packed = _open(blob)
    if packed.flags & _NOTHING:
        return packed.rows, packed.samples, math.nan
    if packed.steps or packed.flags & _GAPS or not packed.flags & _ONE_BASE:
        return None
    return packed.rows, packed.samples, float(from_steps(np.array([_one_base(packed)]), packed.precision)[0])


def is_constant(blob: bytes) -> bool:
    """Whether all samples of a matrix equal the first one. Raises Damaged."""
    packed = _open(blob)
    return not packed.steps and not packed.flags & _GAPS


def _open(blob: bytes) -> _PackedMatrix:
    try:
        if blob[:1] != _FIRST:
            raise Damaged(
                f"version {blob[0] if blob else None} of a matrix; this release reads version {MATRIX_VERSION}"
            )
        packed = _unpack(memoryview(blob)[1:])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Damaged(f"the bytes of a matrix are damaged: {error}") from error
    if packed.rows * packed.samples > MAX_VALUES:
        raise Damaged(f"a matrix of {packed.rows} × {packed.samples} is larger than any that was written")
    return packed


def read_matrix(blob: bytes, rows: int, columns: int) -> Floats:
    matrix = decode_matrix(blob)
    if matrix.shape != (rows, columns):
        raise Damaged(f"a table is {matrix.shape[0]} × {matrix.shape[1]} and not {rows} × {columns}")
    return matrix


def full_precision(short: float) -> float:
    """The inverse of `short_precision`. Raises Damaged for invalid values."""
    if not 1e-9 <= abs(short) <= 1e18:
        raise Damaged(f"a precision of {short} is none")
    return -1.0 / short if short < 0 else float(short)


@cache
def short_precision(precision: float) -> int | float:
    """The form in which a precision is stored: an int if it is whole, and a negative int for a fraction: -10 is a
    tenth."""
    if not 1e-9 <= precision <= 1e18:
        raise ValueError(f"a precision of {precision} is none")
    parts = round(1 / precision)
    if precision < 1 and 1 / parts == precision:
        return -parts
    return int(precision) if precision == int(precision) else float(precision)


def to_steps(values: Floats, short: float) -> Floats:
    if short == 1:
        return np.rint(values)
    with np.errstate(over="ignore"):
        return np.rint(values * -short if short < 0 else values / short)


def from_steps(steps: NDArray[Any], short: "float | Floats") -> Floats:
    """Fractions are divided by their denominator, which is exact: 3 x 0.1 is not 0.3. `short` may be an array with one
    precision per value."""
    if isinstance(short, np.ndarray):
        for one in set(short.tolist()):
            full_precision(one)
        return np.where(short < 0, steps / -short, steps * short)
    precision = full_precision(short)
    values: Floats = np.divide(steps, float(-short)) if short < 0 else np.multiply(steps, precision)
    return values


def _fill(scaled: Floats, known: Flags) -> _Whole:
    """Replace unknown values by the one before (leading ones by the first known one), which costs the fewest bytes."""
    first = known.argmax(axis=1)[:, np.newaxis]
    before = np.where(known, np.arange(known.shape[1]), first)
    filled = np.take_along_axis(scaled, np.maximum.accumulate(before, axis=1), axis=1)
    return np.where(known.any(axis=1, keepdims=True), filled, 0).astype(np.int64)


def _pack_rows(whole: _Whole) -> tuple[int, list[bytes], list[bytes], bytes]:
    steps = whole[:, 1:] - whole[:, :-1]
    varying = steps.any(axis=1)
    flags, bits = _ALL_VARY, b""
    if not varying.any():
        return (*_pack_bases(whole[:, 0].copy()), [], b"")
    if not varying.all():
        flags, bits, steps = 0, np.packbits(varying).tobytes(), steps[varying]
    base_flag, packed_bases = _pack_bases(whole[:, 0].copy())
    return flags | base_flag, packed_bases, _pack_planes(_zigzag(steps)), bits


def _pack_bases(bases: _Whole) -> tuple[int, list[bytes]]:
    """Changes `bases`. They are stored as differences between rows, which are often small."""
    if (bases == bases[0]).all():
        return _ONE_BASE, _pack_base(int(bases[0]))
    bases[1:] -= bases[:-1].copy()
    return 0, _pack_planes(_zigzag(bases))


def _pack_base(base: int) -> list[bytes]:
    number = base << 1 if base >= 0 else ~(base << 1)
    return [bytes([octet]) for octet in number.to_bytes((number.bit_length() + 7) // 8, "little")]


def _zigzag(signed: _Whole) -> _Unsigned:
    """Maps 0, -1, 1, -2 … to 0, 1, 2, 3 …, so that small numbers of either sign need few bytes."""
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def _unzigzag(numbers: NDArray[Any]) -> NDArray[Any]:
    signed = (numbers >> 1) ^ (0 - (numbers & 1))
    return signed.view(f"i{numbers.itemsize}")


def _octets(numbers: _Unsigned) -> Bytes:
    width = (int(numbers.max(initial=0)).bit_length() + 7) // 8
    little = np.ascontiguousarray(numbers.ravel(), dtype="<u8")
    return little.view(np.uint8).reshape(-1, 8)[:, :width]


def _pack_planes(numbers: _Unsigned) -> list[bytes]:
    octets = _octets(numbers)
    return [_deflate(octets[:, plane].tobytes()) for plane in range(octets.shape[1])]


def _deflate(plain: bytes) -> bytes:
    """Returns `plain` itself if deflating gains nothing. Z_FILTERED suits small numbers with some order; if hardly
    anything repeats, searching for repetitions takes twice as long as Z_RLE."""
    if len(plain) < _MIN_DEFLATED:
        return plain
    strategy = zlib.Z_RLE if 10 * plain.count(0) < len(plain) else zlib.Z_FILTERED
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15, 8, strategy)
    packed = deflater.compress(plain) + deflater.flush()
    return packed if len(packed) < len(plain) else plain


def _inflate(packed: bytes, size: int) -> bytes:
    if len(packed) == size:
        return packed
    inflater = zlib.decompressobj(-15)
    try:
        plain = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise Damaged(f"the bytes of a matrix are damaged: {error}") from error
    if len(plain) != size or not inflater.eof or inflater.unused_data:
        raise Damaged(f"a plane of {len(packed)} bytes does not hold {size} values")
    return plain


def _unpack_planes(planes: list[bytes], count: int) -> NDArray[Any]:
    """Unsigned numbers of the narrowest type that fits: half of the time of a read is spent on what follows."""
    if len(planes) == 1:
        return np.frombuffer(_inflate(planes[0], count), dtype=np.uint8)
    width = 1 << max(0, len(planes) - 1).bit_length()
    octets: Bytes = np.zeros((count, width), dtype=np.uint8)
    for place, plane in enumerate(planes):
        octets[:, place] = np.frombuffer(_inflate(plane, count), dtype=np.uint8)
    return octets.view(f"<u{width}").ravel()


def _unpack_signed(planes: list[bytes], count: int) -> NDArray[Any]:
    if len(planes) == 1:
        return np.frombuffer(_inflate(planes[0], count).translate(_UNZIGZAGGED), dtype=np.int8)
    return _unzigzag(_unpack_planes(planes, count))


def _unpack_matrix(packed: _PackedMatrix) -> Floats:
    shape = packed.rows, packed.samples
    if packed.flags & _NOTHING or 0 in shape:
        return np.full(shape, np.nan)
    bases = _unpack_bases(packed)
    if packed.steps:
        whole = np.empty(shape, dtype=np.int64)
        _unpack_rows(packed, bases, whole)
        matrix = from_steps(whole, packed.precision)
    else:
        matrix = np.repeat(from_steps(bases, packed.precision), packed.samples).reshape(shape)
    if packed.flags & _GAPS:
        width = (packed.samples + 7) // 8
        bits = np.frombuffer(_inflate(packed.known, packed.rows * width), dtype=np.uint8).reshape(packed.rows, width)
        matrix[np.unpackbits(bits, axis=1, count=packed.samples) == 0] = np.nan
    return matrix


def _unpack_columns(matrices: Sequence[_PackedMatrix], places: Sequence[int]) -> Floats:
    """All matrices together: a numpy call costs more than the eight numbers of a typical host."""
    if any(one.flags & _NOTHING for one in matrices):
        raise Damaged("a matrix without values has some")
    owner = np.repeat(np.arange(len(matrices)), [one.rows for one in matrices])
    whole = _join_bases(matrices, owner)
    _add_steps(whole, matrices, places)
    values = from_steps(whole, np.array([one.precision for one in matrices], np.float64)[owner])
    if any(one.flags & _GAPS for one in matrices):
        bits = b"".join(map(_known_bits, matrices, places))
        masks = np.array([0x80 >> place % 8 for place in places], np.uint8)
        values[(np.frombuffer(bits, np.uint8) & masks[owner]) == 0] = np.nan
    return values


def _known_bits(packed: _PackedMatrix, place: int) -> bytes:
    if not packed.flags & _GAPS:
        return b"\xff" * packed.rows
    width = (packed.samples + 7) // 8
    return _inflate(packed.known, packed.rows * width)[place // 8 :: width]


def _join_bases(matrices: Sequence[_PackedMatrix], owner: _Whole) -> _Whole:
    planes = [[] if one.flags & _ONE_BASE else one.bases for one in matrices]
    signed = _unzigzag(_join_planes(planes, [one.rows for one in matrices]))
    sums = np.cumsum(signed)
    # Each matrix begins anew.
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    whole: _Whole = sums - np.repeat(sums[first] - signed[first], np.diff(first, append=len(owner)))
    alone = [_one_base(one) if one.flags & _ONE_BASE else 0 for one in matrices]
    whole += np.array(alone, np.int64)[owner]
    return whole


def _add_steps(whole: _Whole, matrices: Sequence[_PackedMatrix], places: Sequence[int]) -> None:
    varying = [
        b"\x00" * one.rows
        if not one.steps
        else b"\x01" * one.rows
        if one.flags & _ALL_VARY
        else _unpack_varying(one).tobytes()
        for one in matrices
    ]
    is_varying = np.frombuffer(b"".join(varying), np.bool_)
    counts = [flags.count(1) for flags in varying]
    sums = (_sum_steps(*of) for of in zip(matrices, counts, places, strict=True) if of[1])
    whole[is_varying] += np.concatenate([np.empty(0, np.int64), *sums])


def _sum_steps(packed: _PackedMatrix, count: int, place: int) -> _Whole:
    width = packed.samples - 1
    signed = _unpack_signed(packed.steps, count * width)
    sums: _Whole = np.add.reduce(signed.reshape(count, width)[:, :place], axis=1, dtype=np.int64)
    return sums


def _join_planes(all_planes: Sequence[list[bytes]], counts: Sequence[int]) -> _Unsigned:
    octets: Bytes = np.zeros((sum(counts), 8), dtype=np.uint8)
    for place in range(max(map(len, all_planes), default=0)):
        plane = b"".join(
            [
                _inflate(planes[place], count) if place < len(planes) else bytes(count)
                for planes, count in zip(all_planes, counts, strict=True)
            ]
        )
        octets[:, place] = np.frombuffer(plane, np.uint8)
    return octets.view("<u8").ravel()


def _unpack_bases(packed: _PackedMatrix) -> _Whole:
    if packed.flags & _ONE_BASE:
        return np.full(packed.rows, _one_base(packed), dtype=np.int64)
    return _unpack_signed(packed.bases, packed.rows).cumsum(dtype=np.int64)


def _one_base(packed: _PackedMatrix) -> int:
    number = int.from_bytes(b"".join(packed.bases), "little") if max(map(len, packed.bases), default=1) == 1 else -1
    if not 0 <= number < 1 << 64:
        raise Damaged("the one base of all rows is none")
    return (number >> 1) ^ -(number & 1)


def _unpack_rows(packed: _PackedMatrix, bases: _Whole, whole: _Whole) -> None:
    rows, samples = whole.shape
    if packed.flags & _ALL_VARY:
        count, some, varying = rows, whole, None
    else:
        varying = _unpack_varying(packed)
        count = int(np.count_nonzero(varying))
        some = np.empty((count, samples), dtype=np.int64)
    first = bases[:, None] if varying is None else bases[varying, None]
    some[:, :1] = first
    some[:, 1:] = _unpack_signed(packed.steps, count * (samples - 1)).reshape(count, samples - 1)
    np.cumsum(some, axis=1, out=some)
    if varying is not None:
        whole[:] = bases[:, None]
        whole[varying] = some


def _unpack_varying(packed: _PackedMatrix) -> Flags:
    if len(packed.varying) != (packed.rows + 7) // 8:
        raise Damaged(f"{len(packed.varying)} bytes do not say which of {packed.rows} rows change")
    return np.unpackbits(np.frombuffer(packed.varying, dtype=np.uint8), count=packed.rows).view(np.bool_)


def add_checksum(version: int, content: bytes) -> bytes:
    return bytes([version]) + zlib.crc32(content).to_bytes(4, "big") + content


def strip_checksum(version: int, body: bytes) -> memoryview:
    """The content. Raises Damaged if the checksum does not match."""
    if not isinstance(body, bytes):
        raise Damaged("they are no bytes any more")
    if len(body) < 5 or body[0] != version:
        raise Damaged(f"version {body[0] if body else None}; this release reads version {version}")
    content = memoryview(body)[5:]
    if zlib.crc32(content) != int.from_bytes(body[1:5], "big"):
        raise Damaged("the checksum does not fit: the bytes have changed since they were written")
    return content


@lru_cache(maxsize=64)
def pack_names(names: tuple[str, ...]) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, _WORDS)
    return deflater.compress(msgspec.msgpack.encode(names)) + deflater.flush()


@lru_cache(maxsize=64)
def unpack_names(packed: bytes) -> tuple[str, ...]:
    """The inverse of `pack_names`. Raises Damaged."""
    inflater = zlib.decompressobj(-15, _WORDS)
    try:
        plain = inflater.decompress(packed, _MAX_NAMES)
        return msgspec.msgpack.decode(plain, type=tuple[str, ...])
    except (msgspec.DecodeError, zlib.error) as error:
        raise Damaged(f"names cannot be read: {error}") from error


def split_wanted(wanted: Collection[str] | None, names: Sequence[str], prefix: str = "") -> list[int]:
    if wanted is None:
        return list(range(len(names)))
    return [place for place, name in enumerate(names) if prefix + name in wanted]


def find_precision(catalog: Mapping[str, Metric], name: str) -> float:
    """The catalog's precision. Metrics of newer releases, which are not in the catalog, get a finer one than any
    there."""
    metric = catalog.get(name)
    return _FINEST if metric is None else metric.precision
