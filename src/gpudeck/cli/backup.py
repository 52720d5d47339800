"""gpudeck backup: everything that a hub keeps, in one file, while it runs."""

import sys
import time
from pathlib import Path

import click

from gpudeck.cli.hub_access import need_hub
from gpudeck.model.errors import UsageError

_EXAMPLES = """\b
Examples:
  gpudeck backup                               gpudeck-backup-20261115-190000.tar.gz, in this folder
  gpudeck backup /backup/gpudeck.tar.gz        that file, which must not be there yet
  gpudeck backup --no-history small.tar.gz     accounts, tokens, hosts and settings alone
  (umask 077; ssh hub gpudeck backup - > hub.tar.gz)    onto another machine
"""


@click.command("backup", epilog=_EXAMPLES)
@click.argument(
    "file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False, allow_dash=True)
)
@click.option("--no-history", is_flag=True, help="Leave the history out, which is most of it.")
@click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
def command(*, file: Path | None, no_history: bool, config: Path | None) -> None:
    """Write accounts, tokens, bookings, hosts, history and settings of this machine's hub to FILE. It may be running.

    Run it as the user whom the hub runs as, or as root. Keep the file as you keep a password: whoever has it can get
    into the hub.
    """
    with need_hub("backups"):
        from gpudeck.ops.backup import make_backup  # noqa: PLC0415 - the hub may not be installed

    target = file or Path(f"gpudeck-backup-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    is_streamed = str(target) == "-"
    if is_streamed and sys.stdout.isatty():
        raise UsageError("a backup is not for a terminal.", "Name a file, or send it into one with `>`.")
    manifest = make_backup(None if is_streamed else target, config, with_history=not no_history)
    size = sum(entry.size_bytes for entry in manifest.files)
    names = ", ".join(entry.name for entry in manifest.files)
    told = "The backup" if is_streamed else f"{target}"
    click.echo(f"{told} has {names}: {size / 1024**2:.1f} MiB before packing.", err=True)
    if manifest.database == "postgresql":
        click.echo("The tables are on PostgreSQL: `pg_dump` is for those.", err=True)
