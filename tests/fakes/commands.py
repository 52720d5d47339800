"""Commands in this process, for tests of what they do: what a process of its own adds to that is half a second."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from fakes.hubs import environment
from gpudeck.cli import main


def gpudeck_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As `gpudeck()` of `fakes.hubs`, from reading the arguments to the exit code, with nothing at its input."""
    command = ["gpudeck", *arguments]
    told, complained = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment(folder), clear=True),
        mock.patch.object(sys, "argv", command),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(command, code, _read(told), _read(complained))


def _read(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
