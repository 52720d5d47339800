"""The agent's own process: `gpudeck agent` becomes it once it knows its settings, and keeps its process id.

The command line and YAML stay behind: they would stay in memory. Collectors' children are forked before the rest of the
agent is imported: what both have in memory counts once.
"""

import contextlib
import os
import subprocess
import sys
import time
from functools import partial
from typing import NoReturn

import msgspec
from msgspec import Struct

from gpudeck.agent.settings import AgentSettings
from gpudeck.child_process import ChildFailed, python_module, run
from gpudeck.collectors.child import fork_child
from gpudeck.collectors.machine import watch_this_machine
from gpudeck.model.errors import GpudeckError, UsageError, exit_code
from gpudeck.model.logs import start_logging

_RELOAD_SECONDS = 60.0


class AgentStart(Struct, frozen=True):
    settings: AgentSettings
    until_stdin_closes: bool
    verbose: bool


def become_agent(start: AgentStart, arguments: list[str]) -> NoReturn:
    """Replace this program by the agent. `arguments` are those that gpudeck was called with: a reload needs them.
    Raises OSError."""
    descriptor = os.memfd_create("settings", 0)
    os.write(descriptor, msgspec.msgpack.encode(start))
    os.lseek(descriptor, 0, os.SEEK_SET)
    command = python_module("gpudeck.agent.process", str(descriptor), *arguments)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def main() -> None:
    """`python -m gpudeck.agent.process DESCRIPTOR ARGUMENT…`"""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        start = msgspec.msgpack.decode(file.read(), type=AgentStart)
    start_logging(start.verbose)
    try:
        _run(start, sys.argv[2:])
    except GpudeckError as error:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"gpudeck: {error}\n")
        sys.exit(exit_code(error))


def _run(start: AgentStart, arguments: list[str]) -> None:
    with contextlib.closing(watch_this_machine(start.settings, fork_child)) as machine:
        machine.collect(time.time())
        from gpudeck.agent.run import run_agent  # noqa: PLC0415 - see above

        run_agent(
            start.settings,
            until_stdin_closes=start.until_stdin_closes,
            reload=partial(_read_again, arguments),
            machine=machine,
        )


def _read_again(arguments: list[str]) -> AgentSettings:
    command = python_module("gpudeck", *arguments, "--print-settings")
    try:
        finished = run(command, seconds=_RELOAD_SECONDS, stderr=subprocess.STDOUT)
    except ChildFailed as error:
        raise UsageError(str(error)) from error
    if finished.code:
        raise UsageError(finished.output.decode("utf-8", "replace").strip().removeprefix("gpudeck: "))
    return msgspec.json.decode(finished.output.splitlines()[-1], type=AgentSettings)


if __name__ == "__main__":
    main()
