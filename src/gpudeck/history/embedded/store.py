"""The embedded store: what the hub holds on to."""

from collections.abc import Callable
from pathlib import Path

from gpudeck.history import answers
from gpudeck.history.base import (
    Answer,
    Ask,
    Heat,
    HeatAsk,
    Run,
    Runs,
    RunsAsk,
    Stats,
    UsageAsk,
)
from gpudeck.history.embedded.reader import Reader
from gpudeck.history.embedded.runs import find_run, find_runs
from gpudeck.history.embedded.writer import Writer
from gpudeck.history.sample import HostSample
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.history.usage import usage
from gpudeck.model import clock
from gpudeck.model.retention import RetentionClock
from gpudeck.model.usage import Usage

_FEW_SAMPLES = 2_000
_FEW_HOURS = 200


class EmbeddedStore:
    """`history.base.Store` in one file. Questions may be asked from any thread.

    `keep_samples` is False beside another store that has them: then sums and runs alone are kept. `find_group` tells
    the group of a login. `retention` is the time by which old data are deleted.
    """

    def __init__(
        self,
        path: Path,
        settings: HistorySettings | None = None,
        now: clock.Clock = clock.wall,
        *,
        prices: UsageSettings | None = None,
        find_group: Callable[[str], str | None] = lambda _: None,
        keep_samples: bool = True,
        retention: RetentionClock | None = None,
    ) -> None:
        self.path = path
        self._now = now
        self._prices = prices or UsageSettings()
        self._find_group = find_group
        self._writer = Writer(path, settings or HistorySettings(), now, keep_samples=keep_samples, retention=retention)
        self._reader = Reader(self._writer)

    @property
    def waiting(self) -> int:
        """Samples taken that are not on the disk yet."""
        return self._writer.waiting

    @property
    def dropped(self) -> int:
        """Samples that could not be kept."""
        return self._writer.dropped

    @property
    def has_room(self) -> bool:
        """Whether it keeps up: few samples wait to be written, and few hours that are over wait to be sealed."""
        return (
            self._writer.waiting < _FEW_SAMPLES and len(self._writer.tails) < len(self._writer.keys.hosts) + _FEW_HOURS
        )

    @property
    def newest(self) -> float | None:
        """When the newest sample was taken; None while there is none."""
        # Not those of a clock that was ahead.
        now = self._now()
        lasts = [min(host.last, now) for host in list(self._writer.keys.by_key.values())]
        return max(lasts, default=None)

    @property
    def problem(self) -> str | None:
        return self._writer.problem

    @property
    def damage(self) -> str | None:
        """What of the past cannot be read, or was set aside, for whoever runs the hub."""
        return self._writer.set_aside or self._writer.damage.problem

    def take(self, samples: list[HostSample]) -> None:
        self._writer.take(samples)

    def flush(self, seconds: float = 60.0) -> bool:
        """Wait until everything taken so far is on the disk; False if that takes longer."""
        return self._writer.flush(seconds)

    def series(self, ask: Ask) -> Answer:
        with self._reader.view() as view:
            return answers.series(view, ask, self._now())

    def heat(self, ask: HeatAsk) -> Heat:
        with self._reader.view() as view:
            return answers.heat(view, ask, self._now())

    def usage(self, ask: UsageAsk) -> Usage:
        with self._reader.view() as view:
            return usage(view, ask, self._prices, self._find_group, self._now())

    def runs(self, ask: RunsAsk) -> Runs:
        with self._reader.view() as view:
            return find_runs(view, ask, self._now())

    def run(self, key: int) -> Run | None:
        with self._reader.view() as view:
            return find_run(view, key, self._now())

    def stats(self) -> Stats:
        writer = self._writer
        with self._reader.view() as view:
            parts = {
                name: int(view.connection.execute(f"SELECT total(length(body)) FROM {name}").fetchone()[0])  # noqa: S608
                for name in ("chunks", "quarters", "host_hours", "fleet_quarters", "journal")
            }
            hosts = view.hosts().values()
            oldest = min((host.first for host in hosts), default=None)
        return Stats(
            kind="embedded",
            size_bytes=file_size(self.path),
            samples_taken=writer.taken,
            samples_dropped=writer.dropped,
            samples_late=writer.late,
            rows=writer.rows,
            oldest=oldest,
            newest=self.newest,
            behind_seconds=0.0 if not writer.waiting else 1.0,
            parts=parts,
            problem=writer.problem,
        )

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


def file_size(path: Path) -> int:
    """With the log that SQLite keeps beside it."""
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
