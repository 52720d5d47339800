"""gpudeck check --login: asks a provider, and has a login tried through the running hub: what it brings, and why."""

import asyncio
import time
from typing import Any, Final

import click
import msgspec
from msgspec import Struct, field

from gpudeck.auth.settings import OidcSettings
from gpudeck.cli.hub_access import connect
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.plugins import need
from gpudeck.model.text import clean
from gpudeck.settings import Settings, own_address

WAIT_SECONDS: Final = 600.0
_PAUSE_SECONDS: Final = 1.0


class _Reason(Struct):
    what: str
    value: str
    why: str


class _Trial(Struct):
    """What of the hub's answer is shown."""

    id: str
    url: str
    state: str
    problem: str = ""
    name: str = ""
    role: str | None = None
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    reasons: list[_Reason] = field(default_factory=list)


def check_login(settings: Settings, name: str) -> None:
    """`ldap` is the directory. Raises UsageError for a provider that is not configured, and GpudeckError for a login
    that does not succeed."""
    if name == "ldap" and settings.login.ldap is not None:
        from gpudeck.cli.check_ldap import check_directory  # noqa: PLC0415 - one of two

        check_directory(settings.login.ldap)
        return
    provider = next((one for one in settings.login.oidc if one.name == name), None)
    if provider is None or settings.public_url is None:
        directory = [] if settings.login.ldap is None else ["ldap"]
        known = ", ".join([*(one.name for one in settings.login.oidc), *directory]) or "none is configured"
        raise UsageError(f"there is no provider {name[:64]!r} in login.oidc.", f"Providers: {known}.")
    need("hub", "checking a provider")
    asyncio.run(_check_provider(provider, settings.public_url))
    _try_login(own_address(settings), provider)


async def _check_provider(settings: OidcSettings, public_url: str) -> None:
    from gpudeck.auth.oidc import OidcProvider, redirect_uri  # noqa: PLC0415 - its libraries come with the hub

    provider = OidcProvider(settings, redirect_uri(public_url, settings.name))
    click.echo(f"Redirect URI to register:     {provider.redirect_uri}")
    click.echo(f"Back-channel logout URI:      {provider.redirect_uri.removesuffix('callback')}logout")
    try:
        document = await provider.document()
        click.echo(f"The provider answers:         {clean(document.issuer)}")
        for scope in _missing(settings.scopes, document.scopes_supported):
            click.echo(f"! The provider does not offer the scope {scope}: users may get an error there.")
    finally:
        await provider.close()


def _missing(wanted: list[str], offered: list[str] | None) -> list[str]:
    return [] if offered is None else [scope for scope in wanted if scope not in offered]


def _try_login(hub: str, provider: OidcSettings) -> None:
    """Through the running hub, as the provider sends users back only there."""
    with connect(hub) as client:
        trial = client.read(client.post("/api/v1/login/trials", {"provider": provider.name}), _Trial)
        click.echo(f"\nOpen this in any browser and log in; nobody is logged in by it:\n  {trial.url}\nWaiting…")
        end = time.monotonic() + WAIT_SECONDS
        while trial.state == "waiting":
            if time.monotonic() > end:
                raise GpudeckError("nobody logged in within 10 minutes.", "Run the command again.")
            time.sleep(_PAUSE_SECONDS)
            trial = client.read(client.get(f"/api/v1/login/trials/{trial.id}"), _Trial)
    _show(trial)
    if trial.state != "done":
        raise GpudeckError(f"this login is refused: {clean(trial.problem)}")
    click.echo(f"\nThis user would log in as {clean(trial.name)}, with the role {trial.role or 'none'}.")


def _show(trial: _Trial) -> None:
    for title, claims in (("Claims of the ID token", trial.claims), ("Claims of userinfo", trial.userinfo)):
        click.echo(f"\n{title}:")
        for name, value in claims.items() or [("none", "")]:
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            click.echo(f"  {clean(name)}: {clean(text)}" if text else f"  {clean(name)}")
    if trial.state == "done" and trial.problem:
        click.echo(f"! {clean(trial.problem)}")
    click.echo("\nWhat becomes of them:" if trial.reasons else "")
    for reason in trial.reasons:
        click.echo(f"  {reason.what}: {clean(reason.value) or 'none'} ({clean(reason.why)})")
