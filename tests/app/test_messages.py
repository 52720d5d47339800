"""Messages of a hub: what its hosts tell when a demo gives way to them."""

import asyncio
from pathlib import Path

from fakes.doors import make_auth
from gpudeck.alerts.notifiers.settings import Channel, NotifySettings
from gpudeck.alerts.notifiers.store import OutboxStore
from gpudeck.app.messages import Messages
from gpudeck.events.log import Events
from gpudeck.events.settings import EventSettings
from gpudeck.hub.hub import Hub
from gpudeck.model.event import make_event

TOLD = NotifySettings(channels={"ops": Channel("json://127.0.0.1:9/", events=["host_seen"])})


def test_what_the_first_real_hosts_tell_is_not_left_with_the_demo(tmp_path: Path) -> None:
    auth = make_auth(tmp_path)
    events = Events(auth.database, EventSettings())
    messages = Messages(Hub(), auth, TOLD, events, demo=6)

    async def live() -> list[int]:
        await messages.open()
        events.add(make_event(1_790_000_000.0, "host_seen", "demo01 reports for the first time", host="demo01"))
        messages.end_demo()
        events.add(make_event(1_790_000_000.1, "host_seen", "gpu01 reports for the first time", host="gpu01"))
        await messages.outbox.flush()
        return [await OutboxStore(auth.database, fleet).count_waiting("ops") for fleet in ("real", "demo-6")]

    assert asyncio.run(live()) == [1, 0]
