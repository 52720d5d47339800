"""gpudeck check: the configuration file, without starting anything."""

from pathlib import Path

import click

_EXAMPLES = """\b
Examples:
  gpudeck check                          the file that `gpudeck up` would read
  gpudeck check --config new.yaml        another one
"""


@click.command("check", epilog=_EXAMPLES)
@click.option("--config", type=click.Path(path_type=Path), help="The configuration file (default: see the docs).")
def command(config: Path | None) -> None:
    """Check the configuration: every mistake at once, exit code 2 if there is any. Opens no socket, reads no GPU."""
    from gpudeck.settings import load_settings  # noqa: PLC0415

    _, file = load_settings(config)
    click.echo("No configuration file: every setting has its default." if file is None else f"{file}: no mistakes.")
