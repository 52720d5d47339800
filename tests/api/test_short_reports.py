"""Agents and hubs of neighbouring versions over real HTTP: no report is lost, whichever of them is the older one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.api_app import AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_gpu
from fakes.serving import serving
from gpudeck.agent.outbox import Outbox
from gpudeck.agent.push import Sender
from gpudeck.agent.run import Reporter
from gpudeck.fleet.hub import Hub
from gpudeck.model.report import JobCgroup, Report
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.asgi import App, Message, Receive, Scope, Send, send_error
from gpudeck.server.connections import ConnectionLimiter
from gpudeck.wire import ShortReport, decode_any


class Machine:
    """A collector of which nothing but a temperature changes, and the driver when a test says so."""

    name = "machine"

    def __init__(self) -> None:
        self.celsius, self.driver = 30, "570.1"
        self.cgroups: list[JobCgroup] = []

    def collect(self, _: float) -> Report:
        self.celsius += 1
        gpus = [make_gpu(metrics={"temperature_celsius": self.celsius})]
        return Report(gpus=gpus, metrics={"cpu_percent": 1.5}, driver_version=self.driver, job_cgroups=self.cgroups)

    def close(self) -> None:
        pass


class Address:
    """Where a hub is served, which may be another one later. `asked` are the forms of the reports that came, `is_older`
    makes it one that knows nothing of short reports."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_older = False
        self.start_hub()

    def start_hub(self) -> None:
        self.hub = Hub(now=FakeClock())
        self._app: App = make_app(self.hub)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await receive()
        is_short = isinstance(decode_any(body["body"], encoding="zstd"), ShortReport)
        self.asked.append("short" if is_short else "whole")
        if self.is_older and is_short:
            told = "the report is of wire version 2, this hub reads up to 1"
            await send_error(send, 400, "unsupported_version", told, "Upgrade the hub before its agents.")
            return

        async def answer(message: Message) -> None:
            if self.is_older and "headers" in message:
                message["headers"] = [one for one in message["headers"] if one[0] != b"gpudeck-wire-version"]
            await send(message)

        async def receive_again() -> Message:
            return body

        await self._app(scope, receive_again, answer)

    def shown(self) -> tuple[int, str]:
        (host,) = self.hub.fleet.hosts.values()
        self.hub.fleet.settle()
        return int(host.gpus["GPU-0"].value("temperature_celsius") or 0), host.facts.driver_version or ""


class Agent:
    """Sends one report when it is told to."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.machine = Machine()
        self.outbox = Outbox(1000, 1_000_000)
        self._reporter = Reporter("gpu01", "machine-1", lambda _: "boot", self.machine)
        self.sender = Sender(self.outbox, url, token_file, pace=0.0)

    def report(self) -> None:
        parcel = self._reporter.report(1_790_000_000.0, 2.0)
        assert parcel is not None
        self.outbox.put(parcel)
        assert self.sender.send_next(0) is not None


@pytest.fixture
def address() -> Address:
    return Address()


@pytest.fixture
def agent(address: Address, tmp_path: Path) -> Iterator[Agent]:
    token_file = tmp_path / "token"
    token_file.write_text(AGENT_TOKEN)
    with serving(ConnectionLimiter(LimitsSettings()), address) as port:
        made = Agent(f"http://127.0.0.1:{port}", token_file)
        yield made
        made.sender.close()


def test_hub_and_agent_of_today_send_text_only_when_it_changes(address: Address, agent: Agent) -> None:
    for driver in ("570.1", "570.1", "570.1", "580.2", "580.2"):
        agent.machine.driver = driver
        agent.report()
        assert address.shown() == (agent.machine.celsius, driver)
    assert address.asked == ["whole", "short", "short", "whole", "short"]
    assert address.hub.fleet.counters["reports_taken"] == 5
    assert len(agent.outbox) == 0


def test_cgroups_of_jobs_are_in_short_reports_when_they_were_just_read(address: Address, agent: Agent) -> None:
    seen = []
    for read_at in (None, 10.0, 10.0, 40.0):
        if read_at is None or [one.read_at for one in agent.machine.cgroups] != [read_at]:
            agent.machine.cgroups = [] if read_at is None else [JobCgroup("7", read_at, 60.0)]
        before = [host.job_cgroups for host in address.hub.fleet.hosts.values()]
        agent.report()
        (host,) = address.hub.fleet.hosts.values()
        seen.append(([one.read_at for one in host.job_cgroups], [host.job_cgroups] == before))
    assert address.asked == ["whole", "short", "short", "short"]
    assert seen == [([], False), ([10.0], False), ([10.0], True), ([40.0], False)]


def test_hub_that_is_replaced_by_an_older_one_and_back_takes_every_report(address: Address, agent: Agent) -> None:
    def kinds(count: int) -> list[str]:
        address.asked.clear()
        for _ in range(count):
            agent.report()
            assert address.shown()[0] == agent.machine.celsius
            assert len(agent.outbox) == 0
        return list(address.asked)

    address.is_older = True
    assert kinds(3) == ["whole"] * 3
    address.is_older = False
    assert kinds(3) == ["whole", "short", "short"]
    address.start_hub()
    assert kinds(2) == ["short", "whole", "short"]
    assert address.hub.fleet.counters["refused_description_needed"] == 1
    address.hub.fleet.remove("machine-1")
    assert kinds(2) == ["short", "whole", "short"]
    address.is_older = True
    assert kinds(3) == ["short", "whole", "whole", "whole"]
