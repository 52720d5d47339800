"""The sender: takes reports out of the outbox and pushes them to the hub, for as long as it takes.

A hub that is away is tried again after a random, growing pause, and a backlog is sent at a bounded pace, so that a
thousand agents do not fall upon a hub that has just come back. The newest report goes first where the hub takes late
ones, which it says with each answer (`Gpudeck-Late-Reports: 1`). A hub that does not would refuse all that is older:
it gets the oldest first.

A hub that reads short reports (`Gpudeck-Wire-Version: 2`) and has taken a whole one gets short ones until something
other than a number changes. One that it cannot take is sent whole at once, so each report is sent twice at most.
"""

import logging
import threading
from pathlib import Path

import msgspec
import urllib3

from gpudeck.agent.outbox import Outbox
from gpudeck.agent.spool import EncodedReport
from gpudeck.http_client import PROXY_WANTS_LOGIN, explain, open_pool
from gpudeck.model import clock
from gpudeck.model.address import check_hub_url, mask_password
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.text import read_whole
from gpudeck.wire import SHORT_VERSION

log = logging.getLogger(__name__)

LONGEST_PAUSE = 60.0
FIRST_PAUSE = 1.0
JITTER = 0.8
_NOT_AS_SHORT = frozenset({400, 413, 415, 422, 428})
"""Answers to a short report after which it is sent whole: also by a hub, or a proxy, that does not know short ones."""
_HEADERS = {"Content-Type": "application/msgpack", "Content-Encoding": "zstd", "User-Agent": "gpudeck-agent"}


class _Later(GpudeckError):
    """The report could not be sent now. `pause` is what the hub asked for, if it did."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class _TokenRefused(_Later):
    """The hub does not take this token. It may be given another, or the file may."""


class Sender:
    """Pushes an outbox to one hub. `token_file` is read again before each attempt that follows a refusal."""

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
        """`pace` is the shortest time between two reports of a backlog; `ca_file` and `proxy` as in AgentSettings.

        Raises UsageError for a wrong URL, token, proxy or file of certificates.
        """
        self._outbox = outbox
        self._url = f"{check_hub_url(hub)}/api/v1/reports"
        self._shown = mask_password(self._url)
        self._token_file = token_file
        self._token = read_token(token_file)
        self._pace = pace
        self._now = now
        self._boottime = boottime
        self._takes_late = False
        # By host: the description of the last whole report that was taken, by a hub that reads short ones.
        self._described: dict[str, str] = {}
        self._is_replaced = False
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, JITTER)
        self._trouble: str | None = None
        self._pool = open_pool(self._url, ca_file, proxy)
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set; a report being sent is finished, the rest stays."""
        # What an earlier run left waits until there is something newer to go before it.
        while not stop.is_set() and not self._outbox.wait_for_first(0.5):
            pass
        while not stop.is_set():
            stop.wait(self.send_next(0.5) or 0.0)
        self.close()

    def send_next(self, timeout: float) -> float | None:
        """Send the next report of the outbox; returns how long to pause, None where none came within the timeout."""
        # While another agent reports as this host the backlog waits: it may be taken when that one ends.
        report = self._outbox.wait(timeout, newest_first=self._takes_late, backlog=not self._is_replaced)
        return None if report is None else self._send(report)

    def close(self) -> None:
        """Close the connections; the next report opens new ones."""
        self._pool.clear()

    def send_now(self, report: EncodedReport) -> None:
        """One report, tried once and past the outbox. Raises Unreachable when the hub may take it later, GpudeckError
        when it refuses it."""
        try:
            is_taken = self._post(report)
        except _TokenRefused as refused:
            raise GpudeckError(refused.message) from refused
        except _Later as later:
            raise Unreachable(later.message) from later
        finally:
            self._pool.clear()
        if not is_taken:
            raise GpudeckError("the hub refused the report; the line above gives the reason.")

    def _send(self, report: EncodedReport) -> float:
        """Send one report; returns how long to pause."""
        try:
            is_taken = self._post(report)
        except _Later as later:
            self._note_trouble(later.message)
            return self._backoff.fail(later.pause)
        self._outbox.done(report)
        self._backoff.succeed()
        if is_taken and self._trouble is not None:
            log.info("%s accepts reports again; %d are undelivered", self._shown, len(self._outbox))
            self._trouble = None
        return self._pace if len(self._outbox) else 0.0

    def _post(self, report: EncodedReport) -> bool:
        """Whether the hub took the report; False when it never will. Raises _Later when it may."""
        # A hub takes late reports only whole.
        is_known = self._described.get(report.host) == report.description
        is_short = bool(report.short) and is_known and self._outbox.is_newest(report)
        answer = self._request(report, report.short if is_short else report.body)
        if is_short and answer.status in _NOT_AS_SHORT:
            is_short = False
            del self._described[report.host]
            answer = self._request(report, report.body)
        if 200 <= answer.status < 300:
            # Hubs say up to which version they read reports.
            if (read_whole(answer.headers.get("Gpudeck-Wire-Version", ""), 10**9) or 0) < SHORT_VERSION:
                self._described.clear()
            elif answer.status == 202 and not is_short and report.description:
                self._described[report.host] = report.description
            # A report that the hub had already (200) may be answered without the header.
            self._takes_late = answer.headers.get("Gpudeck-Late-Reports") == "1" or (
                self._takes_late and answer.status == 200
            )
            self._is_replaced = False
            return True
        refusal = _read_error(answer.data)
        reason = _sentence(refusal) or "this is not the answer of a hub; is a proxy or another server at that address?"
        message = f"{self._shown} answered {answer.status}: {reason}"
        if answer.status == 407:
            raise _Later(f"{self._shown} does not answer: {PROXY_WANTS_LOGIN}")
        if answer.status in {400, 409, 413, 415, 422}:
            # This report will never be taken; the ones behind it may be.
            self.refused += 1
            self._is_replaced = refusal.get("code") == "replaced" and self._outbox.is_newest(report)
            self._note_trouble(message)
            return False
        if answer.status in {401, 403}:
            try:
                self._token = read_token(self._token_file)
            except UsageError as error:
                log.warning("%s", error)
            raise _TokenRefused(message, pause=15.0)
        raise _Later(message, pause=read_whole(answer.headers.get("Retry-After", ""), 10**9))

    def _request(self, report: EncodedReport, body: bytes) -> urllib3.BaseHTTPResponse:
        """Raises _Later if the hub does not answer."""
        sent_at = report.made.sent_at(self._now(), self._boottime())
        headers = _HEADERS | {"Authorization": f"Bearer {self._token}", "Gpudeck-Sent-At": repr(sent_at)}
        try:
            return self._pool.request("POST", self._url, body=body, headers=headers, redirect=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # A hub that comes back has forgotten: it would only ask for a whole report.
            self._described.clear()
            raise _Later(f"{self._shown} does not answer: {mask_password(explain(error))}") from error

    def _note_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("%s", trouble)
        self._trouble = trouble


def read_token(
    file: Path,
    if_unreadable: str = "Copy agent.token from the hub's data folder.",
    if_none: str = "Copy agent.token from the hub's data folder again.",
) -> str:
    """The token in the file's first line; raises UsageError with the next step."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"the token file {file} cannot be read: {error.strerror}.", if_unreadable) from error
    token = lines[0].strip().decode("utf-8", "replace") if lines else ""
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"the token file {file} has no token in its first line.", if_none)
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
