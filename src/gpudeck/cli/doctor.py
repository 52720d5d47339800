"""gpudeck doctor and check: find problems on this machine or in its configuration, and name the next step."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from gpudeck.auth.settings import LdapSettings, OidcSettings
from gpudeck.cli.hub_access import connect
from gpudeck.cli.options import config_option, find_hub
from gpudeck.collectors.redaction import clean
from gpudeck.hub_lookup import HUB_VARIABLE
from gpudeck.idle_policy.settings import find_mistakes
from gpudeck.model.errors import ConfigurationError, GpudeckError, PluginError, UsageError
from gpudeck.model.plugins import PluginKind, PluginSettings, is_installed, make_plugin, need
from gpudeck.ops.doctor import Finding
from gpudeck.ops.doctor.bundle import write_bundle
from gpudeck.ops.doctor.checks import ask_fleet, list_secrets, load_context, run_checks
from gpudeck.settings import Settings, find_missing_extras, load_settings, own_address

if TYPE_CHECKING:
    from gpudeck.auth.trials import Trial

_EXAMPLES = """\b
Examples:
  gpudeck doctor                                check the host, agent and hub of this machine
  gpudeck doctor --hub https://hub.example --token-file agent.token
  gpudeck doctor --bundle report.tar.gz         an archive for a bug report, without secrets and names
"""
_TRIAL_SECONDS: Final = 600.0
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
def command(
    *, config: Path | None, hub: str | None, token_file: str | None, on: str, as_json: bool, bundle: Path | None
) -> None:
    """Check this machine and print what is wrong, with the next step. Changes nothing. Exit code 1 if a check fails."""
    try:
        choice = find_hub(hub)
    except ConfigurationError:
        # The findings list the errors of the configuration.
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
        members = write_bundle(bundle, context.settings, findings, ask_fleet(context), list_secrets(context))
        click.echo(f"Wrote {bundle}: {', '.join(members)}. Check it before you send it.", err=True)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if as_json:
        click.echo(msgspec.json.encode({"failed": failed, "findings": findings}))
    else:
        warned = sum(finding.verdict == "warn" for finding in findings)
        click.echo(f"\n{len(findings)} checks: {failed} failed, {warned} {'warning' if warned == 1 else 'warnings'}.")
    sys.exit(1 if failed else 0)


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.verdict]
    head = click.style(f"{mark} {finding.verdict:<4}", fg=colour)
    click.echo(f"{head} {finding.area:<8} {finding.name:<12} {clean(finding.told)}")
    if finding.next_step:
        click.echo(f"{'':<29}→ {clean(finding.next_step)}")


_CHECK_EXAMPLES = """\b
Examples:
  gpudeck check                          the file that `gpudeck up` would read
  gpudeck check --config new.yaml        another file
  gpudeck check --login sso              try a login through the provider sso
