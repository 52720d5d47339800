"""A position in a hub's queue for GPUs, and the environment of the process that got them."""

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from gpudeck.client.connection import HubConnection, in_path
from gpudeck.client.errors import Busy, Forbidden, ImpossibleRequest, NotFound, WaitTimeout
from gpudeck.collectors.host import host_name, machine_id
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.gpu_request import GpuRequest, Granted, GrantedGpu, QueuePosition, visible_devices
from gpudeck.model.text import clean

POLL_SECONDS = 5.0
"""How often a hub is asked for the position. A grant is reported at once."""
FIRST_SECONDS = 1.5
RETRY_SECONDS = 1.0
"""How soon a hub that does not answer is asked again."""
ANSWER_SECONDS = 40.0
"""Longer than a question about a position in the queue is kept open."""
KEEP_SECONDS = 20.0
"""How long a question is open that says that a program is still about to use its GPUs."""
_PATH = "/api/v1/queue"


class HostReference(Struct, frozen=True):
    """Of a host its id and its name."""

    id: str
    name: str


class QueueClient(Protocol):
    """A position in a queue, of a hub or of this machine. `poll` takes up to so many seconds and gives None where
    nothing could be learned."""

    def poll(self, seconds: float) -> QueuePosition | None: ...


class HubQueueClient:
    """A position in the queue of a hub. If the hub goes away, it is asked again: its queue survives a restart. `note`
    gets a sentence when that happens."""

    def __init__(self, hub: HubConnection, user: str, wanted: GpuRequest, note: Callable[[str], None]) -> None:
        # It asks again by itself, and says so.
        self._hub = hub.with_timeout(ANSWER_SECONDS, retries=0)
        self._body = {**msgspec.to_builtins(wanted), "user": user, "key": secrets.token_hex(16)}
        self._note = note
        self._number: int | None = None
        self._seen = ""
        self._is_lost = False
        self._may_stand = False
        self._is_first = True

    def join(self) -> None:
        """Raises Unreachable where no hub answers: nobody waits elsewhere in its place."""
        self._may_stand = True
        joined = self._join()
        self._number, self._seen = joined.id, joined.version

    def poll(self, seconds: float) -> QueuePosition | None:
        """The position, after up to so many seconds; None where nothing could be learned. Raises what waiting does not
        mend."""
        try:
            place = self._ask(seconds)
        except UsageError:
            raise
        except GpudeckError as error:
            self._lose(error)
            time.sleep(min(RETRY_SECONDS, seconds))
            return None
        if self._is_lost:
            self._is_lost = False
            self._note("the hub answers again.")
        self._seen = place.version
        return place

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Report to the hub that the program runs, until it sees it on the GPUs. The last answer is not awaited."""
        is_over = threading.Event()
        threading.Thread(target=self._keep, args=(is_over,), daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def leave(self) -> None:
        """Give up the position, or what was granted. Raises nothing."""
        try:
            if self._number is None and self._may_stand:
                # The answer was lost: a request with the same key returns the same number.
                self.join()
            if self._number is not None:
                with contextlib.suppress(NotFound):
                    self._hub.delete(f"{_PATH}/{self._number}")
        except GpudeckError:
            # The hub drops requests that are not renewed.
            return

    def hand_over(self) -> None:
        """The hub keeps it for its time."""

    def _keep(self, is_over: threading.Event) -> None:
        while self._number is not None and not is_over.is_set():
            try:
                self._seen = self._read_position(KEEP_SECONDS).version
            except (Unreachable, Busy):
                is_over.wait(RETRY_SECONDS)
            except GpudeckError:
                # The terminal belongs to the command: nothing is printed there.
                return

    def _ask(self, seconds: float) -> QueuePosition:
        # A request that is granted at once prints nothing about a queue.
        wait = min(FIRST_SECONDS if self._is_first else POLL_SECONDS, seconds)
        self._is_first = False
        with contextlib.suppress(NotFound):
            if self._number is not None:
                return self._read_position(wait)
        self._note("the hub no longer has this request: joining the queue again.")
        place = self._join()
        self._number = place.id
        return place

    def _read_position(self, wait: float) -> QueuePosition:
        query = {"wait": f"{wait:g}", "seen": self._seen}
        return self._hub.read(self._hub.get(f"{_PATH}/{self._number}", query), QueuePosition)

    def _join(self) -> QueuePosition:
        return self._hub.read(self._hub.post(_PATH, self._body), QueuePosition)

    def _lose(self, error: GpudeckError) -> None:
        """Raises what waiting does not mend."""
        if isinstance(error, Forbidden | NotFound):
            raise error
        if not self._is_lost:
            self._is_lost = True
            why = error.message.rstrip(".")
            said = why if isinstance(error, Unreachable) else f"the hub says: {why}"
            self._note(f"{said}; retrying; your position in the queue is kept.")


def find_this_host(hub: HubConnection) -> HostReference | None:
    """This machine as the hub knows it; None where it does not."""
    for known in own_ids():
        with contextlib.suppress(NotFound):
            found = hub.read(hub.get(f"/api/v1/hosts/{in_path(known)}"), HostReference)
            if found.id in own_ids():
                return found
    return None


def own_ids() -> list[str]:
    """The ids that a hub may have for this machine. A clone has the id of another machine with its own name behind it;
    a host whose machine id is unknown is identified by its name."""
    name = host_name()
    own = machine_id() or name
    return [f"{own}:{name}", own, name]


def are_here(gpus: Sequence[GrantedGpu]) -> bool:
    """Whether all of them are in this machine."""
    return all(gpu.host_id in own_ids() for gpu in gpus)


def await_turn(
    queue: QueueClient,
    wanted: GpuRequest,
    timeout: float | None,
    *,
    is_cancelled: Callable[[], bool],
    on_position: Callable[[QueuePosition], object],
) -> Granted:
    """Blocks until the request is granted. Raises WaitTimeout, also where it `is_cancelled`, and ImpossibleRequest."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
        place = queue.poll(max(0.0, left))
        if place is not None and place.granted is not None:
            return place.granted
        if place is not None and place.impossible is not None:
            raise ImpossibleRequest(f"{clean(place.impossible)}.", "`gpudeck show` lists all hosts and GPUs.")
        if place is not None:
            on_position(place)
        if is_cancelled() or (deadline is not None and time.monotonic() >= deadline):
            raise WaitTimeout(f"{wanted.describe()} did not become free in time.")


@contextlib.contextmanager
def using(gpus: Sequence[GrantedGpu]) -> Iterator[None]:
    """Set the variable of the GPUs' vendor, such as CUDA_VISIBLE_DEVICES, while this lasts."""
    name, value = visible_devices(gpus)
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
