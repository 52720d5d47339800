"""gpudeck wheelhouse: the wheels that servers install their agent from, for more versions of Python than the hub's."""

import subprocess
import sys
from pathlib import Path

import click

from gpudeck.cli.hub_access import need_hub
from gpudeck.cli.options import hub_config_option
from gpudeck.model.errors import GpudeckError
from gpudeck.settings import find_data_dir, load_settings

_EXAMPLES = """\b
Examples:
  gpudeck wheelhouse                          for Python 3.10 to 3.14 on this architecture
  gpudeck wheelhouse --machine aarch64        for ARM servers
  gpudeck wheelhouse --python 3.10            for one version
  gpudeck wheelhouse --from dist/wheelhouse   from a folder of `make wheelhouse`, without a package index
"""
_PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


@click.command("wheelhouse", epilog=_EXAMPLES)
@click.option(
    "--python", "pythons", type=click.Choice(_PYTHONS), multiple=True, help="Fetch only for this version of Python."
)
@click.option("--machine", type=click.Choice(["x86_64", "aarch64"]), help="The architecture. [default: this machine's]")
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Take the wheels from this folder instead of a package index.",
)
@hub_config_option
def command(*, pythons: tuple[str, ...], machine: str | None, source: Path | None, config: Path | None) -> None:
    """Fetch the wheels from which servers install their agent (`gpudeck hosts add`). The hub serves them, so servers
    need no package index. The hub's own version of Python needs no fetch. Run this as the hub's user."""
    with need_hub("wheels are kept on the hub's machine"):
        from gpudeck.api import install  # noqa: PLC0415 - the hub may not be installed
    folder = find_data_dir(load_settings(config)[0]) / "wheelhouse"
    install.pack_installed(folder)
    where = machine or install.this_machine()[1]
    problems = {}
    for python in pythons or _PYTHONS:
        offline = [] if source is None else ["--no-index", "--find-links", str(source)]
        arguments = [*install.download_arguments(python, where, folder), *offline]
        done = subprocess.run(  # noqa: S603 - our own pip
            [sys.executable, "-m", "pip", *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            problems[python] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    sets = install.list_sets(folder)
    for one in sets:
        click.echo(f"Python {one.python} on {one.machine}: {len(one.wheels)} wheels")
    missing = [python for python in pythons or _PYTHONS if (python, where) not in {(one[0], one[1]) for one in sets}]
    if missing:
        reason = problems.get(missing[0], "")
        raise GpudeckError(f"no agent for Python {', '.join(missing)} on {where}: {reason}", "The others are in place.")
