"""gpudeck account: the people who may log in. Works on the hub's own database, also before the hub ever ran."""

import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from gpudeck.auth.settings import ROLES, AccountRole
from gpudeck.cli.hub_access import use_database
from gpudeck.model.errors import UsageError
from gpudeck.model.quantity import show_span
from gpudeck.views.table import Cell, Column, render

if TYPE_CHECKING:
    from gpudeck.auth.accounts import Account, Accounts, Also
    from gpudeck.database.engine import Database

_T = TypeVar("_T")
_EXAMPLES = """\b
Examples:
  gpudeck account add ada --role admin              asks for the password, twice
  gpudeck account add ci --password-file ci.txt     its first line is the password; - reads it from the input
  gpudeck account list                              all of them, and when each was last here
  gpudeck account password ada                      a new one; ends what ada is logged in to
  gpudeck account role grace viewer
  gpudeck account disable grace                     out at once, and everything of grace's stays
  gpudeck account enable grace                      back again, with the same password
  gpudeck account remove grace                      gone, with tokens and sessions
"""
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
_PASSWORD_FILE = click.option(
    "--password-file", metavar="FILE", help="The password is the first line of FILE (- for the input): nobody is asked."
)
_LONGEST_LINE = 16_384
_COLUMNS = (
    Column("NAME", keep=100, widest=64),
    Column("ROLE", keep=99, widest=8),
    Column("STATE", keep=95, widest=10),
    Column("LOGS IN WITH", keep=60, widest=12),
    Column("LAST LOGIN", keep=80, widest=12),
    Column("CREATED", keep=40, widest=12),
)


@click.group("account", epilog=_EXAMPLES)
def command() -> None:
    """Accounts of the hub on this machine. Run it as the user whom the hub runs as. A running hub knows of each change
    within seconds."""


@command.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True, help="What they may do.")
@_PASSWORD_FILE
@click.option("--no-password", is_flag=True, help="They come through a proxy that knows them, and in no other way.")
@_CONFIG
def add_account(
    name: str, *, role: AccountRole, password_file: str | None, no_password: bool, config: Path | None
) -> None:
    """Let NAME log in. The password is asked for, or read from a file; it never stands on the command line."""
    if no_password and password_file is not None:
        raise UsageError("--password-file names a password, and --no-password wants none.", "Leave out one of the two.")

    async def add(accounts: "Accounts", also: "Also") -> "Account":
        await _check_free(accounts, name)
        added = await accounts.add(name, role, None if no_password else _read_password(password_file), also)
        if not any(account.role == "admin" for account in await accounts.list()):
            click.echo(f"Note: no account is an admin yet; `gpudeck account role {added.name} admin`.", err=True)
        return added

    added = _change(config, "add account", add, role)
    click.echo(f"{added.name} may log in, as {added.role}.")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON. Times are Unix seconds; null: never.")
@_CONFIG
def list_accounts(*, as_json: bool, config: Path | None) -> None:
    """All accounts."""
    found = use_database(config, "accounts", lambda database: _open(database).list())
    if as_json:
        click.echo(msgspec.json.encode({"accounts": found}))
    elif not found:
        click.echo("No account yet. `gpudeck account add NAME --role admin` makes one.")
    else:
        has_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if has_terminal or "COLUMNS" in os.environ else None
        colour = has_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        now = time.time()
        click.echo("\n".join(render(_COLUMNS, [_row(account, now) for account in found], width, colour)))


@command.command("remove")
@click.argument("name")
@_CONFIG
def remove_account(name: str, *, config: Path | None) -> None:
    """Forget NAME, with all sessions and tokens."""
    removed = _change(config, "remove account", lambda accounts, also: accounts.remove(name, also))
    click.echo(f"{removed.name} is removed.")


