"""What keeps a database from answering, in words for whoever runs the hub."""

from msgspec import Struct


class Trouble(Struct, frozen=True):
    """`reason` goes on after the name of the database: "is locked by another process"; `next_step` is a sentence."""

    reason: str
    next_step: str
