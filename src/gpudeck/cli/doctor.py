"""gpudeck doctor: what is wrong on this machine, and the next step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpudeck.ops.doctor.finding import Finding

_EXAMPLES = """\b
Examples:
  gpudeck doctor                                what is wrong here: host, agent, hub, as far as they are here
  gpudeck doctor --hub https://hub.example --token-file agent.token
  gpudeck doctor --on hub                       the hub of this machine alone
  gpudeck doctor --bundle report.tar.gz         an archive for a bug report, without secrets and names
"""
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "skip": ("–", "bright_black")}


@click.command("doctor", epilog=_EXAMPLES)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration file (default: see the docs).")
@click.option("--hub", metavar="URL", envvar="GPUDECK_HUB", help="The hub that this machine reports to.")
@click.option("--token-file", metavar="FILE", help="The token that the agent brings (default: agent.token_file).")
@click.option(
    "--on",
    type=click.Choice(["auto", "host", "hub"]),
    default="auto",
    show_default=True,
    help="What this machine is looked at as; auto: what is found here.",
)
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), help="Write an archive for a bug report.")
@click.option("--with-names", is_flag=True, help="Leave hosts, users and commands in the archive.")
def command(
    *,
    config: Path | None,
    hub: str | None,
    token_file: str | None,
    on: str,
    as_json: bool,
    bundle: Path | None,
    with_names: bool,
) -> None:
    """Say what is wrong on this machine, each line with the next step. Changes nothing. Exit code 1 when something
    fails."""
    from gpudeck.ops.doctor.checks import load_context, run_checks  # noqa: PLC0415 - the help needs none

    context = load_context(config, hub, token_file, on)
    findings: list[Finding] = []
    for finding in run_checks(context):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if bundle is not None:
        from gpudeck.ops.doctor.bundle import write_bundle  # noqa: PLC0415 - seldom wanted
        from gpudeck.ops.doctor.checks import ask_fleet, list_secrets  # noqa: PLC0415 - the same

        fleet, secrets = ask_fleet(context), list_secrets(context)
        members = write_bundle(bundle, context.settings, findings, fleet, secrets, with_names=with_names)
        click.echo(f"Wrote {bundle}: {', '.join(members)}. Look through it before you send it.", err=True)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if as_json:
        import msgspec  # noqa: PLC0415 - the same

        click.echo(msgspec.json.encode({"failed": failed, "findings": findings}))
    else:
        warned = sum(finding.verdict == "warn" for finding in findings)
        click.echo(f"\n{failed} failed, {warned} to look at, {len(findings)} looked at.")
    sys.exit(1 if failed else 0)


def _show(finding: "Finding") -> None:
    mark, colour = _MARKS[finding.verdict]
    from gpudeck.collectors.redaction import clean  # noqa: PLC0415 - what others said may hold anything

    head = click.style(f"{mark} {finding.verdict:<4}", fg=colour)
    click.echo(f"{head} {finding.area:<8} {finding.name:<12} {clean(finding.told)}")
    if finding.next_step:
        click.echo(f"{'':<29}→ {clean(finding.next_step)}")
