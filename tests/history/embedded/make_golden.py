"""Writes golden/history-v1.db once: a file of this version, that all later ones have to read. Run it for a new version
only, under its own name."""

import sqlite3
import sys
import time
from pathlib import Path

from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.settings import HistorySettings
from history.embedded.feeding import START, busy_hour, gpu, process, sample


def main(path: Path) -> None:
    clock = [START]
    store = EmbeddedStore(path, HistorySettings(min_free=0), lambda: clock[0])
    store.take(busy_hour()[::12])
    store.take(
        [sample(START + n * 120, gpu("GPU-b-0", process(8, "bob", memory=None)), host="gpu02") for n in range(30)]
    )
    store.flush()
    clock[0] += 7200
    while store.stats().parts["journal"]:
        time.sleep(0.1)
    # This one stays in the journal.
    store.take([sample(START + 7000, gpu("GPU-gpu01-0", process(9, "carol")), interval=120)])
    store.flush()
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
