"""Collectors in processes of their own, so that a driver that hangs in the kernel blocks nothing but that process. A
fork takes 3 ms where a fresh interpreter takes 100, and shares a third of its memory with its parent."""

import contextlib
import gc
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from gpudeck.child_process import MAX_BYTES, Spawned, fork, kill, python_module, spawn
from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.serve import KINDS, LENGTH, CollectRequest, CollectResponse, frame, serve_and_end
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import Absent, PluginError, Temporary, Wrong
from gpudeck.model.report import Report

# A library that was replaced on disk is loaded anew only by a new process.
_FAILURES_BEFORE_RENEWAL = 3

Spawn = Callable[[str], Spawned]


def spawn_child(name: str) -> "subprocess.Popen[bytes]":
    """A fresh interpreter: a fork would inherit threads' locks and the parent's memory."""
    return spawn(python_module("gpudeck.collectors.serve", name))


def fork_child(name: str) -> Spawned:
    """A fork; a fresh interpreter where this process has several threads. Raises OSError."""
    if threading.active_count() > 1:
        return spawn_child(name)
    if gc.isenabled():
        # The collection of garbage would write to pages that both have, and so make them two.
        gc.collect()
        gc.freeze()
    return fork(partial(serve_and_end, name))


class _Child:
    """One child process and its pipes. It is asked again only after it has answered."""

    def __init__(self, process: Spawned) -> None:
        if process.stdin is None or process.stdout is None:
            raise Wrong("A collector's child was started without pipes.")
        self.process = process
        self.requested_at: float | None = None
        self._questions = process.stdin
        self._answers = process.stdout
        self._received = bytearray()
        os.set_blocking(self._answers.fileno(), False)

    def send(self, question: CollectRequest, at: float) -> None:
        """Raises OSError when the child is gone."""
        self.requested_at = at
        self._questions.write(frame(msgspec.msgpack.encode(question)))
        self._questions.flush()

    def receive(self, seconds: float) -> bytes | None:
        """The body of the next frame, or None when it has not come within `seconds`. Raises EOFError, Wrong."""
        ends_at = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while (body := self._take_frame()) is None:
            if not poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
                return None
            received = os.read(self._answers.fileno(), 65536)
            if not received:
                raise EOFError
            self._received += received
        self.requested_at = None
        return body

    def _take_frame(self) -> bytes | None:
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        if length > MAX_BYTES:
            raise Wrong("A collector's child answered with something that is no frame.")
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return body

    def kill(self) -> None:
        """Kills the process without waiting for its end: in the kernel's hands it may not end at all."""
        kill(self.process, 0.0)
        self._answers.close()
        with contextlib.suppress(OSError):  # what was left to write has no reader any more
            self._questions.close()


