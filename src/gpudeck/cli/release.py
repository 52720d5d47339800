"""gpudeck release: give a booking back."""

import click

from gpudeck.model.hub_url import DEFAULT_HUB

_EXAMPLES = """\b
Examples:
  gpudeck release 12                    others can have it from now on
"""


@click.command("release", epilog=_EXAMPLES)
@click.argument("number", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@click.option(
    "--hub", metavar="URL", envvar="GPUDECK_HUB", default=DEFAULT_HUB, show_default=True, help="The hub's address."
)
def command(number: int, *, hub: str) -> None:
    """End reservation ID now, or take it back where it has not begun. No process is ended.

    Exit code 1 where there is none, it is over, or it is somebody else's.
    """
    from gpudeck.cli.hub_access import ask, name_gpus  # noqa: PLC0415 - the help needs none

    released = ask(hub, lambda client: client.release(number))
    gpus = name_gpus(released.gpus)
    word = "taken back" if released.state == "cancelled" else "ended"
    click.echo(f"Reservation {number} of {gpus} is {word}.")
