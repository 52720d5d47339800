"""gpudeck free: what I could use right now, best fit first."""

import inspect
import sys
from typing import NamedTuple

import click
import msgspec

from gpudeck.cli.request_options import ask_hub, check_place, kind_options, place_options, read_wanted
from gpudeck.cli.terminal import check_output
from gpudeck.cli.words import HELP, WordsCommand, choose, complete_words
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.printable import clean
from gpudeck.model.quantity import show_count
from gpudeck.model.visible import visible_devices
from gpudeck.model.wanted import OfferedGpu, Wanted, by_host, fits, is_usable, offer_all, rank
from gpudeck.model.wanted import choose as choose_gpus

_SEE = "`gpudeck show` has all hosts and GPUs."
_AFTER = """\b
Order: the least memory that is enough; of equals the host with the fewest free
GPUs left; then by the host's name and the GPU's number.

\b
Exit codes:
  0  there are as many as were asked for
  1  there are not
  2  wrong use; --export: they are on several hosts
  3  the hub does not answer

\b
Examples:
  gpudeck free                            all that is free
  gpudeck free h200 '>100G'               what of it fits the words
  gpudeck free --gpus 2 --memory 40G --same-host
  export $(gpudeck free --host $(hostname) --export) && python train.py
  gpudeck free --json | jq -r '.gpus[].uuid'

\b
See also:
  gpudeck wait                            stands in line until there are enough
"""


class _Queue(msgspec.Struct):
    """Of api.queue.QueueList what is looked at here."""

    kept: dict[str, int]


class Offer(NamedTuple):
    """`known` is all that there is, whoever is on it; `usable` is what I could have now."""

    known: list[OfferedGpu]
    usable: list[OfferedGpu]


@click.command("free", cls=WordsCommand, epilog=_AFTER)
@click.argument("words", nargs=-1, metavar="[WORD…]", shell_complete=complete_words)
@click.option("--gpus", type=int, metavar="N", help="The best N of them; exit code 1 where there are fewer.")
@kind_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--export", is_flag=True, help="As CUDA_VISIBLE_DEVICES=GPU-… for a shell: all on one host.")
@place_options
def command(
    words: tuple[str, ...],
    *,
    gpus: int | None,
    memory: str | None,
    model: str | None,
    same_host: bool,
    host: str | None,
    as_json: bool,
    export: bool,
    hub: str | None,
    local: bool,
) -> None:
    """Show the GPUs that I could use right now, best fit first: nobody is on them, nobody else has booked them, and
    they are well. What is held, unknown, or kept for somebody who waits is left out; what I have booked myself is not.
    """
    check_output()
    if as_json and export:
        raise UsageError("--json and --export exclude each other.")
    wanted = read_wanted(1 if gpus is None else gpus, memory, model, host, same_host=same_host)
    place = check_place(hub, local=local)
    offered = _read_local(words) if local else _read_hub(place, words)
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
    from gpudeck.cli.hub_access import ask_fleet  # noqa: PLC0415 - a local reading needs no HTTP

    known = offer_all(choose(ask_fleet(hub).fleet, words).hosts)
    names = _my_names(hub) if any(gpu.booked_by is not None for gpu in known) else frozenset()
    kept = _kept(hub) if known else frozenset()
    return Offer(known, [gpu for gpu in known if is_usable(gpu, names) and gpu.uuid not in kept])


def _my_names(hub: str) -> frozenset[str]:
    """Under which my bookings stand, and what was given to me after waiting: the account's, or my login where the hub
    knows none."""
    from gpudeck.cli.hub_access import find_name  # noqa: PLC0415 - few fleets have bookings
    from gpudeck.client import Forbidden  # noqa: PLC0415 - by now it is loaded

    try:
        return frozenset({ask_hub(hub, find_name)})
    except Forbidden:
        # Nobody has booked anything.
        return frozenset()


