"""The envelope: who sends a report, when, and where it stands in the order of that sender's reports.

Version 1 grows by optional fields only: a reader ignores fields it does not know, so an older hub takes a newer agent's
reports and the other way round. Whatever an old reader would misunderstand needs version 2.
"""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.report import Report, Word

VERSION = 1

# A bare $ would let a last line break through.
HOST_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$(?!\n)"
HostName = Annotated[str, Meta(max_length=253, pattern=HOST_NAME)]


class Envelope(Struct, frozen=True, omit_defaults=True):
    """One report on its way.

    Reports of one agent are ordered by `sequence` within (`boot_id`, `run_id`), never by clock: `run_id` is new each
    time the agent starts. `collected_at` is the agent's clock. `host_id` outlives renames (the machine id); without one
    the name is the identity. `simulated` reports are taken by a demo hub only.
    """

    version: Annotated[int, Meta(ge=1)]
    host: HostName
    boot_id: Word
    sequence: Annotated[int, Meta(ge=0, lt=2**53)]
    collected_at: Annotated[float, Meta(ge=0, le=1e11)]
    interval_seconds: Annotated[float, Meta(gt=0, le=86_400)]
    report: Report
    run_id: Annotated[str, Meta(max_length=64)] = ""
    host_id: Annotated[str, Meta(max_length=128)] = ""
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    simulated: bool = False
