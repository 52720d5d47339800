"""gpudeck login, logout and whoami: a personal token for this user on this machine."""

import time
from typing import TextIO

import click

from gpudeck.cli.hub_access import ask
from gpudeck.cli.hub_lookup import SavedLogin, find_hub, forget_login, load_login, save_login
from gpudeck.cli.options import hub_option
from gpudeck.client import Client, Forbidden
from gpudeck.client.answers import Identity
from gpudeck.collectors.host import host_name
from gpudeck.model.address import is_same_hub
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.text import clean, show_length

_EXAMPLES = """\b
Examples:
  gpudeck login http://hub:8042        asks for name and password
  gpudeck login hub:8042 --days 7      log in for a week
  gpudeck whoami                       your account and role
  gpudeck logout                       revoke the token
"""


@click.command("login", epilog=_EXAMPLES)
@click.argument("url", required=False)
@click.option("--name", metavar="NAME", help="Your account's name. [default: prompt]")
@click.option(
    "--password-file", type=click.File(), help="Read the password from the first line of FILE; - is standard input."
)
@click.option(
    "--days", type=click.IntRange(1, 365), default=30, show_default=True, help="How many days the login lasts."
)
def command(url: str | None, *, name: str | None, password_file: TextIO | None, days: int) -> None:
    """Log in to a hub, and use it for all further commands.

    The hub gives out a personal token, which is saved in ~/.config/gpudeck/login.json (mode 600) and sent only to
    this hub. It expires after --days days; `gpudeck logout` revokes it.
    """
    hub = find_hub(url).url
    client = Client(hub)
    me = client.me()
    if not me.can_log_in:
        raise UsageError(f"{client.shown} has no accounts.", _without_accounts(me))
    typed = name or click.prompt("Name", err=True)
    if password_file is None:
        password = click.prompt("Password", hide_input=True, err=True)
    else:
        password = password_file.readline().rstrip("\n")
    made = client.log_in(typed, password, f"gpudeck login on {host_name()}", days * 86_400)
    _revoke(load_login())
    try:
        file = save_login(SavedLogin(hub, made.account, made.secret, made.expires_at))
    except OSError as error:
        client.with_token(made.secret).revoke_own_token()
        reason = str(error.strerror).lower()
        raise GpudeckError(f"the login cannot be saved: {error.filename}: {reason}.") from error
    click.echo(f"Logged in to {client.shown} as {clean(made.account)} for {days} days ({file}).")


def _without_accounts(me: Identity) -> str:
    if me.kind == "local":
        return "You can use it from this machine without a login."
    return (
        "Create the first account: open the link that the hub printed at its start, or run "
        "`gpudeck account add NAME --role admin` on its machine, as the hub's user."
    )


@click.command("logout", epilog="\b\nExamples:\n  gpudeck logout")
def logout_command() -> None:
    """Log out: revoke the saved token on its hub, and delete it here."""
    saved = load_login()
    if saved is None:
        raise GpudeckError("you are not logged in.", "Log in with `gpudeck login URL`.")
    problem = _revoke(saved)
    forget_login()
    if problem:
        left = show_length(max(0.0, saved.expires_at - time.time()))
        raise GpudeckError(
            f"logged out here, but the token is not revoked: {problem.rstrip('.')}.", f"It expires in {left}."
        )
    click.echo(f"Logged out of {Client(saved.hub).shown}.")


def _revoke(saved: SavedLogin | None) -> str:
    """Why it cannot be revoked; empty where it is, or was before."""
    if saved is None:
        return ""
    try:
        Client(saved.hub, token=saved.token).revoke_own_token()
    except Forbidden:
        # Expired, or revoked already.
        return ""
    except (Unreachable, GpudeckError) as error:
        return error.message
    return ""


@click.command("whoami", epilog="\b\nExamples:\n  gpudeck whoami --hub hub:8042")
@hub_option
def whoami_command(*, hub: str) -> None:
    """Show your account and role on the hub. Exit code 1 if you are not logged in."""
    me = ask(hub, lambda client: client.me())
    shown = Client(hub).shown
    if me.kind == "nobody":
        step = (
            f"Log in with `gpudeck login {shown}`." if me.can_log_in else f"It has no accounts. {_without_accounts(me)}"
        )
        raise GpudeckError(f"you are not logged in to {shown}.", step)
    saved = load_login()
    until = ""
    if saved is not None and is_same_hub(saved.hub, hub) and me.name == saved.name:
        until = f", logged in for {show_length(max(0.0, saved.expires_at - time.time()))} more"
    click.echo(f"{clean(me.name)} ({me.role}) at {shown}{until}.")