def _kept(hub: str) -> frozenset[str]:
    """What waits for the first in line."""
    from gpudeck.client.answers import read_answer  # noqa: PLC0415 - by now it is loaded

    try:
        return frozenset(read_answer(ask_hub(hub, lambda client: client.queue()), _Queue, hub).kept)
    except GpudeckError:
        # A hub of before has no queue, and keeps nothing.
        return frozenset()


def _read_local(words: tuple[str, ...]) -> Offer:
    """This machine; what others who wait here have been given is not for us."""
    from gpudeck.app.local import read_this_machine  # noqa: PLC0415 - an answer of the hub needs no collectors
    from gpudeck.cli.show import find_collector_settings  # noqa: PLC0415 - the same
    from gpudeck.queueing.local_queue import taken_here  # noqa: PLC0415 - the same

    known = offer_all(choose(read_this_machine(find_collector_settings()), words).hosts)
    usable = [gpu for gpu in known if is_usable(gpu, ())]
    taken = taken_here(gpu.uuid for gpu in usable)
    return Offer(known, [gpu for gpu in usable if gpu.uuid not in taken])


def _arrange(wanted: Wanted, offered: list[OfferedGpu]) -> list[OfferedGpu]:
    """All that fit; one host after the other where that is asked for."""
    ranked = rank(gpu for gpu in offered if fits(gpu, wanted))
    return [gpu for gpus in by_host(ranked).values() for gpu in gpus] if wanted.same_host else ranked


class _Free(msgspec.Struct):
    """A GPU for programs."""

    host: str
    host_id: str
    uuid: str
    label: str
    index: int
    name: str
    display_name: str
    vendor: str
    memory_total_bytes: int | None


def _describe(gpu: OfferedGpu) -> _Free:
    size = None if gpu.memory_total_bytes is None else int(gpu.memory_total_bytes)
    place = (gpu.host, gpu.host_id, gpu.uuid, gpu.label, gpu.index)
    return _Free(*place, gpu.name, gpu.display_name, gpu.vendor, size)


def _export(found: list[OfferedGpu]) -> str:
    hosts = list(dict.fromkeys(gpu.host for gpu in found))
    if len(by_host(found)) > 1:
        raise UsageError(
            f"these {len(found)} GPUs are on {len(by_host(found))} hosts ({', '.join(hosts[:4])}).",
            "Choose with --gpus N --same-host, or --host.",
        )
    variable, value = visible_devices(found)
    return f"{variable}={value}"


def _print_table(found: list[OfferedGpu]) -> None:
    from gpudeck.cli.terminal import knows_our_signs, terminal_width, wants_colour  # noqa: PLC0415 - JSON needs none
    from gpudeck.views.lists import render_free  # noqa: PLC0415 - the same
    from gpudeck.views.table import in_ascii  # noqa: PLC0415 - the same

    text = render_free(found, width=terminal_width(), colour=wants_colour())
    click.echo(text if knows_our_signs() else in_ascii(text), nl=False, color=True)


def _refuse(wanted: Wanted, offer: Offer, words: tuple[str, ...], *, as_json: bool) -> None:
    """Exit code 1, and in words what there is instead. Nobody is sent to wait for what is not there at all."""
    if as_json:
        sys.exit(1)
    told = f" that fits {clean(' '.join(words))}" if words else ""
    what = f"{wanted.describe()}{told}"
    if _most(wanted, offer.known) < wanted.gpus:
        raise GpudeckError(f"not there at all: {what}.", _SEE)
    free = [gpu for gpu in offer.usable if fits(gpu, wanted)]
    verb = "is" if len(free) == 1 else "are"
    spread = f" ({len(free)} {verb}, on {show_count(len(by_host(free)), 'host')})" if free else ""
    raise GpudeckError(f"not free now: {what}{spread}.", "`gpudeck wait` stands in line.")


def _most(wanted: Wanted, known: list[OfferedGpu]) -> int:
    """How many there are, on one host if that is asked for, whoever is on them."""
    fitting = [gpu for gpu in known if fits(gpu, wanted)]
    return max(map(len, by_host(fitting).values()), default=0) if wanted.same_host else len(fitting)
