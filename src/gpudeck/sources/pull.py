"""Pull: the hub asks an agent that listens (`gpudeck agent --listen`) for its newest report."""

from pathlib import Path

import msgspec

from gpudeck.agent.push import read_token
from gpudeck.fetch import AddressGuard, Fetcher, HttpResponse, TokenRefused, content_kind, log_beginning, trust_from
from gpudeck.model.errors import Refused, ReportRefused, Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, PullSettings
from gpudeck.wire import MAX_BODY_BYTES, Envelope, decode, read_sent_at

PATH = "/api/v1/report"
_ASK = {"Accept": "application/msgpack", "Accept-Encoding": "zstd"}
_OF_AGENTS = frozenset({"unsupported_version", "too_large", "too_many_processes", "duplicate_gpu"})
"""What only a report is refused for: the words about it hold nothing of the answer."""
_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}


class PullSource:
    """One agent that listens, over one kept connection."""

    def __init__(self, target: Target, settings: PullSettings) -> None:
        """Raises UsageError when `ca_file` cannot be read."""
        trust = None if settings.ca_file is None else trust_from(settings.ca_file)
        self._target = target
        self._url = target.url(settings.port, PATH)
        self._interval = settings.interval
        self._token_file = target.token_file or settings.token_file
        self._headers: dict[str, str] | None = None
        self._fetcher = Fetcher(
            deadline=settings.deadline, bytes_at_most=MAX_BODY_BYTES, trust=trust, guard=AddressGuard.of(target)
        )

    async def read(self, now: float) -> FetchedReport:
        """The newest report of the agent, which may be one that was read before."""
        if self._headers is None:
            self._headers = _ASK if self._token_file is None else _ASK | _authorize(self._token_file)
        headers = self._headers
        try:
            answer = await self._fetcher.get(self._url, headers)
        except TokenRefused as error:
            # A new token in the file counts without a restart of the hub.
            self._headers = None
            copy = f"Copy the agent's token file to {self._token_file} again."
            none = "Set pull.token_file to a copy of the agent's token file."
            raise Refused(error.message, none if self._token_file is None else copy) from error
        envelope = _open(answer, self._url)
        if envelope.simulated:
            raise Temporary(f"{self._url} reports a simulated host.", "Start its agent without --simulate.")
        return FetchedReport(
            _name(envelope, self._target, self._interval), read_sent_at(answer.headers.get("gpudeck-sent-at", ""))
        )

    async def close(self) -> None:
        await self._fetcher.close()


def _authorize(token_file: str) -> dict[str, str]:
    try:
        token = read_token(Path(token_file).expanduser(), "Copy it from the host.", "Copy it from the host again.")
    except UsageError as error:
        raise Refused(error.message, error.hint) from error
    except RuntimeError as error:
        raise Refused(
            f"the token file {token_file} cannot be found: there is no such home.", "Give its path."
        ) from error
    return {"Authorization": f"Bearer {token}"}


def _open(answer: HttpResponse, url: str) -> Envelope:
    """The envelope in an answer. Its first bytes say whether it is packed: a proxy may have unpacked it."""
    encoding = next((name for magic, name in _MAGIC.items() if answer.body.startswith(magic)), "")
    try:
        return decode(answer.body, answer.headers.get("content-type", ""), encoding)
    except ReportRefused as refusal:
        log_beginning(url, answer.body)
        if refusal.code in _OF_AGENTS:
            message = f"{url} answers a report that cannot be taken: {refusal.message}."
            raise Temporary(message, refusal.hint) from refusal
        kind = content_kind(answer.headers.get("content-type", "")) or "of no known kind"
        raise Temporary(
            f"{url} answers something that is no report ({kind}).", "Does an agent listen there?"
        ) from refusal


def _name(envelope: Envelope, target: Target, interval: float) -> Envelope:
    """The report as that of the target: people know the host by the name and the labels that they gave it. Where they
    gave its address alone, the host keeps the name that its agent reports."""
    report = envelope.report
    if target.labels:
        report = msgspec.structs.replace(report, labels=report.labels | target.labels)
    return msgspec.structs.replace(
        envelope,
        host=target.name if target.is_named else envelope.host,
        report=report,
        interval_seconds=max(envelope.interval_seconds, interval),
    )
