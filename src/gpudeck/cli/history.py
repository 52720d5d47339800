"""gpudeck history: the hub's own history file, on the hub's machine; a hub may be running meanwhile."""

from pathlib import Path
from types import ModuleType

import click

from gpudeck.model.errors import UsageError

_EXAMPLES = """\b
Examples:
  gpudeck history stats                                        how large it is, and what is in it
  gpudeck history verify                                       whether all of it can be read; exit code 1 if not
  gpudeck history accept-clock                                 the clock is right: old data may be deleted
  gpudeck history export --since -24h --host gpu07 > gpu07.csv
  gpudeck history export --since 2026-10-01 --until 2026-11-01 --metric power_watts > october.csv
"""
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The hub's configuration file.")
_FILE = click.option("--file", type=click.Path(path_type=Path), help="Another file than the hub's.")


@click.group("history", epilog=_EXAMPLES)
def command() -> None:
    """The samples that a hub has kept. Run where the hub runs, as a user who may read its files."""


@command.command("stats")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@_FILE
@_CONFIG
def show_stats(*, as_json: bool, file: Path | None, config: Path | None) -> None:
    """How large the history is, from when to when it goes, and what its parts take."""
    import msgspec  # noqa: PLC0415 - the help needs none

    history_file = _room()
    with history_file.opened(file, config) as (view, path):
        size = history_file.measure(view, path)
    if as_json:
        click.echo(msgspec.json.encode(size))
        return
    from gpudeck.views.history import render_size  # noqa: PLC0415 - the same

    click.echo(render_size(size), nl=False)


@command.command("verify")
@_FILE
@_CONFIG
def verify(*, file: Path | None, config: Path | None) -> None:
    """Read every byte; names what is damaged. Exit code 1 if anything is."""
    history_file = _room()
    count = 0
    with history_file.opened(file, config) as (view, path):
        for sentence in history_file.find_damage(view):
            count += 1
            click.echo(sentence)
    if count:
        click.echo(f"{path}: {count} places are damaged; the rest can be read.", err=True)
        raise SystemExit(1)
    click.echo(f"{path}: everything can be read.")


@command.command("export")
@click.option("--since", default="-24h", show_default=True, help="From when: -24h, 2026-10-01, 2026-10-01T08:00.")
@click.option("--until", default="now", show_default=True, help="Until when.")
@click.option("--host", "hosts", multiple=True, help="Only this host; may be given several times.")
@click.option("--gpu", "gpus", multiple=True, metavar="UUID", help="Only this GPU; may be given several times.")
@click.option("--metric", "metrics", multiple=True, help="Only this metric; may be given several times.")
@_FILE
@_CONFIG
def export(  # noqa: PLR0917 - click gives each option by itself
    since: str,
    until: str,
    hosts: tuple[str, ...],
    gpus: tuple[str, ...],
    metrics: tuple[str, ...],
    file: Path | None,
    config: Path | None,
) -> None:
    """The samples of a span as CSV on the standard output: a row a GPU and moment, UTC."""
    from gpudeck.views.csv import write_csv  # noqa: PLC0415 - the help needs none

    history_file = _room()
    start, end = history_file.read_span(since, until)
    with history_file.opened(file, config) as (view, _):
        choice = history_file.choose(start, end, hosts, gpus, metrics)
        for row in history_file.export(view, choice):
            click.echo(write_csv([row]), nl=False)


@command.command("accept-clock")
@_CONFIG
def accept_clock(*, config: Path | None) -> None:
    """Confirm that this machine's clock is right, when the hub asks for it.

    A hub whose clock has jumped ahead deletes no old data until its agents' clocks agree, or somebody confirms it here.
    """
    click.echo(f"Accepted: it is {_room().accept_clock(config)}. A running hub goes by it within a minute.")


def _room() -> ModuleType:
    """The half of these commands that works on the file: the hub may not be installed."""
    try:
        from gpudeck.app import history_file  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"the hub's parts are not installed ({error.name}), and the history is where the hub runs.",
            "Install gpudeck with its hub extra: pip install '<where gpudeck came from>[hub]'.",
        ) from error
    return history_file
