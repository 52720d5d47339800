"""gpudeck sessions: where an account is logged in, in browsers and with personal tokens, and the end of it."""

import time

import click
import msgspec
from msgspec import Struct

from gpudeck.cli.hub_access import ask
from gpudeck.cli.options import hub_option
from gpudeck.cli.terminal import show_table
from gpudeck.client import Client
from gpudeck.client.connection import in_path
from gpudeck.model.errors import UsageError
from gpudeck.model.text import clean, show_length, show_span
from gpudeck.views.table import Cell, Column

_EXAMPLES = """\b
Examples:
  gpudeck sessions                        your logins
  gpudeck sessions --all                  those of all accounts, for admins
  gpudeck sessions end 3f0c2a9b41d8e677   log out a browser
  gpudeck sessions end 12                 revoke a personal token
"""
_COLUMNS = (
    Column("ID", keep=100, widest=20),
    Column("KIND", keep=90, widest=8),
    Column("ACCOUNT", keep=95, widest=24),
    Column("WHERE", keep=60, widest=48),
    Column("BEGAN", keep=50, widest=12),
    Column("LAST USED", keep=80, widest=12),
    Column("EXPIRES", keep=40, widest=12),
)
_SESSION_ID_LENGTH = 16
"""Numbers of tokens are shorter."""


class _Login(Struct, frozen=True):
    id: str
    kind: str
    account: str
    where: str
    created_at: float
    last_used_at: float | None
    expires_at: float | None


class _Session(Struct, frozen=True):
    id: str
    account: str
    created_at: float
    seen_at: float
    address: str
    user_agent: str


class _Sessions(Struct, frozen=True):
    sessions: list[_Session]


class _Token(Struct, frozen=True):
    id: int
    name: str
    account: str | None
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    revoked_at: float | None
    is_disabled: bool


class _Tokens(Struct, frozen=True):
    tokens: list[_Token]


@click.group("sessions", epilog=_EXAMPLES, invoke_without_command=True)
@click.option("--all", "is_all", is_flag=True, help="Of all accounts. Only admins may.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Times are Unix seconds; null means never.")
@hub_option
@click.pass_context
def command(ctx: click.Context, *, is_all: bool, as_json: bool, hub: str) -> None:
    """List logins: browsers, and personal tokens such as those of `gpudeck login`."""
    ctx.ensure_object(dict)["hub"] = hub
    if ctx.invoked_subcommand is not None:
        return
    found = ask(hub, lambda client: _list(client, is_all=is_all))
    if as_json:
        click.echo(msgspec.json.encode({"sessions": found}))
    elif not found:
        click.echo("No login is active.")
    else:
        now = time.time()
        show_table(_COLUMNS, [_row(one, now) for one in found])


@command.command("end")
@click.argument("login", metavar="ID")
@hub_option
@click.pass_context
def end_session(ctx: click.Context, login: str, *, hub: str) -> None:
    """End the login with this ID: log out the browser, or revoke the token. Admins can end any."""
    if len(login) != _SESSION_ID_LENGTH and not (login.isascii() and login.isdigit()):
        raise UsageError(f"{clean(login)[:40]} is no id of a login.", "`gpudeck sessions` lists them.")
    named = click.get_current_context().get_parameter_source("hub") is click.core.ParameterSource.COMMANDLINE
    ask(hub if named else ctx.obj["hub"], lambda client: _end(client, login))
    click.echo(f"{login} is ended.")


def _list(client: Client, *, is_all: bool) -> list[_Login]:
    base = "/api/v1" if is_all else "/api/v1/me"
    now = time.time()
    browsers = client.read(client.get(f"{base}/sessions"), _Sessions).sessions
    tokens = client.read(client.get(f"{base}/tokens"), _Tokens).tokens
    logins = [
        _Login(
            one.id,
            "browser",
            one.account,
            f"{one.address} {one.user_agent.partition(' ')[0]}".strip(),
            one.created_at,
            one.seen_at,
            None,
        )
        for one in browsers
    ]
    logins += [
        _Login(str(one.id), "token", one.account, one.name, one.created_at, one.last_used_at, one.expires_at)
        for one in tokens
        if one.account is not None and _is_live(one, now)
    ]
    return sorted(logins, key=lambda one: -(one.last_used_at or one.created_at))


def _is_live(token: _Token, now: float) -> bool:
    is_over = token.expires_at is not None and token.expires_at <= now
    return not (is_over or token.is_disabled or token.revoked_at is not None)


def _end(client: Client, login: str) -> None:
    base = "/api/v1" if client.me().may_administer else "/api/v1/me"
    kind = "sessions" if len(login) == _SESSION_ID_LENGTH else "tokens"
    client.delete(f"{base}/{kind}/{in_path(login)}")


def _row(one: _Login, now: float) -> list[Cell]:
    return [
        (one.id, ""),
        (one.kind, ""),
        (clean(one.account), ""),
        (clean(one.where), ""),
        (f"{show_span(now - one.created_at)} ago", "grey"),
        ("never" if one.last_used_at is None else f"{show_span(now - one.last_used_at)} ago", ""),
        ("" if one.expires_at is None else f"in {show_length(one.expires_at - now)}", ""),
    ]
