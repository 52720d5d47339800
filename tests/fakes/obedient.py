"""A collector for tests of child processes."""

import os
import signal

from gpudeck.collectors.base import CollectorSettings
from gpudeck.model.errors import Absent
from gpudeck.model.report import Report


class Obedient:
    """A collector that does what its settings say, in place of names of display servers."""

    name = "obedient"

    def __init__(self, settings: CollectorSettings) -> None:
        self._order = settings.display_servers[0]

    def collect(self, now: float) -> Report:
        orders = {"report": self._report, "print": self._print, "hang": signal.pause, "crash": self._crash}
        return orders.get(self._order, self._refuse)() or Report(driver_version=f"{now}")

    def close(self) -> None: ...

    def _report(self) -> None: ...

    def _print(self) -> None:
        os.write(1, b"noise")

    def _crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _refuse(self) -> None:
        raise {"absent": Absent("nothing here", "look")}.get(self._order, ValueError("a bug"))
