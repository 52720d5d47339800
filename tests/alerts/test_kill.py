"""A real hub that is killed in the middle of telling: nothing is told twice, and nothing is lost."""

import contextlib
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from alerts import quick
from fakes.hubs import HubProcess
from fakes.waiting import wait_until

CONFIG = """    gpu_idle: {enabled: false}
notify:
  demo: true
  channels:
    nobody: json://127.0.0.1:9/
  routes:
    - to: [nobody]
"""
RULES = {"gpu_lost", "ecc", "orphaned_memory", "disk_full", "gpu_hot"}


class Killable:
    """A hub with the simulated lab, and its database as others see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rules = quick.choose_rules()
        self.rules = RULES if rules == quick.RULES else RULES - {"gpu_lost"}
        (folder / "gpudeck.yaml").write_text(rules + CONFIG)

    def start(self) -> HubProcess:
        arguments = [
            "--listen",
            "127.0.0.1:0",
            "--demo",
            str(quick.HOSTS),
            "--config",
            str(self.folder / "gpudeck.yaml"),
        ]
        return HubProcess(self.folder, arguments)

    def kill(self, hub: HubProcess) -> None:
        """With its agent: nobody says goodbye."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hub.process.pid, signal.SIGKILL)
        hub.stop(signal.SIGKILL)

    def ask(self, question: str) -> list[tuple[str, ...]]:
        with contextlib.closing(sqlite3.connect(self.folder / "gpudeck.db", timeout=10)) as database:
            return database.execute(question).fetchall()

    def count(self, table: str) -> int:
        return len(self.ask(f"SELECT 1 FROM {table}"))

    def told(self) -> Counter[str]:
        """Rules, each as often as a message to the channel is about it."""
        return Counter(msgspec.json.decode(body)["rule"] for (body,) in self.ask("SELECT message FROM outbox"))


@pytest.mark.slow
def test_hub_that_is_killed_tells_everything_once(tmp_path: Path) -> None:
    lab = Killable(tmp_path)
    hub = lab.start()
    wait_until(lambda: lab.count("alerts") > 0, "an alert", 60)
    lab.kill(hub)
    for messages in (1, 2):
        hub = lab.start()
        wait_until(lambda messages=messages: lab.count("outbox") >= messages, "a message", 60)
        lab.kill(hub)
    hub = lab.start()
    try:
        wait_until(lambda: lab.told().keys() == lab.rules, "the rest of the messages", 60)
        fired = {name for (name,) in lab.ask("SELECT rule FROM alerts WHERE state = 'firing'")}
    finally:
        lab.kill(hub)
    assert fired == lab.rules
    assert lab.told() == Counter(lab.rules)
    assert len(lab.ask("SELECT id FROM alerts")) == len(lab.rules)
