"""Reloading the settings of a running hub: changes are applied, and those that need a restart are logged.

A file with a mistake changes nothing: the log and the page show it until the next valid file.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec
from msgspec import Struct

from gpudeck.agent.signals import ControllingTerminal, SystemdNotifier
from gpudeck.model.errors import UsageError
from gpudeck.settings import Settings

log = logging.getLogger(__name__)


class ReloadablePart(Struct, frozen=True):
    """Settings that can change while the hub runs, by their names in the file. `take` is called with all new settings
    if one of these changed."""

    names: tuple[str, ...]
    take: Callable[[Settings], Awaitable[None] | None]


class HubReload:
    """`read` reads the settings from the file and raises UsageError; `report_problem` shows a problem on the page, None
    clears it."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        parts: Sequence[ReloadablePart],
        *,
        supervisor: SystemdNotifier,
        report_problem: Callable[[str | None], None],
        note: Callable[[], Awaitable[None]],
    ) -> None:
        """`note` records that the settings in effect have changed."""
        self._current = settings
        self._read = read
        self._parts = parts
        self._supervisor = supervisor
        self._report_problem = report_problem
        self._note = note
        self._turn = asyncio.Lock()

    async def check(self) -> None:
        """Read the settings again and apply what can be applied. Failures are logged."""
        async with self._turn:
            self._supervisor.reloading()
            try:
                await self._take(self._read())
            except UsageError as error:
                self._refuse(error)
            except Exception:
                log.exception("the settings could not be read again")
            self._supervisor.ready()

    async def _take(self, wanted: Settings) -> None:
        changed = changed_names(self._current, wanted)
        for part in self._parts:
            if changed.intersection(part.names):
                self._current = msgspec.structs.replace(
                    self._current, **{name: getattr(wanted, name) for name in part.names}
                )
                if (taking := part.take(self._current)) is not None:
                    await taking
        self._report_problem(None)
        self._say(sorted(changed), sorted(changed_names(self._current, wanted)))
        if changed:
            await self._note()

    def _refuse(self, error: UsageError) -> None:
        told = f"the new settings cannot be used, the previous ones stay in effect: {error}"
        self._report_problem(f"{told.splitlines()[0]}; fix that and reload the hub again")
        log.error("%s", told)

    def _say(self, changed: list[str], waiting: list[str]) -> None:
        now = [name for name in changed if name not in waiting]
        if now:
            log.info("read the settings again: %s changed", ", ".join(now))
        if waiting:
            log.warning("these settings have changed and take effect after a restart: %s", ", ".join(waiting))
        if not changed:
            log.info("read the settings again: nothing has changed")


@contextlib.contextmanager
def handle_sighup(reload: HubReload, end: Callable[[], None]) -> Iterator[None]:
    """Reload the settings on SIGHUP while the block lasts. SIGHUP of a closed terminal ends the hub."""
    loop, terminal, looks = asyncio.get_running_loop(), ControllingTerminal(), set[asyncio.Task[None]]()
    # nohup: the process outlives its terminal.
    outlives_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN

    def hang_up() -> None:
        if not terminal.is_gone():
            look = loop.create_task(reload.check())
            looks.add(look)
            look.add_done_callback(looks.discard)
        elif not outlives_terminal:
            end()

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for look in looks:
            look.cancel()


def changed_names(before: Settings, after: Settings) -> set[str]:
    return {name for name in Settings.__struct_fields__ if getattr(before, name) != getattr(after, name)}