"""


@click.command("check", epilog=_CHECK_EXAMPLES)
@config_option
@click.option("--login", metavar="PROVIDER", help="Also try a login through this provider of `login.oidc`, or ldap.")
def check_command(config: Path | None, login: str | None) -> None:
    """Check the configuration, and print every mistake at once. Without --login, opens no socket and reads no GPU. Exit
    code 2 if there is a mistake."""
    settings, file = load_settings(config)
    # On a machine without a hub, a hub's file can be checked, too: installed packages are irrelevant then.
    errors = find_missing_extras(settings) if is_installed("hub") else []
    if errors:
        raise ConfigurationError("\n".join(f"{file}: {error}" for error in errors))
    if is_installed("hub") and (mistakes := find_login_mistakes(settings)):
        raise ConfigurationError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    if is_installed("hub") and (mistakes := find_plugin_mistakes(settings)):
        raise ConfigurationError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    if is_installed("hub") and (mistakes := find_mistakes(settings.idle_policy)):
        raise ConfigurationError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    click.echo("No configuration file: every setting has its default." if file is None else f"{file}: no mistakes.")
    if login is not None:
        with _unlogged("gpudeck.auth"):
            _check_login(settings, login)


@contextlib.contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Without warnings of that logger: they repeat what is printed."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def find_login_mistakes(settings: Settings) -> list[str]:
    """Files with secrets and certificates that cannot be read."""
    mistakes = list[str]()
    if settings.login.oidc:
        from gpudeck.auth.oidc import OidcProvider  # noqa: PLC0415 - its libraries come with the hub

        for provider in settings.login.oidc:
            try:
                OidcProvider(provider, "")
            except UsageError as error:
                mistakes.append(str(error))
    if settings.login.ldap is not None:
        from gpudeck.auth.ldap import LdapDirectory  # noqa: PLC0415 - the same

        try:
            LdapDirectory(settings.login.ldap).close()
        except UsageError as error:
            mistakes.append(str(error))
    return mistakes


def find_plugin_mistakes(settings: Settings) -> list[str]:
    """Errors in the options of plugins, as the plugins report them. Creating a plugin opens nothing."""
    used: list[tuple[PluginKind, PluginSettings]] = [("discovery", one) for one in settings.discovery.plugins]
    used += [("schedulers", one) for one in settings.schedulers.plugins]
    mistakes = list[str]()
    for kind, one in used:
        try:
            make_plugin(kind, one)
        except PluginError as error:
            mistakes.append(str(error))
    return mistakes


def _check_login(settings: Settings, name: str) -> None:
    """Try a login, and print what the provider or directory says about the user, and the resulting account. Raises
    UsageError for a provider that is not configured, and GpudeckError for a login that fails."""
    if name == "ldap" and settings.login.ldap is not None:
        _try_directory(settings.login.ldap)
        return
    provider = next((one for one in settings.login.oidc if one.name == name), None)
    if provider is None or settings.public_url is None:
        directory = [] if settings.login.ldap is None else ["ldap"]
        known = ", ".join([*(one.name for one in settings.login.oidc), *directory]) or "none is configured"
        raise UsageError(f"there is no provider {name[:64]!r} in login.oidc.", f"Providers: {known}.")
    need("hub", "checking a provider")
    asyncio.run(_check_provider(provider, settings.public_url))
    _try_provider(own_address(settings), provider)


def _try_directory(settings: LdapSettings) -> None:
    need("hub", "checking a directory")
    from gpudeck.auth.ldap import LdapDirectory  # noqa: PLC0415 - its library comes with the hub
    from gpudeck.auth.ldap_logins import try_login  # noqa: PLC0415 - the same
    from gpudeck.auth.trials import Trial  # noqa: PLC0415 - the same

    name = click.prompt("Name", err=True)
    password = click.prompt("Password (empty: only look the user up)", default="", hide_input=True, err=True)
    with contextlib.closing(LdapDirectory(settings)) as directory:
        trial = asyncio.run(try_login(directory, Trial("", "ldap", "", 0.0), name, password or None, None))
    click.echo("! Tried for a user without an account: Login providers on the page also looks at the hub's accounts.")
    _show_trial(trial)


async def _check_provider(settings: OidcSettings, public_url: str) -> None:
    from gpudeck.auth.oidc import OidcProvider, redirect_uri  # noqa: PLC0415 - its libraries come with the hub

    provider = OidcProvider(settings, redirect_uri(public_url, settings.name))
    click.echo(f"Redirect URI to register:     {provider.redirect_uri}")
    click.echo(f"Back-channel logout URI:      {provider.redirect_uri.removesuffix('callback')}logout")
    try:
        document = await provider.document()
        click.echo(f"The provider answers:         {clean(document.issuer)}")
        offered = document.scopes_supported
        for scope in [] if offered is None else [scope for scope in settings.scopes if scope not in offered]:
            click.echo(f"! The provider does not offer the scope {scope}: users may get an error there.")
    finally:
        await provider.close()


def _try_provider(hub: str, provider: OidcSettings) -> None:
    """Through the running hub, because the provider redirects users only there."""
    from gpudeck.auth.trials import Trial  # noqa: PLC0415 - comes with the hub

    with connect(hub) as client:
        trial = client.read(client.post("/api/v1/login/trials", {"provider": provider.name}), Trial)
        click.echo(f"\nOpen this in any browser and log in; nobody is logged in by it:\n  {trial.url}\nWaiting…")
        end = time.monotonic() + _TRIAL_SECONDS
        while trial.state == "waiting":
            if time.monotonic() > end:
                raise GpudeckError("nobody logged in within 10 minutes.", "Run the command again.")
            time.sleep(1.0)
            trial = client.read(client.get(f"/api/v1/login/trials/{trial.id}"), Trial)
    _show_trial(trial)


def _show_trial(trial: "Trial") -> None:
    """Raises GpudeckError if the login was refused."""
    if trial.provider == "ldap":
        _show_claims("Attributes", trial.claims)
    else:
        _show_claims("Claims of the ID token", trial.claims)
        _show_claims("Claims of userinfo", trial.userinfo)
    if trial.state == "done" and trial.problem:
        click.echo(f"! {clean(trial.problem)}")
    click.echo("\nWhat becomes of them:" if trial.reasons else "")
    for reason in trial.reasons:
        click.echo(f"  {reason.what}: {clean(reason.value) or 'none'} ({clean(reason.why)})")
    if trial.state != "done":
        raise GpudeckError(f"this login is refused: {clean(trial.problem)}")
    click.echo(f"\nThis user would log in as {clean(trial.name)}, with the role {trial.role}.")


def _show_claims(title: str, claims: Mapping[str, Any]) -> None:
    click.echo(f"\n{title}:")
    for name, value in claims.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        click.echo(f"  {clean(name)}: {clean(text)}")
    if not claims:
        click.echo("  none")
