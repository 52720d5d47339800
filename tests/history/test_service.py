"""The history of a hub that cannot be opened, and then can."""

import asyncio
from pathlib import Path

import pytest

from fakes.waiting import wait_until
from gpudeck.fleet.hub import Hub
from gpudeck.history import service as history
from gpudeck.history.service import HistoryService
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.model.event import Event


def test_history_that_fails_is_reported_when_it_begins_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RETRY_SECONDS", 0.01)
    (tmp_path / "history.db").mkdir()
    events: list[Event] = []
    hub = Hub()
    service = HistoryService(hub, HistorySettings(), UsageSettings(), tmp_path, add_event=events.append)
    store = service.store
    assert store is not None
    wait_until(lambda: store.problem is not None, "a problem")
    for _ in range(3):
        service.on_second()
    assert [event.kind for event in events] == ["history_problem"]
    assert hub.fleet.problems == [store.problem]
    assert service.trouble is not None
    (tmp_path / "history.db").rmdir()
    wait_until(lambda: store.problem is None, "a history")
    for _ in range(3):
        service.on_second()
    assert [event.kind for event in events] == ["history_problem", "history_recovered"]
    assert (hub.fleet.problems, service.trouble) == ([], None)
    asyncio.run(service.close())
