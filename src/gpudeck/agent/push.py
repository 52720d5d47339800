"""The sender: takes reports from the outbox and pushes them to the hub, with retries.

A hub that is away is tried again after a random, growing pause, and a backlog is sent at a bounded pace. The newest
report goes first where the hub takes late ones (`Gpudeck-Late-Reports: 1`).

Of several hubs an agent uses the first. If it fails, the next one gets the newest report at once, and the first is
avoided for half a minute.

A hub that reads short reports (`Gpudeck-Wire-Version: 2`) gets short ones until something other than a number changes.
One that it cannot take is sent whole at once.
"""

import logging
import math
import random
import threading
from pathlib import Path

import msgspec
import urllib3

from gpudeck.agent.outbox import EncodedReport, Outbox
from gpudeck.http_client import PROXY_WANTS_LOGIN, TIMEOUT, explain, open_pool
from gpudeck.model import clock
from gpudeck.model.address import mask_password, split_hubs
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.text import read_whole
from gpudeck.wire import SHORT_VERSION

log = logging.getLogger(__name__)

MAX_PAUSE = 60.0
FIRST_PAUSE = 1.0
JITTER = 0.8
AVOID_SECONDS, AVOID_JITTER = 30.0, 0.5
"""How long one of several hubs is avoided after it failed; the jitter is a share of that."""
FAILOVER_TIMEOUT = urllib3.Timeout(connect=2.0, read=4.0)
"""While another hub may answer sooner. If all have failed, they get more time: they may be slow rather than gone."""
_NOT_AS_SHORT = frozenset({400, 413, 415, 422, 428})
"""Answers to a short report after which it is sent whole: also by a hub, or a proxy, that does not know short ones."""
_HEADERS = {"Content-Type": "application/msgpack", "Content-Encoding": "zstd", "User-Agent": "gpudeck-agent"}


class _Later(GpudeckError):
    """The report could not be sent now. `pause` is what the hub asked for, if it did. `stays`: other
    hubs are not tried."""

    def __init__(self, message: str, pause: float | None = None, *, stays: bool = False) -> None:
        super().__init__(message)
        self.pause = pause
        self.stays = stays


class _TokenRefused(_Later):
    """The hub does not take this token. It may be given another, or the file may."""


class _HubTarget:
    def __init__(self, hub: str, ca_file: str | None, proxy: str) -> None:
        self.url = f"{hub}/api/v1/reports"
        self.shown = mask_password(hub)
        self.pool = open_pool(self.url, ca_file, proxy)
        self.described: dict[str, str] = {}
        """By host: the description of the last whole report that was taken, by a hub that reads short ones."""
        self.trouble: str | None = None
        self.avoided_until = -math.inf

    def note_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble

    def fail(self, now: float, asked_for: float | None) -> None:
        # Agents that share a hub do not come back to it all at once.
        jitter = 1.0 + AVOID_JITTER * random.random()  # noqa: S311 - no secret
        self.avoided_until = now + max(AVOID_SECONDS * jitter, asked_for or 0.0)


