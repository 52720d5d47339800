"""A report on its way: its bytes, and when it was made by two clocks."""

from msgspec import Struct


class Moment(Struct, frozen=True, gc=False):
    """When a report was made. `wall` is what the report itself says (`collected_at`), and may be wrong or set later.
    `boottime` tells how long it has waited all the same; None for a report of an earlier boot."""

    wall: float | None = None
    boottime: float | None = None

    def sent_at(self, wall: float, boottime: float) -> float:
        """What `Gpudeck-Sent-At` says at a moment of both clocks: `collected_at` and the time that has passed since,
        however the wall clock was set meanwhile. Only for an earlier boot the wall clock has to do."""
        if self.wall is None:
            return wall
        if self.boottime is not None and boottime >= self.boottime:
            return self.wall + boottime - self.boottime
        return max(wall, self.wall)


class Parcel(Struct, frozen=True):
    """One encoded envelope and the host it is about.

    `short` is the same as a short report, for a hub that has taken a whole one with that `description`. It is empty
    where there is none, and not kept on disk.
    """

    host: str
    body: bytes
    made: Moment = Moment()
    description: str = ""
    short: bytes = b""
