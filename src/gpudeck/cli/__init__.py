"""The command `gpudeck`: one file a command, imported only when that command runs, so that each starts quickly."""

import difflib
import importlib
import sys

import click

from gpudeck import __version__
from gpudeck.model.errors import ConfigurationError, GpudeckError, Unreachable, UsageError

_COMMANDS = ("up", "agent", "show", "check")
_EXAMPLES = """\b
Examples:
  gpudeck up                       start the hub and open the address it prints
  gpudeck up --demo 100            look around in a simulated fleet of 100 hosts
  gpudeck agent --hub http://hub:8042 --token-file /etc/gpudeck/agent.token
  gpudeck show                     the fleet as a table
"""


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module is imported when it is run or described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if cmd_name not in _COMMANDS:
            near = difflib.get_close_matches(cmd_name, _COMMANDS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(_COMMANDS)}."
            raise UsageError(f"there is no command {cmd_name!r}.", hint)
        command: click.Command = importlib.import_module(f"gpudeck.cli.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpudeck", message="%(prog)s %(version)s")
def gpudeck() -> None:
    """Shows every GPU of a fleet: which are free, who uses which, and how well."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 the hub cannot be reached."""
    try:
        gpudeck(prog_name="gpudeck")
    except GpudeckError as error:
        # A configuration's mistakes begin with file and line, for editors that jump to them.
        click.echo(str(error) if isinstance(error, ConfigurationError) else f"gpudeck: {error}", err=True)
        sys.exit(exit_code(error))
    except BrokenPipeError:
        # The reader of our output has gone (`gpudeck show | head`): nothing is wrong, and nothing is left to say.
        sys.stderr.close()
        sys.exit(0)


def exit_code(error: GpudeckError) -> int:
    if isinstance(error, UsageError):
        return 2
    return 3 if isinstance(error, Unreachable) else 1
