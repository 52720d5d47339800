"""gpudeck restore: a backup in place of what a stopped hub has."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudeck.cli.hub_access import need_hub

if TYPE_CHECKING:
    from gpudeck.ops.restore import Restored

_EXAMPLES = """\b
Examples:
  systemctl stop gpudeck-hub
  gpudeck restore gpudeck-backup-20261115-190000.tar.gz
  systemctl start gpudeck-hub
"""


@click.command("restore", epilog=_EXAMPLES)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
def command(*, file: Path, config: Path | None) -> None:
    """Put the backup FILE in place of what the hub on this machine has. The hub must not be running.

    All of it is checked before anything changes, and what was there is kept in a folder beside it. The configuration
    is not changed: a different one is put where you can compare them.
    """
    with need_hub("backups"):
        from gpudeck.ops.restore import restore  # noqa: PLC0415 - the hub may not be installed

    _tell(restore(file, config))


def _tell(restored: "Restored") -> None:
    manifest = restored.manifest
    click.echo(f"Restored in {restored.data_dir}: what gpudeck {manifest.gpudeck} on {manifest.host} had.")
    if restored.aside is not None:
        click.echo(f"What was there before is in {restored.aside}.")
    for file, place in restored.apart:
        where = f"compare it with {place}" if place is not None else "put it where the hub looks for it"
        click.echo(f"{file.name.removeprefix('restored-')} is in {file}: {where}.")
    if manifest.database == "postgresql":
        click.echo("The tables are on PostgreSQL: `pg_restore` is for those.")
    click.echo("Whatever was revoked after the backup works again: look at `gpudeck token list`.")
