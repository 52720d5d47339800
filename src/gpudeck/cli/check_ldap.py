"""gpudeck check --login ldap: what the directory says about one user, what becomes of it, and why."""

import asyncio

import click
import msgspec

from gpudeck.auth.settings import LdapSettings
from gpudeck.model.errors import GpudeckError
from gpudeck.model.plugins import need
from gpudeck.model.text import clean


def check_directory(settings: LdapSettings) -> None:
    """Asks for a name and a password. Raises GpudeckError for a user who could not log in."""
    need("hub", "checking a directory")
    from gpudeck.auth.ldap_logins import try_login  # noqa: PLC0415 - its library comes with the hub

    name = click.prompt("Name", err=True)
    password = click.prompt("Password (empty: only look the user up)", default="", hide_input=True, err=True)
    trial = asyncio.run(try_login(settings, name, password or None))
    if trial.dn:
        click.echo(f"Entry: {clean(trial.dn)}\n\nAttributes:")
    for attribute, value in trial.claims.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        click.echo(f"  {clean(attribute)}: {clean(text)}")
    if trial.mapped is None:
        raise GpudeckError(f"this login is refused: {clean(trial.problem)}.")
    click.echo("\nWhat becomes of them:")
    for reason in trial.mapped.reasons:
        click.echo(f"  {reason.what}: {clean(reason.value) or 'none'} ({clean(reason.why)})")
    role = trial.mapped.role or trial.mapped.role_if_new or "none"
    click.echo(f"\nThis user would log in as {clean(trial.mapped.name)}, with the role {role}.")
