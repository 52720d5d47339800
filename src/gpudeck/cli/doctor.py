"""gpudeck doctor and check: what is wrong on this machine, or in its configuration file, and the next step."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gpudeck.cli.options import config_option
from gpudeck.model.errors import ConfigurationError, PluginError
from gpudeck.model.plugins import is_installed
from gpudeck.settings import Settings, find_missing_extras, load_settings

if TYPE_CHECKING:
    from gpudeck.ops.doctor import Finding

_EXAMPLES = """\b
Examples:
  gpudeck doctor                                check the host, agent and hub of this machine
  gpudeck doctor --hub https://hub.example --token-file agent.token
  gpudeck doctor --on hub                       only the hub of this machine
  gpudeck doctor --bundle report.tar.gz         an archive for a bug report, without secrets and names
"""
_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "skip": ("–", "bright_black")}


@click.command("doctor", epilog=_EXAMPLES)
@config_option
@click.option("--hub", metavar="URL", help="The hub to which this machine reports.")
@click.option(
    "--token-file", metavar="FILE", help="The agent's token file. [default: agent.token_file of the configuration]"
)
@click.option(
    "--on",
    type=click.Choice(["auto", "host", "hub"]),
    default="auto",
    show_default=True,
    help="What to check: a GPU host, a hub, or what is found here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), help="Write an archive for a bug report.")
@click.option("--with-names", is_flag=True, help="Keep the names of hosts and users, and commands, in the archive.")
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
    """Check this machine and print what is wrong, with the next step. Changes nothing. Exit code 1 if a check fails."""
    from gpudeck.cli.hub_choice import find_hub  # noqa: PLC0415 - the same
    from gpudeck.hub_lookup import HUB_VARIABLE  # noqa: PLC0415 - the same
    from gpudeck.ops.doctor.checks import load_context, run_checks  # noqa: PLC0415 - the help needs none

    try:
        choice = find_hub(hub)
    except ConfigurationError:
        # Its mistakes are among the findings.
        choice = None
    named = None if choice is None or choice.named_by == "default" else choice
    asked = choice.url if choice is not None and choice.named_by in {"--hub", f"${HUB_VARIABLE}"} else None
    context = load_context(config, asked, token_file, on, named)
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
        click.echo(f"Wrote {bundle}: {', '.join(members)}. Check it before you send it.", err=True)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if as_json:
        click.echo(msgspec.json.encode({"failed": failed, "findings": findings}))
    else:
        warned = sum(finding.verdict == "warn" for finding in findings)
        click.echo(f"\n{len(findings)} checks: {failed} failed, {warned} {'warning' if warned == 1 else 'warnings'}.")
    sys.exit(1 if failed else 0)


def _show(finding: "Finding") -> None:
    mark, colour = _MARKS[finding.verdict]
    from gpudeck.collectors.redaction import clean  # noqa: PLC0415 - what others said may hold anything

    head = click.style(f"{mark} {finding.verdict:<4}", fg=colour)
    click.echo(f"{head} {finding.area:<8} {finding.name:<12} {clean(finding.told)}")
    if finding.next_step:
        click.echo(f"{'':<29}→ {clean(finding.next_step)}")


_CHECK_EXAMPLES = """\b
Examples:
  gpudeck check                          the file that `gpudeck up` would read
  gpudeck check --config new.yaml        another file
  gpudeck check --login sso              try a login through the provider sso
  gpudeck check --login ldap             try a name and a password of the directory
"""


@click.command("check", epilog=_CHECK_EXAMPLES)
@config_option
@click.option("--login", metavar="PROVIDER", help="Also try a login through this provider of `login.oidc`, or ldap.")
def check_command(config: Path | None, login: str | None) -> None:
    """Check the configuration, and print every mistake at once. Without --login, opens no socket and reads no GPU. Exit
    code 2 if there is a mistake."""
    settings, file = load_settings(config)
    # On a machine without a hub a file for one can be checked as well: what is installed here says nothing then.
    errors = find_missing_extras(settings) if is_installed("hub") else []
    if errors:
        raise ConfigurationError("\n".join(f"{file}: {error}" for error in errors))
    if is_installed("hub") and settings.login.oidc:
        from gpudeck.auth.oidc import read_secret  # noqa: PLC0415 - its libraries come with the hub

        for provider in settings.login.oidc:
            read_secret(provider)
    if is_installed("hub") and settings.login.ldap is not None:
        from gpudeck.auth.ldap import LdapDirectory  # noqa: PLC0415 - the same

        LdapDirectory(settings.login.ldap).close()
    if is_installed("hub") and (mistakes := find_plugin_mistakes(settings)):
        raise ConfigurationError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    click.echo("No configuration file: every setting has its default." if file is None else f"{file}: no mistakes.")
    if login is not None:
        from gpudeck.cli.check_login import check_login  # noqa: PLC0415 - seldom wanted

        check_login(settings, login)


def find_plugin_mistakes(settings: Settings) -> list[str]:
    """What the plugins say of their options. They open nothing until they are read."""
    from gpudeck.discovery.plugin import PluginProvider  # noqa: PLC0415 - comes with the hub
    from gpudeck.schedulers.plugin import PluginScheduler  # noqa: PLC0415 - the same

    used: list[PluginProvider | PluginScheduler] = [PluginProvider(one) for one in settings.discovery.plugins]
    used += [PluginScheduler(one) for one in settings.schedulers.plugins]
    mistakes = list[str]()
    for one in used:
        try:
            one.make()
        except PluginError as error:
            mistakes.append(str(error))
    return mistakes