class ChildCollector:
    """Runs the collector called `name` in a child process; no call of `collect` takes longer than `deadline` seconds.

    A reading that takes longer stays outstanding, and every later call fails at once until it returns. After
    `kill_after` seconds the child is killed. A new one starts as soon as the old one has ended; a process in D state
    (hanging in the kernel) may never end. `close` may be called from any thread.
    """

    def __init__(
        self,
        name: str,
        settings: CollectorSettings | None = None,
        *,
        deadline: float = 3.0,
        kill_after: float = 120.0,
        spawn: Spawn = spawn_child,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.deadline = deadline
        self._settings = settings or CollectorSettings()
        self._kill_after = kill_after
        self._spawn = spawn
        self._clock = clock
        self._lock = threading.Lock()
        self._is_closed = False
        self._child: _Child | None = None
        self._killed: list[Spawned] = []
        self._silent_since: float | None = None
        self._failures = 0
        self._failure: PluginError | None = None
        self._backoff = Backoff(1.0, 60.0)
        self._start_at = 0.0

    def collect(self, now: float) -> Report:
        with self._lock:
            try:
                self._check_outstanding()
                return self._read_response(self._request(CollectRequest(now, self._settings)))
            finally:
                if self._is_closed:
                    self._kill()

    def close(self) -> None:
        self._is_closed = True
        child = self._child
        if child is not None:
            kill(child.process, 0.0)  # a reading under way in another thread ends with it
        if self._lock.acquire(blocking=False):
            try:
                self._kill()
                self._wait_for_killed(1.0)
            finally:
                self._lock.release()

    def _wait_for_killed(self, seconds: float) -> None:
        """Killed processes end at once, unless they hang in the kernel."""
        for process in self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)
        self._killed = [process for process in self._killed if process.poll() is None]

    def _check_outstanding(self) -> None:
        child = self._child
        if child is None or child.requested_at is None:
            return
        if self._receive(child, 0.0) is not None:
            self._silent_since = None  # a late answer is outdated: it is dropped
            return
        if self._clock() - child.requested_at >= self._kill_after:
            self._kill()
        raise self._not_answering()

    def _request(self, question: CollectRequest) -> bytes:
        child = self._child or self._start()
        try:
            child.send(question, self._clock())
        except OSError as error:
            raise self._lose("ended by itself") from error
        if self._silent_since is None:
            self._silent_since = child.requested_at
        body = self._receive(child, self.deadline)
        if body is None:
            raise self._not_answering()
        self._silent_since = None
        return body

    def _receive(self, child: _Child, seconds: float) -> bytes | None:
        try:
            return child.receive(seconds)
        except EOFError as error:
            raise self._lose("ended in the middle of a reading") from error
        except Wrong as error:
            raise self._renew_later(error) from None

    def _start(self) -> _Child:
        if self._is_closed:
            raise Temporary(f"The collector {self.name} is closed.")
        if self._failure is not None and self._clock() < self._start_at:
            raise type(self._failure)(self._failure.message, self._failure.hint)
        self._wait_for_killed(0.1)
        if self._killed:
            raise self._not_answering()
        try:
            self._child = _Child(self._spawn(self.name))
        except OSError as error:
            message = f"The process of the collector {self.name} cannot be started: {error}."
            raise self._renew_later(Temporary(message)) from error
        return self._child

    def _read_response(self, body: bytes) -> Report:
        try:
            answer = msgspec.msgpack.decode(body, type=CollectResponse)
        except msgspec.DecodeError as error:
            message = f"The collector {self.name} returned an invalid report: {error}."
            raise self._renew_later(Wrong(message)) from error
        if answer.failure is not None:
            raise self._take_failure(KINDS[answer.failure](answer.message, answer.hint), answer.trace)
        if answer.report is None:
            raise self._renew_later(Wrong(f"The collector {self.name} returned no report."))
        self._failures, self._failure = 0, None
        self._backoff.succeed()
        return answer.report

    def _take_failure(self, failure: PluginError, trace: str) -> PluginError:
        if trace:
            failure.add_note(trace)
        self._failures += 1
        if isinstance(failure, Absent):
            self._kill()  # the caller asks again in a while; until then nothing needs to be in memory
            self._wait_for_killed(1.0)
        elif self._failures >= _FAILURES_BEFORE_RENEWAL:
            self._renew_later(failure)
        return failure

    def _renew_later(self, failure: PluginError) -> PluginError:
        """Lets a new child take over after a pause that doubles each time, until a report comes."""
        self._kill()
        self._silent_since = None
        self._failures, self._failure = 0, failure
        self._start_at = self._clock() + self._backoff.fail()
        return failure

    def _lose(self, how: str) -> PluginError:
        return self._renew_later(Temporary(f"The process of the collector {self.name} {how}.", "It is started again."))

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._killed.append(self._child.process)
            self._child = None

    def _not_answering(self) -> Temporary:
        silent = 0.0 if self._silent_since is None else self._clock() - self._silent_since
        return Temporary(f"driver not answering for {silent:.0f} s")