@command.command("password")
@click.argument("name")
@_PASSWORD_FILE
@_CONFIG
def set_password(name: str, *, password_file: str | None, config: Path | None) -> None:
    """Give NAME a new password. Ends all sessions of NAME."""

    async def change(accounts: "Accounts", also: "Also") -> "Account":
        await _check_there(accounts, name)
        return await accounts.change(name, password=_read_password(password_file), also=also)

    changed = _change(config, "change password", change)
    click.echo(f"{changed.name} has a new password, and is logged out everywhere.")


@command.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice(ROLES))
@_CONFIG
def set_role(name: str, role: AccountRole, *, config: Path | None) -> None:
    """Say what NAME may do: a viewer looks, a user also changes what is their own, an admin does everything."""
    changed = _change(config, "change role", lambda accounts, also: accounts.change(name, role=role, also=also), role)
    click.echo(f"{changed.name} is {role} from now on.")


@command.command("disable")
@click.argument("name")
@_CONFIG
def disable_account(name: str, *, config: Path | None) -> None:
    """Keep NAME out, and everything of NAME's as it is."""
    changed = _change(
        config, "disable account", lambda accounts, also: accounts.change(name, is_disabled=True, also=also)
    )
    click.echo(f"{changed.name} is disabled, and logged out everywhere.")


@command.command("enable")
@click.argument("name")
@_CONFIG
def enable_account(name: str, *, config: Path | None) -> None:
    """Let NAME in again."""
    changed = _change(
        config, "enable account", lambda accounts, also: accounts.change(name, is_disabled=False, also=also)
    )
    click.echo(f"{changed.name} is enabled.")


def _change(
    config: Path | None, action: str, work: "Callable[[Accounts, Also], Awaitable[Account]]", details: str = ""
) -> "Account":
    """Change an account, and write down who did it; both or nothing."""

    async def change(database: "Database") -> "Account":
        from gpudeck.auth.audit import Audit  # noqa: PLC0415 - the same
        from gpudeck.ops.own_database import caller_here  # noqa: PLC0415 - the hub may not be installed

        caller, audit = caller_here(), Audit(database)
        return await work(_open(database), lambda account: [audit.entry(caller, action, account.name, details=details)])

    return use_database(config, "accounts", change)


def _open(database: "Database") -> "Accounts":
    from gpudeck.auth.accounts import Accounts  # noqa: PLC0415 - the hub may not be installed
    from gpudeck.auth.passwords import Passwords  # noqa: PLC0415 - the same

    return Accounts(database, Passwords())


async def _check_free(accounts: "Accounts", name: str) -> None:
    """Nobody types a password twice to hear that the name was wrong."""
    from gpudeck.auth.accounts import check_name  # noqa: PLC0415 - the hub may not be installed

    if await accounts.find(check_name(name)) is not None:
        raise UsageError(
            f"there is an account {check_name(name)} already.",
            f"`gpudeck account password {check_name(name)}` gives it a new password.",
        )


async def _check_there(accounts: "Accounts", name: str) -> None:
    if await accounts.find(name) is None:
        raise UsageError(f"there is no account {name[:80]!r}.", "`gpudeck account list` shows those there are.")


def _read_password(file: str | None) -> str:
    """The first line of the file, or what is typed, twice and unseen."""
    if file is None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError("there is no terminal to type a password at.", "Give it with --password-file.")
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt="Once more", err=True)
        return typed
    try:
        with click.open_file(file, "rb") as opened:
            line = opened.readline(_LONGEST_LINE)
        return bytes(line).rstrip(b"\r\n").decode()
    except OSError as error:
        raise UsageError(f"the password file {file} cannot be read: {error.strerror}.") from error
    except UnicodeError as error:
        raise UsageError(f"the password in {file} is not text in UTF-8.") from error


def _row(account: "Account", now: float) -> list[Cell]:
    last = account.last_login_at
    return [
        (account.name, ""),
        (account.role, ""),
        ("disabled", "yellow") if account.is_disabled else ("enabled", "green"),
        ("password" if account.has_password else "proxy", ""),
        ("never" if last is None else f"{show_span(now - last)} ago", ""),
        (f"{show_span(now - account.created_at)} ago", "grey"),
    ]
