"""Into the hub: bytes become an envelope, the envelope changes the fleet. Every way in ends here.

A demo hub takes simulated reports only and any other hub real ones only. A hub that shows the demo only because it has
no hosts ends it on the first real report: it starts again without the demo, and the agent repeats the report.
"""

from collections.abc import Callable

from gpudeck.auth.token_rules import is_for
from gpudeck.hub.fleet import Fleet
from gpudeck.hub.token_limit import TokenName
from gpudeck.model.clock import Clock
from gpudeck.model.errors import ReportRefused
from gpudeck.wire import Envelope, Head, check_report, decode_any


class Ingest:
    """A demo stays, as one that was asked for, unless `end_demo_with` says how it ends."""

    def __init__(self, fleet: Fleet, clock: Clock, *, demo: bool = False) -> None:
        self.fleet = fleet
        self.demo = demo
        self._end_demo: Callable[[], None] | None = None
        self._clock = clock

    def take(
        self,
        body: bytes,
        content_type: str,
        encoding: str = "",
        *,
        via: str = "push",
        sent_at: float | None = None,
        only: str | None = None,
        token: TokenName | None = None,
    ) -> bool:
        """Take one report; False when it was a repeated one. Raises ReportRefused: whoever catches it counts it.

        `only` is the host, or the pattern of names, that its sender may report as; None: any. `token` is what it
        showed: each brings only so many real hosts into the fleet.
        """
        envelope = decode_any(body, content_type, encoding)
        if not is_for(only, envelope.host):
            raise ReportRefused(
                403,
                "other_host",
                f"this token is for {only}, and the report is of {envelope.host}",
                f"Start the agent with --name {only}, or make a token for {envelope.host} on the hub.",
            )
        self._check_demo(envelope)
        if envelope.simulated:
            via, token = "simulated", None
        return self.fleet.apply(envelope, via=via, now=self._clock(), sent_at=sent_at, only=only, token=token)

    def take_fetched(self, envelope: Envelope, *, via: str, target: str, sent_at: float | None = None) -> bool:
        """Take a report that the hub itself fetched from a configured host.

        False when that host reports on a better way already. Raises ReportRefused.
        """
        check_report(envelope)
        self._check_demo(envelope)
        taken = self.fleet.apply(envelope, via=via, now=self._clock(), sent_at=sent_at, target=target)
        return taken or not self.fleet.has_better_way(target, via)

    def count(self, refusal: ReportRefused) -> None:
        """Note a refusal, wherever on the way in it happened."""
        self.fleet.counters[f"refused_{refusal.code}"] += 1

    def end_demo_with(self, end_demo: Callable[[], None]) -> None:
        """Call `end_demo` on the first real report, and before real hosts are read."""
        self._end_demo = end_demo

    @property
    def keeps_demo(self) -> bool:
        """Whether it shows a demo that was asked for, and so takes no real reports."""
        return self.demo and self._end_demo is None

    def end_demo(self) -> bool:
        """Real hosts are there: end a demo that nobody asked for. False if somebody did."""
        if self._end_demo is None:
            return False
        self._end_demo()
        return True

    def _check_demo(self, envelope: Head) -> None:
        if envelope.simulated == self.demo:
            return
        if envelope.simulated:
            raise ReportRefused(409, "not_a_demo", "this hub shows real hosts and takes no simulated reports")
        if self.end_demo():
            raise ReportRefused(503, "demo_ends", "the hub ends its demo and starts again", "Send the report again.")
        raise ReportRefused(
            409, "demo_hub", "this hub was started with --demo and takes no real reports", "Start it without --demo."
        )
