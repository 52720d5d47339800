"""A fleet's document as structs: read once, and used by all that show it."""

from typing import NamedTuple

import msgspec

from gpudeck.model.view import Fleet


class Reading(NamedTuple):
    """A fleet, or what of it was asked for, and its whole document as the hub sent it: programs get that."""

    fleet: Fleet
    document: bytes


_DECODER = msgspec.json.Decoder(Fleet)


def read_fleet(document: bytes) -> Fleet:
    """What this version does not know is left out, what the document does not have gets its default. Raises
    msgspec.DecodeError where a value does not fit."""
    return _DECODER.decode(document)
