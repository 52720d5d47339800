"""gpudeck backup and restore: everything that a hub keeps in one file, and back in place of what a stopped hub has."""

import time
from pathlib import Path

import click

from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option

with need_hub("backups are made on the hub's machine"):
    from gpudeck.ops.backup import make_backup, restore

_EXAMPLES = """\b
Examples:
  gpudeck backup                               gpudeck-backup-20261115-190000.tar.gz, in this folder
  gpudeck backup /backup/gpudeck.tar.gz        this file, which must not exist yet
"""
_RESTORE_EXAMPLES = """\b
Examples:
  systemctl stop gpudeck-hub
  gpudeck restore gpudeck-backup-20261115-190000.tar.gz
  systemctl start gpudeck-hub
"""


@click.command("backup", epilog=_EXAMPLES)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--no-history", is_flag=True, help="Leave out the history, which is most of the data.")
@hub_config_option
def command(*, file: Path | None, no_history: bool, config: Path | None) -> None:
    """Back up accounts, tokens, reservations, hosts, history and settings of this hub to FILE. The hub may be running.

    Run this as the hub's user, or as root. Protect the file like a password: it contains tokens.
    """
    target = file or Path(f"gpudeck-backup-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    manifest = make_backup(target, config, with_history=not no_history)
    size = sum(entry.size_bytes for entry in manifest.files)
    names = ", ".join(entry.name for entry in manifest.files)
    click.echo(f"{target} has {names}: {size / 1024**2:.1f} MiB before packing.", err=True)
    if manifest.database == "postgresql":
        click.echo("The tables are on PostgreSQL: back them up with `pg_dump`.", err=True)


@click.command("restore", epilog=_RESTORE_EXAMPLES)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@hub_config_option
def restore_command(*, file: Path, config: Path | None) -> None:
    """Replace the data of the hub on this machine with the backup FILE. The hub must be stopped.

    The whole file is checked before anything changes, and the previous data is kept in a folder next to it. The
    configuration is not changed: if it differs, the one of the backup is saved separately so that you can compare.
    """
    restored = restore(file, config)
    manifest = restored.manifest
    click.echo(f"Restored in {restored.data_dir}: what gpudeck {manifest.gpudeck} on {manifest.host} had.")
    if restored.aside is not None:
        click.echo(f"What was there before is in {restored.aside}.")
    for saved, place in restored.apart:
        where = f"compare it with {place}" if place is not None else "put it where the hub looks for it"
        click.echo(f"{saved.name.removeprefix('restored-')} is in {saved}: {where}.")
    if manifest.database == "postgresql":
        click.echo("The tables are on PostgreSQL: restore them with `pg_restore`.")
    click.echo("Tokens that were revoked after the backup work again: check `gpudeck token list`.")
