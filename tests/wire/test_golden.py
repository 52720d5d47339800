"""Version 1 as it was first sent: these files never change. A reader that fails here breaks agents in the field."""

from pathlib import Path

import msgspec
import pytest

from gpudeck.wire import Envelope, decode

GOLDEN = Path(__file__).parent.parent / "captures" / "wire-v1"


@pytest.mark.parametrize("name", ["full", "least"])
def test_json_of_version_1_is_still_read(name: str) -> None:
    body = (GOLDEN / f"{name}.json").read_bytes()
    document = msgspec.json.decode(body)
    envelope = decode(body, "application/json")
    assert msgspec.to_builtins(envelope) == document


@pytest.mark.parametrize("name", ["full", "least"])
def test_packed_version_1_is_the_same_envelope(name: str) -> None:
    packed = decode((GOLDEN / f"{name}.msgpack.zst").read_bytes(), "application/msgpack", "zstd")
    assert packed == msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Envelope)