class Sender:
    """Pushes an outbox to a hub. `token_file` is read again before each attempt that follows a refusal."""

    def __init__(
        self,
        outbox: Outbox,
        hub: str,
        token_file: Path,
        pace: float,
        *,
        ca_file: str | None = None,
        proxy: str = "none",
        now: clock.Clock = clock.wall,
        boottime: clock.Clock = clock.boottime,
    ) -> None:
        """`hub` may be several addresses with commas, the best first. `pace` is the shortest time between two reports
        of a backlog. Raises UsageError."""
        self._outbox = outbox
        self._hubs = [_HubTarget(one, ca_file, proxy) for one in split_hubs(hub)]
        self._hub = self._used = self._hubs[0]
        self._failures = 0
        self._token_file = token_file
        self._token = read_token(token_file)
        self._pace = pace
        self._now = now
        self._boottime = boottime
        self._takes_late = False
        self._is_replaced = False
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE, JITTER)
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        # Reports of an earlier run wait for the first new one, which is sent before them.
        while not stop.is_set() and not self._outbox.wait_for_first(0.5):
            pass
        while not stop.is_set():
            stop.wait(self.send_next(0.5) or 0.0)
        self.close()

    def send_next(self, timeout: float) -> float | None:
        """Send the next report of the outbox; returns how long to pause, None where none came within the timeout."""
        now = self._boottime()
        self._hub = next(hub for hub in self._hubs if hub is self._hub or hub.avoided_until <= now)
        # While another agent reports as this host the backlog waits: it may be taken when that one ends.
        report = self._outbox.wait(timeout, newest_first=self._takes_late, backlog=not self._is_replaced)
        return None if report is None else self._send(report)

    def close(self) -> None:
        for hub in self._hubs:
            hub.pool.clear()

    def send_now(self, report: EncodedReport) -> str:
        """One report, tried once with each hub and past the outbox; returns which took it. Raises Unreachable when they
        may take it later, GpudeckError when one refuses it."""
        later: _Later | None = None
        try:
            for _ in self._hubs:
                if later is not None:
                    log.warning("%s", later.message)
                    self._move_on(later.pause)
                try:
                    if self._post(report):
                        return self._hub.shown
                    raise GpudeckError("the hub refused the report; the line above gives the reason.")
                except _Later as error:
                    later = error
        finally:
            self.close()
        said = "" if later is None else later.message
        raise GpudeckError(said) if isinstance(later, _TokenRefused) else Unreachable(said)

    def _send(self, report: EncodedReport) -> float:
        try:
            is_taken = self._post(report)
        except _Later as later:
            self._hub.note_trouble(later.message)
            return self._backoff.fail(later.pause) if later.stays else self._move_on(later.pause)
        self._outbox.done(report)
        self._backoff.succeed()
        self._failures = 0
        if is_taken:
            self._note_success()
        return self._pace if len(self._outbox) else 0.0

    def _note_success(self) -> None:
        hub = self._hub
        if hub is not self._used:
            log.info("reporting to %s now; %d are undelivered", hub.shown, len(self._outbox))
            self._used = hub
        elif hub.trouble is not None:
            log.info("%s accepts reports again; %d are undelivered", hub.shown, len(self._outbox))
        hub.trouble = None

    def _move_on(self, asked_for: float | None) -> float:
        """To the best of the other hubs that has not failed lately, or else to the one that may be tried first. Returns
        how long to pause: not at all until each hub has failed."""
        now, failed = self._boottime(), self._hub
        failed.fail(now, asked_for)
        others = [hub for hub in self._hubs if hub is not failed]
        self._hub = min(others, key=lambda hub: max(hub.avoided_until, now), default=failed)
        self._failures += 1
        return 0.0 if self._failures % len(self._hubs) else self._backoff.fail(asked_for)

    def _post(self, report: EncodedReport) -> bool:
        """Whether the hub took the report; False when it never will. Raises _Later when it may."""
        hub = self._hub
        # A hub takes late reports only whole.
        is_known = hub.described.get(report.host) == report.description
        is_short = bool(report.short) and is_known and self._outbox.is_newest(report)
        answer = self._request(report, report.short if is_short else report.body)
        if is_short and answer.status in _NOT_AS_SHORT:
            is_short = False
            del hub.described[report.host]
            answer = self._request(report, report.body)
        if 200 <= answer.status < 300:
            # Hubs say up to which version they read reports.
            if (read_whole(answer.headers.get("Gpudeck-Wire-Version", ""), 10**9) or 0) < SHORT_VERSION:
                hub.described.clear()
            elif answer.status == 202 and not is_short and report.description:
                hub.described[report.host] = report.description
            # A report that the hub had already (200) may be answered without the header.
            self._takes_late = answer.headers.get("Gpudeck-Late-Reports") == "1" or (
                self._takes_late and answer.status == 200
            )
            self._is_replaced = False
            return True
        refusal = _read_error(answer.data)
        reason = _sentence(refusal) or "this is not the answer of a hub; is a proxy or another server at that address?"
        message = f"{hub.shown} answered {answer.status}: {reason}"
        if answer.status == 407:
            raise _Later(f"{hub.shown} does not answer: {PROXY_WANTS_LOGIN}")
        if answer.status in {400, 409, 413, 415, 422}:
            # This report will never be taken; the ones behind it may be.
            self.refused += 1
            self._is_replaced = refusal.get("code") == "replaced" and self._outbox.is_newest(report)
            self._hub.note_trouble(message)
            return False
        if answer.status in {401, 403}:
            try:
                self._token = read_token(self._token_file)
            except UsageError as error:
                log.warning("%s", error)
            raise _TokenRefused(message, pause=15.0)
        pause = read_whole(answer.headers.get("Retry-After", ""), 10**9)
        # A sender that is too fast for one hub is too fast for all.
        raise _Later(message, pause, stays=answer.status == 429)

    def _request(self, report: EncodedReport, body: bytes) -> urllib3.BaseHTTPResponse:
        """Raises _Later if the hub does not answer."""
        hub, boottime = self._hub, self._boottime()
        sent_at = report.made.sent_at(self._now(), boottime)
        headers = _HEADERS | {"Authorization": f"Bearer {self._token}", "Gpudeck-Sent-At": repr(sent_at)}
        try:
            return hub.pool.request(
                "POST", hub.url, body=body, headers=headers, redirect=False, timeout=self._choose_timeout(hub, boottime)
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # A hub that comes back has forgotten: it would only ask for a whole report.
            hub.described.clear()
            raise _Later(f"{hub.shown} does not answer: {mask_password(explain(error))}") from error

    def _choose_timeout(self, hub: _HubTarget, now: float) -> urllib3.Timeout:
        has_other = any(other is not hub and other.avoided_until <= now for other in self._hubs)
        return FAILOVER_TIMEOUT if has_other else TIMEOUT


def read_token(file: Path, hint: str = "Copy agent.token from the hub's data folder.") -> str:
    """The token in the file's first line; raises UsageError with the hint."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"the token file {file} cannot be read: {error.strerror}.", hint) from error
    token = lines[0].strip().decode("utf-8", "replace") if lines else ""
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"the token file {file} has no token in its first line.", hint)
    return token


def _read_error(body: bytes) -> dict[str, str]:
    """The code, the message and the hint of an answer in the one shape that every error of a hub has; empty of another
    answer, as of a proxy."""
    try:
        return msgspec.json.decode(body, type=dict[str, dict[str, str]])["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return {}


def _sentence(error: dict[str, str]) -> str:
    parts = [part.rstrip(".") for part in (error.get("message"), error.get("hint")) if part]
    return "".join(f"{part}. " for part in parts)[:1000].rstrip()
