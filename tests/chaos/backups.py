"""Backups of a real hub's folder whose configuration grows by 512 bytes each time: every one is restored."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.figures import Outcome, at_most, holds, took
from chaos.hosts import reporting
from chaos.hub import chaos_hub
from fakes.waiting import wait_until
from gpudeck.model.errors import GpudeckError
from gpudeck.ops.backup import make_backup, restore

_BLOCK = 512


def run(folder: Path, *, seed: int, short: bool, kills: int) -> Outcome:
    del seed, kills
    count = 24 if short else 100
    outcome = Outcome(f"{count} backups")
    with chaos_hub(folder) as hub:
        hub.start()
        with reporting(hub.port, hub.token, 2) as fleet:
            wait_until(lambda: fleet.seconds() > 3, "some history", 60)
        hub.stop()
        failed, changed, times = [], 0, []
        with _data_folder(hub.data_dir):
            config = hub.config.read_text()
            for number in range(count):
                hub.config.write_text(config + "#" * (_BLOCK * number + number % 7) + "\n")
                archive = folder / f"backup-{number}.tar.gz"
                begun = time.monotonic()
                try:
                    before = (hub.data_dir / "gpudeck.db").read_bytes()
                    make_backup(archive, hub.config)
                    aside = restore(archive, hub.config).aside
                    if aside is not None:
                        shutil.rmtree(aside)
                    changed += (hub.data_dir / "gpudeck.db").stat().st_size < len(before) // 2
                except GpudeckError as error:
                    failed.append(f"backup {number}: {error}")
                times.append(time.monotonic() - begun)
                archive.unlink(missing_ok=True)
        hub.config.write_text(config)
        samples = hub.samples(fleet.epoch - 60, time.time() + 60)
        hub.start()
        starts = hub.is_running()
        hub.stop()
    outcome.figures = [
        at_most("backups that cannot be restored", len(failed), 0),
        at_most("lost: databases that shrank", changed, 0),
        holds("the history is there after all of them", len(samples) > 0),
        holds("the hub starts from the last one", starts),
        took("a backup and its restore", times),
    ]
    outcome.notes = failed[:3]
    return outcome


@contextlib.contextmanager
def _data_folder(data_dir: Path) -> Iterator[None]:
    """As the environment of a hub names it."""
    before = os.environ.get("GPUDECK_DATA_DIR")
    os.environ["GPUDECK_DATA_DIR"] = str(data_dir)
    try:
        yield
    finally:
        del os.environ["GPUDECK_DATA_DIR"]
        if before is not None:
            os.environ["GPUDECK_DATA_DIR"] = before
