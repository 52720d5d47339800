import asyncio
from pathlib import Path

import msgspec

from fakes.reports import make_envelope
from fakes.waiting import wait_until
from gpudeck.app.history import Archive
from gpudeck.history.embedded.reader import view_file
from gpudeck.history.settings import DEMO_FILE, FILE, HistorySettings, UsageSettings
from gpudeck.hub.hub import Hub


def hosts_in(path: Path) -> list[str]:
    if not path.exists():
        return []
    with view_file(path) as view:
        return [host.name for host in view.hosts().values()]


def test_last_samples_of_a_demo_are_not_among_the_real_ones(tmp_path: Path) -> None:
    async def work() -> None:
        hub = Hub(demo=True)
        archive = Archive(hub, HistorySettings(min_free=0), UsageSettings(), tmp_path, demo=1)
        hub.end_demo_on_first_real_report(archive.end_demo)
        simulated = msgspec.structs.replace(make_envelope("simulated"), simulated=True)
        assert archive.store is not None
        await asyncio.to_thread(archive.store.wait)
        hub.ingest.take_fetched(simulated, via="push", target="simulated")
        hub.ingest.take_fetched(make_envelope("real"), via="ssh", target="real")
        archive.tick()
        await asyncio.to_thread(archive.store.wait)
        await asyncio.to_thread(
            wait_until, lambda: hosts_in(tmp_path / DEMO_FILE.format(1)), "the demo's file is written"
        )
        await archive.close()

    asyncio.run(work())
    assert hosts_in(tmp_path / FILE) == ["real"]
    assert hosts_in(tmp_path / DEMO_FILE.format(1)) == ["simulated"]
