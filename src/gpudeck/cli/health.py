"""gpudeck health: whether jobs may start on a host's GPUs, for schedulers' prologs and preflight checks.

A job waits for the answer: this module imports little, and sends one request.
"""

import contextlib
import signal
import socket
import sys
import time
from collections.abc import Iterator
from math import isnan
from typing import Final

import click
import msgspec

from gpudeck.cli.options import hub_option
from gpudeck.client import Client
from gpudeck.client.errors import NotFound
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.gpu_state import HealthVerdict, HostHealth
from gpudeck.model.text import clean

_CODES: Final[dict[HealthVerdict, int]] = {"ok": 0, "drain": 1, "unknown": 4}
_UNREACHABLE_CODE: Final = 3
_AFTER = """\b
Verdicts:
  ok       all GPUs asked for are healthy; warnings may follow
  drain    one is not, or is in maintenance: no job should start there
  unknown  the host does not report, or a GPU cannot be judged

\b
Exit codes with --exit-code:
  0  ok; with --fail-open also unknown, and no answer
  1  drain
  2  wrong usage
  3  the hub does not answer in time, or refuses
  4  unknown

\b
Examples:
  gpudeck health                                      this host
  gpudeck health --host gpu07 --gpu 0 --gpu 3 --exit-code
  gpudeck health --host gpu07 --exit-code --fail-open --timeout 1.5
"""


@click.command("health", epilog=_AFTER)
@click.option("--host", metavar="HOST", help="The host's name or id. [default: this machine]")
@click.option("--gpu", "gpus", metavar="GPU", multiple=True, help="Only this GPU, by number or UUID; repeatable.")
@click.option("--exit-code", is_flag=True, help="End with 1 for drain and 4 for unknown.")
@click.option("--fail-open", is_flag=True, help="End with 0 also for unknown, and if the hub does not answer.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, 60.0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the hub.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the hub's answer as JSON.")
@hub_option
def command(
    *,
    host: str | None,
    gpus: tuple[str, ...],
    exit_code: bool,
    fail_open: bool,
    timeout: float,
    as_json: bool,
    hub: str,
) -> None:
    """Print whether jobs may start on a host's GPUs: `ok`, `drain` or `unknown`, then a line for each reason.

    Critical alerts and bad health drain, also if the alert is acknowledged or muted.
    """
    if host is not None and not host.strip():
        raise UsageError("--host is empty.", "Leave it out for this machine.")
    if isnan(timeout):
        raise UsageError("--timeout must be a number of seconds.")
    name, is_answered = host or socket.gethostname(), True
    try:
        with _deadline(timeout):
            found = _ask(hub, name, gpus, timeout)
    except NotFound:
        found = _say_unknown(name, "the hub does not know this host")
    except GpudeckError as error:
        found, is_answered = _say_unknown(name, str(error)), False
    click.echo(msgspec.json.encode(found) if as_json else "\n".join([found.verdict, *map(clean, found.explain())]))
    if found.verdict == "unknown" and fail_open:
        sys.exit(0)
    if not is_answered:
        sys.exit(_UNREACHABLE_CODE)
    sys.exit(_CODES[found.verdict] if exit_code else 0)


def _say_unknown(host: str, reason: str) -> HostHealth:
    return HostHealth(host, "unknown", round(time.time(), 3), [reason])


def _ask(hub: str, host: str, gpus: tuple[str, ...], timeout: float) -> HostHealth:
    def find_token() -> str | None:
        # Finding the admin token of this machine's hub needs its configuration, whose import is slow.
        from gpudeck.settings import find_own_token  # noqa: PLC0415

        return find_own_token(hub)

    return Client(hub, timeout, retries=0, find_token=find_token).health(host, gpus)


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """A limit for the whole request, also if the hub sends a byte now and then."""

    def give_up(*_: object) -> None:
        raise Unreachable(f"no answer within {seconds:g} s.", "Raise --timeout, or look at the hub.")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
