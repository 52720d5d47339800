"""The lines in which `gpudeck wait` can stand: that of a hub, and that of this machine alone."""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpudeck.cli.wanting import ask_hub
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.wanted import OfferedGpu, Wanted, offer_all
from gpudeck.queueing.place import Place
from gpudeck.views.reading import read_fleet

if TYPE_CHECKING:
    from gpudeck.app.local import LocalWatch

POLL_SECONDS = 5.0
"""How often a hub is asked for the position. The turn itself is told at once."""
FIRST_SECONDS = 1.5
AGAIN_SECONDS = 1.0
"""How soon a hub that does not answer is asked again."""
LOOK_SECONDS = 2.0
KEEP_SECONDS = 20.0
"""How long a question is open that says that a command is still about to use its GPUs."""

Tell = Callable[[str], None]
"""Shows a sentence to whoever waits."""


class Line(Protocol):
    """`join` first; then `look` again and again, which takes up to `seconds` and gives None where nothing could be
    learned. `leave` gives up the place or what was granted, `hand_over` lets what was granted stay kept for its time;
    while it is `keeping`, also for longer, until the command is on its GPUs. None of these raises."""

    def join(self) -> None: ...
    def look(self, seconds: float) -> Place | None: ...
    def keeping(self) -> contextlib.AbstractContextManager[None]: ...
    def leave(self) -> None: ...
    def hand_over(self) -> None: ...


class HubLine:
    """A place at a hub. A hub that goes away is waited for: it knows the line from before when it is back."""

    def __init__(self, hub: str, user: str, wanted: Wanted, tell: Tell) -> None:
        self._hub = hub
        self._body = {**msgspec.to_builtins(wanted), "user": user, "key": secrets.token_hex(16)}
        self._tell = tell
        self._number: int | None = None
        self._seen = ""
        self._is_lost = False
        self._may_stand = False
        self._is_first = True

    def join(self) -> None:
        """Raises Unreachable where no hub answers."""
        self._may_stand = True
        joined = self._join()
        self._number, self._seen = joined.id, joined.version

    def look(self, seconds: float) -> Place | None:
        try:
            place = self._ask(seconds)
        except UsageError:
            raise
        except GpudeckError as error:
            self._lose(error)
            time.sleep(min(AGAIN_SECONDS, seconds))
            return None
        if self._is_lost:
            self._is_lost = False
            self._tell("the hub is back.")
        self._seen = place.version
        return place

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """The hub is told that the command runs, until it sees it on the GPUs. Nobody waits for the last answer."""
        is_over = threading.Event()
        threading.Thread(target=self._keep, args=(is_over,), daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def leave(self) -> None:
        try:
            if self._number is None and self._may_stand:
                # Its answer never came: whoever asks with the same key is told the number.
                self.join()
            number = self._number
            if number is not None:
                ask_hub(self._hub, lambda client: client.leave_queue(number))
        except GpudeckError:
            # The hub forgets whoever it does not hear of.
            return

    def hand_over(self) -> None:
        """The hub keeps it for its time."""

    def _keep(self, is_over: threading.Event) -> None:
        from gpudeck.client.client import Busy  # noqa: PLC0415 - by now it is loaded

        number = self._number
        while number is not None and not is_over.is_set():
            try:
                found = ask_hub(self._hub, lambda client: client.ask_queue(number, KEEP_SECONDS, self._seen))
            except (Unreachable, Busy):
                is_over.wait(AGAIN_SECONDS)
                continue
            except GpudeckError:
                # The terminal is the command's: what the hub does not want to hear is not told there.
                return
            if found is None:
                return
            self._seen = self._read(found).version

    def _ask(self, seconds: float) -> Place:
        number = self._number
        # Who is served at once need not hear of a line.
        wait = min(FIRST_SECONDS if self._is_first else POLL_SECONDS, seconds)
        self._is_first = False
        found = (
            None if number is None else ask_hub(self._hub, lambda client: client.ask_queue(number, wait, self._seen))
        )
        if found is None:
            self._tell("the hub does not know this place any more: standing in line anew.")
            place = self._join()
            self._number = place.id
            return place
        return self._read(found)

    def _join(self) -> Place:
        return self._read(ask_hub(self._hub, lambda client: client.join_queue(self._body)))

    def _read(self, body: bytes) -> Place:
        from gpudeck.client.answers import read_answer  # noqa: PLC0415 - by now it is loaded

        return read_answer(body, Place, self._hub)

    def _lose(self, error: GpudeckError) -> None:
        """Raises what waiting does not mend."""
        from gpudeck.client import Forbidden  # noqa: PLC0415 - by now it is loaded

        if isinstance(error, Forbidden):
            raise error
        if not self._is_lost:
            self._is_lost = True
            why = (
                error.message.rstrip(".")
                if isinstance(error, Unreachable)
                else f"the hub says: {error.message.rstrip('.')}"
            )
            self._tell(f"{why}; the place in line is kept, asking again.")


class MachineLine:
    """A place in the line of this machine."""

    def __init__(self, user: str, wanted: Wanted, hold_seconds: float = 120.0) -> None:
        from gpudeck.queueing.local_queue import LocalLine, lock_folder  # noqa: PLC0415 - a hub's line needs none of it

        self._watch: LocalWatch | None = None
        self._hold_seconds = hold_seconds
        self._is_first = True
        self._line = LocalLine(lock_folder(), self._read, user, wanted)

    def join(self) -> None:
        try:
            self._line.join()
        except OSError as error:
            raise GpudeckError(f"the line of this machine cannot be joined: {str(error.strerror).lower()}.") from error

    def look(self, seconds: float) -> Place | None:
        if not self._is_first:
            time.sleep(min(LOOK_SECONDS, seconds))
        self._is_first = False
        return self._line.look()

    def keeping(self) -> contextlib.AbstractContextManager[None]:
        """Its locks last as long as this process."""
        return contextlib.nullcontext()

    def leave(self) -> None:
        self._line.close()
        self._end_watch()

    def hand_over(self) -> None:
        self._line.keep(self._hold_seconds)
        self.leave()

    def _read(self) -> list[OfferedGpu]:
        if self._watch is None:
            from gpudeck.app.local import LocalWatch  # noqa: PLC0415 - a hub's line needs none of it
            from gpudeck.cli.show import find_collector_settings  # noqa: PLC0415 - the same

            self._watch = LocalWatch(find_collector_settings(), LOOK_SECONDS)
        return offer_all(read_fleet(self._watch.read()).hosts)

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
