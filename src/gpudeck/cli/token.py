"""gpudeck token: tokens that agents, scripts and calendars authenticate with. Works on the hub's database."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option
from gpudeck.cli.terminal import check_output, show_ago, show_table
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.text import clean, show_length
from gpudeck.model.times import read_span
from gpudeck.views.table import CellColumn

with need_hub("tokens are managed on the hub's machine"):
    from sqlalchemy import Executable

    from gpudeck.auth.accounts import Accounts, Passwords
    from gpudeck.auth.audit import Audit
    from gpudeck.auth.caller import Caller, Role
    from gpudeck.auth.tokens import Token, Tokens
    from gpudeck.database.engine import Database
    from gpudeck.ops.data_folder import local_admin, use_database

_EXAMPLES = """\b
Examples:
  gpudeck token create gpu07 --role agent --host gpu07
  (umask 077; gpudeck token create gpu07 --role agent --host gpu07 > agent.token)
  gpudeck token create rack3 --role agent --host 'gpu3*' --expires 90d
  gpudeck token create backup --role viewer    for a script that only reads
  gpudeck token list                           all tokens, with their last use
  gpudeck token revoke 7                       takes effect within seconds
"""
_COLOURS = {"live": "green", "expired": "yellow", "revoked": "grey", "account disabled": "yellow"}


@click.group("token", epilog=_EXAMPLES)
def command() -> None:
    """Create, list and revoke tokens of the hub on this machine. Run this as the hub's user."""


@command.command("create")
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice(["agent", "viewer", "user", "admin", "calendar"]),
    help="What the token allows. agent: only report; calendar: only read the calendar.",
)
@click.option("--host", metavar="NAME-OR-PATTERN", help="With --role agent: the host it may report as, such as 'gpu*'.")
@click.option("--expires", metavar="DURATION", help="How long it is valid, such as 90d. [default: forever]")
@click.option(
    "--account", metavar="NAME", help="The owner. The token ends with the account, and never has a higher role."
)
@hub_config_option
def create_token(
    name: str, *, role: Role, host: str | None, expires: str | None, account: str | None, config: Path | None
) -> None:
    """Create a token with this NAME. The secret is printed only once, alone on standard output."""
    check_output()
    expires_at = None if expires is None else time.time() + read_span("--expires", expires, allow_plain_seconds=True)

    async def create(database: Database) -> None:
        tokens, caller = Tokens(database, time.time), local_admin()
        account_id = await _find_account(database, account) if account is not None else None
        token, secret = await tokens.create(
            name,
            role,
            hosts=host,
            expires_at=expires_at,
            account_id=account_id,
            created_by=caller.name,
            also=_entry(database, caller, "create token"),
        )
        try:
            click.echo(secret)
            sys.stdout.flush()
        except OSError:
            # A secret that could not be shown, on a full disk for example, is revoked.
            await tokens.revoke(token.id, _entry(database, caller, "revoke token"))
            raise
        click.echo(f"Token {token.id} is stored in {database.place}. Its secret is shown only now.", err=True)
        click.echo(f"`gpudeck token revoke {token.id}` revokes it.", err=True)

    use_database(config, create)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Times are Unix seconds; null means never.")
@hub_config_option
def list_tokens(*, as_json: bool, config: Path | None) -> None:
    """List all tokens, including expired and revoked ones."""
    found = use_database(config, lambda database: Tokens(database, time.time).list())
    now = time.time()
    if as_json:
        shown = [msgspec.to_builtins(token) | {"state": _state(token, now)} for token in found]
        click.echo(msgspec.json.encode({"tokens": shown}))
    elif not found:
        click.echo("No token yet. `gpudeck token create NAME --role agent` creates one.")
    else:
        show_table(_columns(now), found)


@command.command("revoke")
@click.argument("token_id", metavar="ID", type=int)
@hub_config_option
def revoke_token(token_id: int, *, config: Path | None) -> None:
    """Revoke the token with this ID permanently. Exit code 1 if there is none."""

    async def revoke(database: Database) -> Token:
        token = await Tokens(database, time.time).revoke(token_id, _entry(database, local_admin(), "revoke token"))
        if token is None:
            raise GpudeckError(f"no token has the id {token_id} in {database.place}.", "`gpudeck token list` has all.")
        return token

    token = use_database(config, revoke)
    click.echo(f"Token {token.id} ({clean(token.name)}) is revoked: a running hub refuses it within seconds.")


async def _find_account(database: Database, name: str) -> int:
    account = await Accounts(database, Passwords(), time.time).find(name)
    if account is None:
        raise UsageError(f"there is no account {name!r}.", "`gpudeck account list` shows all.")
    return account.id


def _entry(database: Database, caller: Caller, action: str) -> Callable[[Token], Executable]:
    def write(token: Token) -> Executable:
        details = ", ".join(filter(None, [token.role, f"for {token.hosts}" if token.hosts else ""]))
        return Audit(database, time.time).entry(caller, action, f"{token.id} {token.name}", details=details)

    return write


def _state(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.is_disabled:
        return "account disabled"
    return "live" if token.is_live(now) else "expired"


def _columns(now: float) -> list[CellColumn[Token]]:
    return [
        CellColumn("ID", 100, "right", 20, cell=lambda token: str(token.id)),
        CellColumn("NAME", 99, cell=lambda token: token.name),
        CellColumn("ROLE", 90, widest=8, cell=lambda token: token.role),
        CellColumn("HOSTS", 70, cell=lambda token: (token.hosts or "any") if token.role == "agent" else ""),
        CellColumn("ACCOUNT", 60, widest=24, cell=lambda token: token.account or ""),
        CellColumn("STATE", 95, widest=16, cell=lambda token: (state := _state(token, now), _COLOURS[state])),
        CellColumn("CREATED", 40, widest=12, cell=lambda token: (show_ago(token.created_at, now), "grey")),
        CellColumn("LAST USED", 80, widest=12, cell=lambda token: show_ago(token.last_used_at, now)),
        CellColumn("EXPIRES", 50, widest=12, cell=lambda token: _expiry(token, now)),
        CellColumn("CREATED BY", 30, cell=lambda token: (token.created_by, "grey")),
    ]


def _expiry(token: Token, now: float) -> str:
    if _state(token, now) != "live":
        return ""
    return "never" if token.expires_at is None else f"in {show_length(token.expires_at - now)}"
