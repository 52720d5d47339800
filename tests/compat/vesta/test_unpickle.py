"""Pickles that were made to do harm: none of them does, and none takes more room than a good one."""

import bz2
import os
import pickle
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.vesta import make_post
from gpudeck.compat.vesta.import_database import MAX_UNPACKED, NotPlain, load_plain, read_blob
from gpudeck.compat.vesta.store import read_gpus


class Runs:
    """Runs a function of anybody's choice when it is unpickled by pickle itself."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_vesta_stored_is_read(protocol: int) -> None:
    post = make_post(2) | {"gpu:9": {"a": [1, -2, 3.5, True, None, "ü" * 300, 2**60]}}
    assert read_blob(bz2.compress(pickle.dumps(post, protocol))) == post


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, subprocess.Popen, eval, exec, print])
def test_nothing_is_run(tmp_path: Path, protocol: int, function: Any) -> None:
    harm = pickle.dumps({"gpu:0": Runs(function, f"touch {tmp_path}/harm")}, protocol)
    with pytest.raises(NotPlain):
        load_plain(harm)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "packed",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"Pid\n.",
        b"(i__main__\nX\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x05\x97.",
        b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b".",
        b"X" + struct.pack("<I", 2**32 - 1) + b".",
        b"I" + b"9" * 100_000 + b"\n.",
        b"L" + b"9" * 100_000 + b"L\n.",
        b"]",
        b"",
        b".",
        b"\x80\xff.",
        b"h\x00.",
        b"}]]s.",
        b"\xff" * 100,
    ],
)
def test_what_is_no_plain_value_is_refused(packed: bytes) -> None:
    with pytest.raises(NotPlain):
        load_plain(packed)


@pytest.mark.parametrize(
    "blob",
    [b"", b"junk", bz2.compress(b"x" * 100)[:-5], pickle.dumps({}), bz2.compress(b"\0" * (MAX_UNPACKED + 1))],
)
def test_what_is_not_packed_well_is_refused(blob: bytes) -> None:
    with pytest.raises(NotPlain):
        read_blob(blob)


def test_a_bomb_takes_no_more_room_than_a_good_one() -> None:
    bomb = bz2.compress(b"\0" * 100_000_000)
    announced = b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b"."
    tracemalloc.start()
    try:
        with pytest.raises(NotPlain):
            read_blob(bomb)
        with pytest.raises(NotPlain):
            load_plain(announced)
        assert tracemalloc.get_traced_memory()[1] < 40 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_keys_that_would_take_forever_to_hash_are_refused() -> None:
    key: Any = ()
    for _ in range(40):
        key = (key, key, key)
    packed = b"\x80\x02}" + pickle.dumps(key, 2)[2:-1] + b"K\x01s."
    with pytest.raises(NotPlain):
        load_plain(packed)


def test_values_that_hold_each_other_make_no_larger_report() -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(7):
        laughs = [laughs] * 100
    circle: dict[str, Any] = make_post(1)
    circle["gpu:0"]["processes"] = [circle] * 3
    for value in (circle, make_post(1, processes=laughs), make_post(1, uuid=laughs)):
        assert len(read_gpus(load_plain(pickle.dumps(value)), "gpu1").report.gpus or ()) == 1
