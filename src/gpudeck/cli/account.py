"""gpudeck account: accounts that can log in. Works on the hub's database, also before the hub's first start."""

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import msgspec

from gpudeck.auth.settings import ROLES, AccountRole
from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option
from gpudeck.cli.terminal import show_ago, show_table
from gpudeck.model.errors import UsageError
from gpudeck.views.table import CellColumn

with need_hub("accounts are managed on the hub's machine"):
    from gpudeck.auth.accounts import Account, Accounts, Also, Passwords, check_name
    from gpudeck.auth.audit import Audit
    from gpudeck.database.engine import Database
    from gpudeck.ops.data_folder import local_admin, use_database

_EXAMPLES = """\b
Examples:
  gpudeck account add ada --role admin              prompts for the password
  gpudeck account add ci --password-file ci.txt     the password is its first line; - is standard input
  gpudeck account list                              all accounts, with their last login
  gpudeck account password ada                      a new password; ends all sessions
  gpudeck account role grace viewer
  gpudeck account disable grace                     no login from now on; nothing is deleted
  gpudeck account enable grace                      allow login again, with the same password
  gpudeck account remove grace                      delete it, with tokens and sessions
"""
_PASSWORD_FILE = click.option(
    "--password-file", metavar="FILE", help="Read the password from the first line of FILE; - is standard input."
)
_MAX_LINE_LENGTH = 16_384


@click.group("account", epilog=_EXAMPLES)
def command() -> None:
    """Manage the accounts of the hub on this machine. Run this as the hub's user. A running hub applies
    changes within seconds."""


@command.command("add")
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True, help="The role.")
@_PASSWORD_FILE
@click.option("--no-password", is_flag=True, help="Allow login only through an authenticating proxy.")
@hub_config_option
def add_account(
    name: str, *, role: AccountRole, password_file: str | None, no_password: bool, config: Path | None
) -> None:
    """Create an account. The command prompts for the password, or reads it from a file."""
    if no_password and password_file is not None:
        raise UsageError("--password-file and --no-password exclude each other.")

    async def add(accounts: Accounts, also: Also) -> Account:
        await _check_free(accounts, name)
        added = await accounts.add(name, role, None if no_password else _read_password(password_file), also)
        if not any(account.role == "admin" for account in await accounts.list()):
            click.echo(f"Note: no account is an admin yet; `gpudeck account role {added.name} admin`.", err=True)
        return added

    added = _change(config, "add account", add, role)
    click.echo(f"Account {added.name} is created, with the role {added.role}.")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Times are Unix seconds; null means never.")
@hub_config_option
def list_accounts(*, as_json: bool, config: Path | None) -> None:
    """List all accounts."""
    found = use_database(config, lambda database: Accounts(database, Passwords()).list())
    if as_json:
        click.echo(msgspec.json.encode({"accounts": found}))
    elif not found:
        click.echo("No account yet. `gpudeck account add NAME --role admin` creates one.")
    else:
        show_table(_columns(time.time()), found)


@command.command("remove")
@click.argument("name")
@hub_config_option
def remove_account(name: str, *, config: Path | None) -> None:
    """Remove account NAME with its sessions and tokens."""
    removed = _change(config, "remove account", lambda accounts, also: accounts.remove(name, also))
    click.echo(f"{removed.name} is removed.")


@command.command("password")
@click.argument("name")
@_PASSWORD_FILE
@hub_config_option
def set_password(name: str, *, password_file: str | None, config: Path | None) -> None:
    """Set a new password, and end all sessions of NAME."""

    async def change(accounts: Accounts, also: Also) -> Account:
        await _check_there(accounts, name)
        return await accounts.change(name, password=_read_password(password_file), also=also)

    changed = _change(config, "change password", change)
    click.echo(f"{changed.name} has a new password, and is logged out everywhere.")


@command.command("role")
@click.argument("name")
@click.argument("role", type=click.Choice(ROLES))
@hub_config_option
def set_role(name: str, role: AccountRole, *, config: Path | None) -> None:
    """Set the role of NAME: a viewer reads, a user also manages their own things, an admin does everything."""
    changed = _change(config, "change role", lambda accounts, also: accounts.change(name, role=role, also=also), role)
    click.echo(f"{changed.name} is now {role}.")


@command.command("disable")
@click.argument("name")
@hub_config_option
def disable_account(name: str, *, config: Path | None) -> None:
    """Disable account NAME: no login, and everything else is kept."""
    changed = _set_disabled(name, config, "disable account", is_disabled=True)
    click.echo(f"{changed.name} is disabled, and logged out everywhere.")


@command.command("enable")
@click.argument("name")
@hub_config_option
def enable_account(name: str, *, config: Path | None) -> None:
    """Enable account NAME again."""
    click.echo(f"{_set_disabled(name, config, 'enable account', is_disabled=False).name} is enabled.")


def _set_disabled(name: str, config: Path | None, action: str, *, is_disabled: bool) -> Account:
    return _change(config, action, lambda accounts, also: accounts.change(name, is_disabled=is_disabled, also=also))


def _change(
    config: Path | None, action: str, work: Callable[[Accounts, Also], Awaitable[Account]], details: str = ""
) -> Account:
    """Change an account and add an audit entry, in one transaction."""

    async def change(database: Database) -> Account:
        accounts, entry = Accounts(database, Passwords()), Audit(database).entry
        return await work(accounts, lambda account: [entry(local_admin(), action, account.name, details=details)])

    return use_database(config, change)


async def _check_free(accounts: Accounts, name: str) -> None:
    """Refuse a wrong name before a password is typed."""
    if await accounts.find(check_name(name)) is not None:
        raise UsageError(
            f"there is an account {check_name(name)} already.",
            f"`gpudeck account password {check_name(name)}` sets a new password.",
        )


async def _check_there(accounts: Accounts, name: str) -> None:
    if await accounts.find(name) is None:
        raise UsageError(f"there is no account {name[:80]!r}.", "`gpudeck account list` lists all.")


def _read_password(file: str | None) -> str:
    """The first line of the file, or what is typed at a hidden prompt, twice."""
    if file is None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError("there is no terminal for the password prompt.", "Give it with --password-file.")
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt="Once more", err=True)
        return typed
    try:
        with click.open_file(file, "rb") as opened:
            line = opened.readline(_MAX_LINE_LENGTH)
        return bytes(line).rstrip(b"\r\n").decode()
    except OSError as error:
        raise UsageError(f"the password file {file} cannot be read: {error.strerror}.") from error
    except UnicodeError as error:
        raise UsageError(f"the password in {file} is not text in UTF-8.") from error


def _columns(now: float) -> list[CellColumn[Account]]:
    return [
        CellColumn("NAME", 100, widest=64, cell=lambda one: one.name),
        CellColumn("ROLE", 99, widest=8, cell=lambda one: one.role),
        CellColumn("STATE", 95, cell=lambda one: ("disabled", "yellow") if one.is_disabled else ("enabled", "green")),
        CellColumn("LOGS IN WITH", 60, cell=lambda one: "password" if one.has_password else "provider"),
        CellColumn("LAST LOGIN", 80, widest=12, cell=lambda one: show_ago(one.last_login_at, now)),
        CellColumn("CREATED", 40, widest=12, cell=lambda one: (show_ago(one.created_at, now), "grey")),
    ]
