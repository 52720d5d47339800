"""gpudeck import: the hosts, bookings and settings of the monitor that a site had before."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gpudeck.model.hub_url import DEFAULT_HUB
from gpudeck.model.printable import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpudeck.compat.importing import Here, ImportPlan, ImportTarget, Result

_KINDS = ("vesta", "gpumonitor", "web-gpu-monitor", "gpu-monitor")
"""The keys of `compat.importing.KINDS`: the help needs no more of it."""
_AFTER = """\b
Kinds:
  vesta            its settings (YAML) or its database (gpu_states.db)
  gpumonitor       its config.yml
  web-gpu-monitor  its config.ini
  gpu-monitor      its data folder, comments.json, hosts.json or index.php

\b
Exit codes:
  0  everything is there now
  1  something could not be taken: it is named, and the rest is there
  2  wrong use, or a file of another kind
  3  the hub does not answer; a dry run needs none

\b
Examples:
  gpudeck import gpumonitor config.yml --dry-run   what would be done
  gpudeck import gpumonitor config.yml             and done
  gpudeck import gpu-monitor data/comments.json --json | jq '.left'
"""
_SIGNS = {"new": "+", "there": "=", "failed": "!", "unasked": "+"}


@click.command("import", epilog=_AFTER)
@click.argument("kind", metavar="KIND", type=click.Choice(_KINDS))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="The plan and what became of it, as JSON.")
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
@click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
def command(*, kind: str, file: Path, dry_run: bool, as_json: bool, hub: str, config: Path | None) -> None:
    """Take over what another monitor's FILE says: hosts are watched from then on, bookings are booked, and settings are
    printed for gpudeck.yaml. Run it on the hub's machine, or with its admin token in $GPUDECK_TOKEN.

    What is there already stays as it is, so it can be run again. What cannot be taken is named with its place.
    """
    from gpudeck.compat.importing import carry_out, find_reader, look  # noqa: PLC0415 - the help needs none

    plan = find_reader(kind)(file, _here(config))
    desk = _open_desk(hub, config)
    work = (look if dry_run else carry_out)(plan.steps, desk)
    results = list(work) if as_json else _tell(plan, work, dry_run=dry_run)
    if as_json:
        click.echo(_encode(kind, file, plan, results, dry_run=dry_run))
    if plan.left or any(result.outcome == "failed" for result in results):
        sys.exit(1)


def _here(config: Path | None) -> "Here":
    from gpudeck.cli.hub_access import machine_zone  # noqa: PLC0415 - the same
    from gpudeck.compat.importing import Here  # noqa: PLC0415 - the same
    from gpudeck.settings import choose_data_dir, load_settings  # noqa: PLC0415 - the help needs none

    return Here(time.time(), machine_zone(), choose_data_dir(load_settings(config)[0]))


def _open_desk(hub: str, config: Path | None) -> "ImportTarget":
    from gpudeck.client import Client  # noqa: PLC0415 - the same
    from gpudeck.compat.importing import ImportTarget  # noqa: PLC0415 - the same
    from gpudeck.settings import find_own_token  # noqa: PLC0415 - the help needs none

    return ImportTarget(Client(hub, token=find_own_token(hub, config)))


def _tell(plan: "ImportPlan", work: "Iterable[Result]", *, dry_run: bool) -> "list[Result]":
    """The results as they come, and what a person has to do then."""
    results = []
    for result in work:
        results.append(result)
        told = f": {result.told}" if result.told else ""
        click.echo(f"{_SIGNS[result.outcome]} {clean(result.what + told)}")
    for left in plan.over:
        click.echo(f"- {clean(f'{left.place}: {left.reason}')}")
    for left in plan.left:
        click.echo(f"! {clean(f'{left.place}: {left.reason}')}")
    if plan.settings:
        click.echo(f"\nFor gpudeck.yaml, by hand:\n\n{plan.settings}")
    for note in plan.notes:
        click.echo(clean(note))
    click.echo(_sum_up(plan, results, dry_run=dry_run))
    return results


def _sum_up(plan: "ImportPlan", results: "list[Result]", *, dry_run: bool) -> str:
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in _SIGNS}
    verb = "would be done" if dry_run else "done"
    told = [f"{counts['new'] + counts['unasked']} {verb}", f"{counts['there']} there already"]
    refused = counts["failed"] + len(plan.left)
    told += [f"{refused} not taken"] if refused else []
    told += [f"{len(plan.over)} over"] if plan.over else []
    unasked = " No hub answers: what is there already is not known." if counts["unasked"] else ""
    return f"{', '.join(told)}.{unasked}"


def _encode(kind: str, file: Path, plan: "ImportPlan", results: "list[Result]", *, dry_run: bool) -> str:
    told = {
        "kind": kind,
        "file": str(file),
        "dry_run": dry_run,
        "steps": results,
        "over": plan.over,
        "left": plan.left,
        "settings": plan.settings,
        "notes": plan.notes,
    }
    return msgspec.json.encode(told).decode()
