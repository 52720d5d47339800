"""A hub with a configuration of its own, what it says of its hosts, and every status that they have had."""

import contextlib
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from fakes.hubs import HubProcess
from fakes.net import Machine
from fakes.waiting import wait_until

QUICK: dict[str, Any] = {
    "demo": "never",
    "local": "never",
    "fleet": {"down_after": "5s"},
    "pull": {"interval": "1s", "deadline": "2s"},
    "ssh": {"interval": "1s", "deadline": "3s", "config_file": "/dev/null", "agent": False},
    "scrape": {"interval": "1s", "deadline": "2s"},
}
"""A hub that reads its hosts each second: one is late after 3 seconds of silence, and down after 5."""
RETURN_SECONDS = 15.0 + 10.0
"""A host that is back is up again within the poller's longest pause and one deadline; the rest is for slow machines."""


class Hub(HubProcess):
    """A hub that is asked in words. One in a network of its own is gone to by whoever asks it."""

    def __init__(self, folder: Path, arguments: Sequence[str], place: Machine | None = None) -> None:
        self._there = place.network if place else contextlib.nullcontext
        with self._there():
            super().__init__(folder, arguments, is_forked=place is None)

    def get(self, path: str) -> bytes:
        with self._there():
            return super().get(path)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """By name; fails where two have the same."""
        hosts = json.loads(self.get("/api/v1/hosts"))["hosts"]
        named = {host["name"]: host for host in hosts}
        assert len(named) == len(hosts), [host["name"] for host in hosts]
        return named

    def statuses(self) -> dict[str, str]:
        return {name: host["status"] for name, host in self.hosts().items()}

    def problems_of(self, name: str) -> str:
        """All in one; none of a host that is not there."""
        return "; ".join(self.hosts().get(name, {"problems": ()})["problems"])

    def wait_for(self, status: str, *names: str, seconds: float = 30.0) -> None:
        """Until all of these hosts have that status."""
        try:
            wait_until(lambda: {self.statuses().get(name) for name in names} == {status}, f"{status}", seconds)
        except AssertionError as error:
            now = {name: (host["status"], host["problems"]) for name, host in self.hosts().items()}
            raise AssertionError(f"{error}: {now}") from None

    def add(self, name: str, **reach: Any) -> None:
        """Watch a host from now on, as the page does it."""
        body = json.dumps({"name": name, "address": "127.0.0.1"} | reach).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/hosts", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()


class Seen:
    """What the hub says of each host as time goes by, without repeats: its statuses, and when its reports came.

    A host that is no longer there has the status `gone`.
    """

    def __init__(self, hub: Hub) -> None:
        self.statuses: dict[str, list[str]] = {}
        self.reports: dict[str, list[float]] = {}
        self._hub = hub
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="seen")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._look()

    def gaps(self, name: str) -> list[float]:
        """Seconds between one report of a host and the next."""
        times = self.reports[name]
        return [after - before for before, after in itertools.pairwise(times)]

    def _keep_looking(self) -> None:
        while not self._stop.wait(0.1):
            self._look()

    def _look(self) -> None:
        hosts = self._hub.hosts()
        for name, host in hosts.items():
            _append_new(self.statuses.setdefault(name, []), host["status"])
            _append_new(self.reports.setdefault(name, []), host["last_report_at"])
        for name in self.statuses.keys() - hosts.keys():
            _append_new(self.statuses[name], "gone")


def _append_new(seen: list[Any], value: Any) -> None:
    if not seen or seen[-1] != value:
        seen.append(value)


@contextlib.contextmanager
def watched(hub: Hub) -> Iterator[Seen]:
    seen = Seen(hub)
    try:
        yield seen
    finally:
        seen.close()


@contextlib.contextmanager
def hub_with(folder: Path, settings: dict[str, Any], place: Machine | None = None) -> Iterator[Hub]:
    """A hub that is ended at the end."""
    hub = start_hub(folder, settings, place=place)
    try:
        yield hub
    finally:
        hub.stop()


def start_hub(folder: Path, settings: dict[str, Any], listen: str = "127.0.0.1:0", place: Machine | None = None) -> Hub:
    """A hub with `QUICK` and these settings, sections put together. Its folder is its data folder and its home.

    `place` is the machine in whose network it runs, if not in that of the tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    together = {name: _merge(QUICK.get(name), settings.get(name)) for name in QUICK.keys() | settings.keys()}
    # Tests look far more often than people do, and all from one address.
    together.setdefault("limits", {"unlimited": ["127.0.0.0/8", "10.0.0.0/8"]})
    # All hosts are on this machine: those that are added or discovered need a word of the operator.
    together["discovery"] = {"allow_addresses": ["127.0.0.0/8"]} | together.get("discovery", {})
    (folder / "gpudeck.yaml").write_text(yaml.safe_dump(together))
    return Hub(folder, ["--config", "gpudeck.yaml", "--listen", listen], place)


def _merge(usual: Any, given: Any) -> Any:
    return usual | given if isinstance(usual, dict) and isinstance(given, dict) else usual if given is None else given
