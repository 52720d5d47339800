"""A hub that is away while the agent is killed, and comes back: what the agent had written arrives, each once."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.hubs import start
from fakes.moody_hub import MoodyHub
from fakes.ports import free_port
from fakes.waiting import wait_until
from gpudeck.agent.outbox import EncodedReport, Spool
from gpudeck.agent.run import open_outbox
from gpudeck.agent.settings import AgentSettings
from gpudeck.settings import Settings, choose_outbox_dir
from gpudeck.wire import Envelope, decode


@contextlib.contextmanager
def agent_until(folder: Path, port: int, number: int) -> Iterator[None]:
    """An agent that is ended by a signal, which it is given at the end of the block."""
    (folder / "token").write_text("token\n")
    arguments = ("--hub", f"http://127.0.0.1:{port}", "--token-file", "token", "--name", "gpu01", "--interval", "0.2s")
    agent = start(folder, "log", "agent", *arguments)
    try:
        yield
        agent.send_signal(number)
        agent.wait(20)
    finally:
        agent.kill()
        agent.communicate()


def waiting_in(folder: Path) -> list[Envelope]:
    """What an agent that has ended left on disk."""
    spool = Spool(folder / "outbox" / "gpu01.db", "")
    with contextlib.closing(spool):
        reports = [spool.read(one.spool_id or 0) for one in spool.open()]
    return [decode(report.body, encoding="zstd") for report in reports if report is not None]


def is_written(folder: Path) -> bool:
    file = folder / "outbox" / "gpu01.db"
    return file.exists() and file.stat().st_size > 20_000


def test_backlog_survives_a_killed_and_a_stopped_agent_and_arrives_once_the_newest_first(tmp_path: Path) -> None:
    port = free_port()
    with agent_until(tmp_path, port, signal.SIGKILL):
        wait_until(lambda: is_written(tmp_path), "the first batch on disk", seconds=40)
    killed = waiting_in(tmp_path)
    with agent_until(tmp_path, port, signal.SIGTERM):
        wait_until(lambda: (tmp_path / "log").read_text().count("does not answer") == 2, "a second agent's attempt")
    stopped = waiting_in(tmp_path)[len(killed) :]
    with contextlib.closing(MoodyHub(port)) as hub, agent_until(tmp_path, port, signal.SIGTERM):
        wait_until(lambda: not list(tmp_path.glob("outbox/*")), "the end of the backlog", seconds=40)
        arrived = [decode(body, encoding="zstd") for body in hub.taken]
    runs = list(dict.fromkeys(envelope.run_id for envelope in (*killed, *stopped)))
    assert (len(runs), len(killed) > 5, len(stopped) > 0) == (2, True, True)
    # An agent that has just started does not know whether the hub takes late reports: one goes out, then the newest.
    assert (arrived[0].run_id, arrived[0].sequence) == (runs[0], 1)
    assert arrived[1].run_id not in runs
    backlog = [envelope for envelope in arrived if envelope.run_id in runs]
    assert backlog == [*killed, *stopped]
    for run in runs:
        sequences = [envelope.sequence for envelope in backlog if envelope.run_id == run]
        assert sequences == list(range(1, len(sequences) + 1))


def test_reload_of_the_settings_keeps_what_waits_on_disk(tmp_path: Path) -> None:
    settings = AgentSettings(hub="http://127.0.0.1:1", outbox_dir=str(tmp_path))
    before = open_outbox(settings, "gpu01", None)
    before.put(EncodedReport("gpu01", b"report"))
    before.close()
    assert len(open_outbox(replace(settings, outbox_age=60.0), "gpu01", None)) == 1
    assert len(open_outbox(settings, "gpu02", None)) == 0


@pytest.mark.parametrize(("folder", "simulate"), [("none", None), (None, None), ("outbox", 5)])
def test_nothing_is_written_for_simulated_hosts_or_where_it_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None, simulate: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    outbox = open_outbox(AgentSettings(hub="http://127.0.0.1:1", outbox_dir=folder), "gpu01", simulate)
    outbox.put(EncodedReport("gpu01", b"report"))
    outbox.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("named", "chosen"),
    [(None, "/data/outbox"), ("none", "none"), ("/elsewhere", "/elsewhere"), ("~/box", "/home/box")],
)
def test_folder_is_below_the_data_folder_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str | None, chosen: str
) -> None:
    monkeypatch.setenv("GPUDECK_DATA_DIR", "/data")
    monkeypatch.setenv("HOME", "/home")
    assert choose_outbox_dir(Settings(agent=AgentSettings(outbox_dir=named))) == chosen
