"""gpudeck free: the GPUs that I can use now, best match first."""

import gc
import inspect
import sys
from typing import Any, NamedTuple

import click
import msgspec

from gpudeck.cli.options import check_place, find_collector_settings, kind_options, place_options, read_wanted
from gpudeck.cli.search import HELP, SearchCommand, choose, complete_search
from gpudeck.cli.terminal import check_output
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.gpu_request import (
    CandidateGpu,
    GpuRequest,
    by_host,
    candidates,
    explain_impossible,
    is_usable,
    matches,
    rank,
    visible_devices,
)
from gpudeck.model.gpu_request import choose as choose_gpus
from gpudeck.model.text import clean, show_count

_FIELDS = ("host", "host_id", "uuid", "label", "index", "name", "display_name", "vendor")
_SEE = "`gpudeck show` has all hosts and GPUs."
_AFTER = """\b
Order: the least memory that is enough; then the host with the fewest free GPUs;
then hostname and GPU index.

\b
Exit codes:
  0  there are enough
  1  there are not enough
  2  wrong usage; with --export: the GPUs are on several hosts
  3  the hub does not answer

\b
Examples:
  gpudeck free                            all free GPUs
  gpudeck free --gpus 2 --memory 40G --same-host
  export $(gpudeck free --host $(hostname) --export) && python train.py
  gpudeck free --json | jq -r '.gpus[].uuid'
"""


class _Queue(msgspec.Struct):
    """The part of api.queue.QueueList that is needed here."""

    claimed: dict[str, int]


class Offer(NamedTuple):
    """`known` are all matching GPUs, in use or not; `usable` those that the caller can use now."""

    known: list[CandidateGpu]
    usable: list[CandidateGpu]


@click.command("free", cls=SearchCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_search)
@click.option("--gpus", type=int, metavar="N", help="Show the best N GPUs; exit code 1 if there are fewer.")
@kind_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--export", is_flag=True, help="Print GPUDECK_HOST=… CUDA_VISIBLE_DEVICES=GPU-… for a shell; all on one host."
)
@place_options
def command(
    words: tuple[str, ...], *, gpus: int | None, as_json: bool, export: bool, hub: str, local: bool, **kind: Any
) -> None:
    """Show the GPUs that you could use right now, best match first: free and healthy ones, and those you have reserved.

    GPUs that others have reserved, or that are claimed for a request in the queue, are left out.
    """
    check_output()
    if as_json and export:
        raise UsageError("--json and --export exclude each other.")
    wanted = read_wanted(1 if gpus is None else gpus, **kind)
    check_place(local=local)
    offered = _read_local(words) if local else _read_hub(hub, words)
    found = _arrange(wanted, offered.usable) if gpus is None else choose_gpus(wanted, offered.usable) or []
    if as_json:
        click.echo(msgspec.json.encode({"gpus": [_describe(gpu) for gpu in found]}))
    elif export and found:
        click.echo(_export(found))
    elif found:
        _print_table(found)
    if not found:
        _refuse(wanted, offered, words, as_json=as_json)


command.help = f"{inspect.cleandoc(command.help or '')}\n\n{HELP}"


def _read_hub(hub: str, words: tuple[str, ...]) -> Offer:
    from gpudeck.cli.hub_access import ask_table  # noqa: PLC0415 - a local reading needs no HTTP

    # This process ends before any of the hundred thousand objects of a large fleet is garbage.
    gc.disable()
    known = candidates(choose(ask_table(hub, words).fleet, words).hosts)
    names = _my_names(hub) if any(gpu.reserved_by is not None for gpu in known) else frozenset()
    claimed = _claimed(hub) if known else frozenset()
    return Offer(known, [gpu for gpu in known if is_usable(gpu, names) and gpu.uuid not in claimed])


def _my_names(hub: str) -> frozenset[str]:
    """The names of my reservations and claims: the account's, or my login if the hub knows no account."""
    from gpudeck.cli.hub_access import ask, find_name  # noqa: PLC0415 - few fleets have reservations
    from gpudeck.client import Forbidden  # noqa: PLC0415 - by now it is loaded

    try:
        return frozenset({ask(hub, find_name)})
    except Forbidden:
        # Nobody has reserved anything.
        return frozenset()


def _claimed(hub: str) -> frozenset[str]:
    """GPUs that are claimed for requests in the queue."""
    from gpudeck.cli.hub_access import fetch  # noqa: PLC0415 - by now it is loaded

    try:
        return frozenset(fetch(hub, _Queue, "/api/v1/queue")[0].claimed)
    except GpudeckError:
        # An older hub has no queue, and no claims.
        return frozenset()


def _read_local(words: tuple[str, ...]) -> Offer:
    from gpudeck.local import find_usable  # noqa: PLC0415 - the same
    from gpudeck.views.this_machine import read_this_machine  # noqa: PLC0415 - the same

    known = candidates(choose(read_this_machine(find_collector_settings()), words).hosts)
    return Offer(known, find_usable(known))


def _arrange(wanted: GpuRequest, offered: list[CandidateGpu]) -> list[CandidateGpu]:
    """All matching GPUs, grouped by host with --same-host."""
    ranked = rank(gpu for gpu in offered if matches(gpu, wanted))
    return [gpu for gpus in by_host(ranked).values() for gpu in gpus] if wanted.same_host else ranked


def _describe(gpu: CandidateGpu) -> dict[str, Any]:
    """A GPU, for programs."""
    size = None if gpu.memory_total_bytes is None else int(gpu.memory_total_bytes)
    return {name: getattr(gpu, name) for name in _FIELDS} | {"memory_total_bytes": size}


def _export(found: list[CandidateGpu]) -> str:
    hosts = list(dict.fromkeys(gpu.host for gpu in found))
    if len(by_host(found)) > 1:
        raise UsageError(
            f"these {len(found)} GPUs are on {len(by_host(found))} hosts ({', '.join(hosts[:4])}).",
            "Choose with --gpus N --same-host, or --host.",
        )
    variable, value = visible_devices(found)
    # `export` and `env` accept the whole line.
    return f"GPUDECK_HOST={clean(hosts[0])} {variable}={value}"


def _print_table(found: list[CandidateGpu]) -> None:
    from gpudeck.cli.terminal import show, terminal_width, wants_colour  # noqa: PLC0415 - JSON needs none
    from gpudeck.views.lists import render_free  # noqa: PLC0415 - the same

    show(render_free(found, width=terminal_width(), colour=wants_colour()))


def _refuse(wanted: GpuRequest, offer: Offer, words: tuple[str, ...], *, as_json: bool) -> None:
    """Exit code 1, with the alternatives in words. `gpudeck wait` is suggested only if the request can be met."""
    if as_json:
        sys.exit(1)
    typed = clean(" ".join(words))
    if words and not offer.known:
        raise GpudeckError(f"no GPU fits {typed}.", _SEE)
    if why := explain_impossible(wanted, offer.known):
        raise GpudeckError(f"{typed and f'of the GPUs that fit {typed}: '}{clean(why)}.", _SEE)
    what = f"{wanted.describe()}{typed and f' that fits {typed}'}"
    free = [gpu for gpu in offer.usable if matches(gpu, wanted)]
    verb = "is" if len(free) == 1 else "are"
    spread = f" ({len(free)} {verb}, on {show_count(len(by_host(free)), 'host')})" if free else ""
    raise GpudeckError(f"not free now: {what}{spread}.", "`gpudeck wait` waits for it.")
