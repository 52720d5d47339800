"""How long a GPU has done no work, as far as its collector has watched: the same for every vendor."""

WORK_PERCENT = 5.0
"""Utilization from which on a GPU counts as working."""
WATCHED_SECONDS = 60.0
"""A longer gap between two readings was not watched: it does not count as idle time, nor does a jump of the clock."""


class IdleWatch:
    """Seconds without work by GPU, as far as they were watched."""

    def __init__(self) -> None:
        self._idle_seconds: dict[str, float] = {}
        self._read_at: dict[str, float] = {}

    def track(self, uuid: str, utilization_percent: float | None, now: float) -> float | None:
        """How long there was no work; None, and from the start again, where the utilization is unknown."""
        watched = min(max(0.0, now - self._read_at.get(uuid, now)), WATCHED_SECONDS)
        idle = 0.0
        if utilization_percent is not None and utilization_percent < WORK_PERCENT:
            idle = self._idle_seconds.get(uuid, 0.0) + watched
        self._idle_seconds[uuid], self._read_at[uuid] = idle, now
        return None if utilization_percent is None else round(idle, 1)
