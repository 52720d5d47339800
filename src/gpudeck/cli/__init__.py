"""The command `gpudeck`. A command's module is imported only when it runs, so that each command starts quickly."""

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from gpudeck import __version__
from gpudeck.model.errors import ConfigurationError, GpudeckError, UsageError, exit_code

_COMMANDS = {
    "up": ("up", "Start the hub and print the page's address."),
    "agent": ("agent", "Report this machine's GPUs to a hub."),
    "show": ("show", "Show the fleet, or a part of it, as a table."),
    "top": ("top", "Show the fleet live in the whole terminal."),
    "free": ("free", "Show the GPUs that you could use right now, best match first."),
    "wait": ("wait", "Wait until GPUs are free, then run a command on them."),
    "watch": ("watch", "Get notified once when matching GPUs are free."),
    "login": ("login", "Log in to a hub; all further commands use it."),
    "logout": ("login", "Log out, and revoke the token of the login."),
    "whoami": ("login", "Show your account and role on the hub."),
    "reserve": ("reservations", "Reserve GPUs."),
    "reservations": ("reservations", "List current and future reservations."),
    "release": ("reservations", "End a reservation now."),
    "ask": ("watch", "Ask the owner of an idle GPU whether they still need it."),
    "keep": ("idle_policy", "Keep a GPU that you use although it is idle."),
    "policy": ("idle_policy", "Show the idle policy, or what it would have done."),
    "drain": ("maintenance", "Drain a host or GPU for maintenance, or list what is drained."),
    "undrain": ("maintenance", "End the maintenance of a host or GPU."),
    "hosts": ("hosts", "List, add, remove and test the hosts of a hub."),
    "wheelhouse": ("hosts", "Fetch the wheels from which servers install their agent."),
    "check": ("doctor", "Check the configuration, and print every mistake at once."),
    "health": ("health", "Check whether jobs may start on a host's GPUs, for prologs."),
    "doctor": ("doctor", "Check this machine, and print what is wrong and the next step."),
    "token": ("token", "Create, list and revoke tokens of the hub on this machine."),
    "account": ("account", "Manage the accounts of the hub on this machine."),
    "import": ("import_", "Import the settings and data of another monitor."),
    "report": ("report", "Report who used the GPUs: hours, energy and cost."),
    "digest": ("report", "Preview your digest, or stop and start digests."),
    "runs": ("report", "List programs that were on GPUs, with a verdict on each."),
    "job": ("report", "Show what a scheduler's job did with its GPUs."),
    "jobs": ("report", "List the jobs that schedulers gave GPUs to."),
    "events": ("events", "List what happened in the fleet, newest last."),
    "alerts": ("alerts", "List, acknowledge and mute alerts."),
    "notify": ("notify", "Test the channels to which the hub sends messages."),
    "export": ("export", "Export samples, runs, usage or events as CSV or Parquet."),
    "mcp": ("export", "Serve a hub's data to a language model over MCP (stdio)."),
    "history": ("history", "Inspect, repair and export the samples that a hub has kept."),
    "backup": ("backup", "Write a backup of this machine's hub to a file."),
    "restore": ("backup", "Restore the hub on this machine from a backup."),
    "cluster": ("cluster", "Show the hubs of a cluster, or move one hub's data to several."),
    "completion": ("search", "Print a completion script for a shell."),
}
"""The module of each command, and its description in `gpudeck --help`, which imports none of them."""
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_EXAMPLES = """\b
Examples:
  gpudeck up                       start the hub and open the address it prints
  gpudeck up --demo 100            show a simulated fleet of 100 hosts
  gpudeck agent --hub http://hub:8042 --token-file /etc/gpudeck/agent.token
  gpudeck show                     the fleet as a table
  gpudeck show free h200           the H200s that are free
  gpudeck top                      the fleet, live
  gpudeck free --memory 40G        GPUs that you could use right now
  gpudeck wait --gpus 1 -- python train.py
  gpudeck reserve gpu07:0,1 --for 4h
  source <(gpudeck completion bash)
"""


class LazyGroup(click.Group):
    """Knows its commands by name; a command's module is imported when it is run or described."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _ended_from_outside():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _ended_from_outside():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in _COMMANDS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if ctx.resilient_parsing:  # a shell completes a line that is not finished
                return None
            import difflib  # noqa: PLC0415 - needed by mistakes alone

            near = difflib.get_close_matches(cmd_name, _COMMANDS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Commands: {', '.join(_COMMANDS)}."
            raise UsageError(f"there is no command {cmd_name!r}.", hint)
        try:
            module = importlib.import_module(f"gpudeck.cli.{_COMMANDS[cmd_name][0]}")
        except UsageError:
            if ctx.resilient_parsing:  # a command of the hub, which is not installed
                return None
            raise
        command: click.Command = getattr(module, f"{cmd_name}_command", None) or module.command
        if isinstance(command, click.Group):
            _share_examples(command)
        return command


def _share_examples(group: click.Group) -> None:
    """Give each command of a group the lines of the group's examples that call it."""
    lines = (group.epilog or "").splitlines()
    for name, command in group.commands.items():
        own = [line for line in lines if f"gpudeck {group.name} {name} " in f"{line} "]
        if own and command.epilog is None:
            command.epilog = "\n".join(["\b", "Examples:", *own])


@click.group(cls=LazyGroup, epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpudeck", message="%(prog)s %(version)s")
def gpudeck() -> None:
    """Show every GPU of a fleet: which are free, who uses them, and how well."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 the hub cannot be reached; 128 + N
    where signal N ended it."""
    _prepare_streams()
    try:
        gpudeck(prog_name="gpudeck")
    except GpudeckError as error:
        # Errors in a configuration begin with file and line, for editors that jump to them.
        _complain(str(error) if isinstance(error, ConfigurationError) else f"gpudeck: {error}")
        sys.exit(exit_code(error))
    except OSError as error:
        # Errors about our own files name the file. This one is about standard output: a full disk, for example.
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        _drop_output(sys.stdout)
        _complain(f"gpudeck: the output cannot be written: {(error.strerror or str(error)).lower()}.")
        sys.exit(1)


def _prepare_streams() -> None:
    """Characters that the terminal cannot show become question marks, and descriptors 0 to 2 are never reused for our
    files."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _ended_from_outside() -> Iterator[None]:
    """Ctrl-C, and a closed output pipe (`gpudeck show | head -1`), end a command silently with the exit code that
    shells use for the signal. click would report both as errors with exit code 1."""
    try:
        yield
    except KeyboardInterrupt:
        # The terminal has printed ^C: the next prompt must begin on a new line.
        _complain("")
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        _drop_output(sys.stdout)
        _drop_output(sys.stderr)
        sys.exit(128 + signal.SIGPIPE)


def _complain(text: str) -> None:
    """Print an error message. If standard error is closed, the exit code must be enough."""
    try:
        click.echo(text, err=True)
    except OSError:
        _drop_output(sys.stderr)


def _drop_output(stream: Any) -> None:
    """Discard buffered output: the interpreter would try to write it again at exit, and print a traceback."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
