"""gpudeck import: the hosts, reservations and settings of the monitor that a site had before."""

import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from gpudeck.cli.hub_access import machine_zone, open_client
from gpudeck.cli.options import hub_config_option, hub_option
from gpudeck.compat import importing
from gpudeck.compat.importing import ImportPlan, ImportResult
from gpudeck.model.text import clean

_AFTER = """\b
Kinds:
  vesta            its settings (YAML) or its database (gpu_states.db)
  gpumonitor       its config.yml
  web-gpu-monitor  its config.ini
  gpu-monitor      its data folder, comments.json or hosts.json
  jobstats         summaries of Slurm jobs (JS1:) as sacct prints them; - reads standard input

\b
Exit codes:
  0  everything is imported
  1  some entries could not be imported; they are printed
  2  wrong usage, or a file of another kind
  3  the hub does not answer; a dry run needs none

\b
Examples:
  gpudeck import gpumonitor config.yml --dry-run   what would be done
  gpudeck import gpumonitor config.yml             import it
  sacct -P -X -a -S 2026-01-01 -o JobID,Start,User,Account,State,AdminComment | gpudeck import jobstats -
"""
_SIGNS = {"new": "+", "there": "=", "failed": "!", "unasked": "+"}


@click.command("import", epilog=_AFTER)
@click.argument("kind", metavar="KIND", type=click.Choice(list(importing.KINDS)))
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan and the results as JSON.")
@click.option("--scheduler", metavar="NAME", default="slurm", help="The scheduler of imported jobs. [default: slurm]")
@hub_option
@hub_config_option
def command(
    *, kind: str, file: Path, dry_run: bool, as_json: bool, scheduler: str, hub: str, config: Path | None
) -> None:
    """Import FILE of another monitor: hosts, reservations and jobs are added, and settings for gpudeck.yaml are
    printed. Run this on the hub's machine, or with an admin's token in $GPUDECK_TOKEN.

    Existing hosts, reservations and jobs stay unchanged, so you can repeat the import. Entries that cannot be imported
    are printed with their place in the file.
    """
    here = importing.ImportContext(time.time(), machine_zone(), scheduler)
    plan = importing.find_reader(kind)(file, here)
    target = importing.ImportTarget(open_client(hub, config))
    work = (importing.check_steps if dry_run else importing.apply_steps)(plan.steps, target)
    results = list(work) if as_json else _print_results(plan, work, dry_run=dry_run)
    if as_json:
        click.echo(_encode(kind, file, plan, results, dry_run=dry_run))
    if plan.left or any(result.outcome == "failed" for result in results):
        sys.exit(1)


def _print_results(plan: ImportPlan, work: Iterable[ImportResult], *, dry_run: bool) -> list[ImportResult]:
    """The results as they come, and what a person has to do then."""
    results = []
    for result in work:
        results.append(result)
        detail = f": {result.detail}" if result.detail else ""
        click.echo(f"{_SIGNS[result.outcome]} {clean(result.what + detail)}")
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


def _sum_up(plan: ImportPlan, results: list[ImportResult], *, dry_run: bool) -> str:
    counts = Counter[str]()
    for result in results:
        counts.update(result.counts or {result.outcome: 1})
    kinds = {result.kind for result in results if result.counts is not None}
    number = counts["new"] + counts["unasked"]
    named = f"{number} {kind}{'s' * (number != 1)}" if (kind := next(iter(kinds), "")) else f"{number}"
    verb = "would be done" if dry_run else "done"
    told = [f"{named} {verb}", f"{counts['there']} already present"]
    refused = counts["failed"] + len(plan.left)
    told += [f"{refused} not imported"] if refused else []
    told += [f"{len(plan.over)} skipped"] if plan.over else []
    is_unasked = any(result.outcome == "unasked" for result in results)
    unasked = " No hub answers, so existing entries are not known." if is_unasked else ""
    return f"{', '.join(told)}.{unasked}"


def _encode(kind: str, file: Path, plan: ImportPlan, results: list[ImportResult], *, dry_run: bool) -> str:
    asked = {"kind": kind, "file": str(file), "dry_run": dry_run}
    plain = {"over": plan.over, "left": plan.left, "settings": plan.settings, "notes": plan.notes}
    return msgspec.json.encode(asked | {"steps": results} | plain).decode()
