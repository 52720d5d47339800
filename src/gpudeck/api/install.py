"""/install.sh and /install/WHEEL (GET): the agent as a service, installed from the hub itself.

`gpudeck hosts add` prints a line with the SHA-256 of the script, and the script has that of every wheel: what a line
installs is what the hub meant, also behind a proxy that changes it. Nothing here is secret.
"""

import asyncio
import hashlib
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ServiceUnavailableException
from litestar.params import FromPath
from msgspec import Struct

from gpudeck import __version__
from gpudeck.api.access import access
from gpudeck.api.wheelhouse import WheelSet, find_unit, list_sets, pack_installed, this_machine
from gpudeck.model.errors import GpudeckError

log = logging.getLogger(__name__)
_SCRIPT = Path(__file__).parent / "install.sh"


class _Made(Struct, frozen=True):
    """The script, and the wheels that it names, by name. `stamp`: what the folder held."""

    stamp: object
    script: str
    files: dict[str, Path]


class Installer:
    """The script for the wheels that are in `folder`. Made again when the folder changes. `url` is the hub's address
    for other machines."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._made: _Made | None = None
        self._lock = asyncio.Lock()

    async def script(self) -> str:
        """Without the last line break, as a shell's `$(…)` has it. Raises GpudeckError where there are no wheels and
        none can be made."""
        return (await self._current()).script

    async def find(self, name: str) -> Path | None:
        """One of the wheels that the script names."""
        return (await self._current()).files.get(name)

    async def command(self, tokens: Mapping[str, str]) -> str:
        """By the names of the new hosts: for one host the line for a shell there, for several a line for each, for a
        shell from which `ssh HOST` logs in. Tokens go through a pipe, never into a list of processes. Raises
        GpudeckError."""
        script = await self.script()
        lines = {host: _line(self._url, script, host) for host in tokens}
        if len(tokens) == 1:
            return "".join(f"echo {token} | {{ {lines[host]}; }}" for host, token in tokens.items())
        return "\n".join(
            f"echo {token} | ssh {shlex.quote(host)} {shlex.quote(lines[host])}" for host, token in tokens.items()
        )

    async def _current(self) -> _Made:
        async with self._lock:
            made = self._made
            if made is None or made.stamp != await asyncio.to_thread(_stamp, self._folder):
                made = self._made = await asyncio.to_thread(self._make)
            return made

    def _make(self) -> _Made:
        sets = list_sets(self._folder)
        if this_machine() not in {(one.python, one.machine) for one in sets}:
            try:
                pack_installed(self._folder)
            except OSError as error:
                raise GpudeckError(
                    f"the folder {self._folder} cannot be written: {error.strerror or error}."
                ) from error
            sets = list_sets(self._folder)
        if not sets:
            raise GpudeckError(f"the folder {self._folder} has no agent {__version__}.", "Fill it: gpudeck wheelhouse")
        files = {wheel.file.name: wheel.file for one in sets for wheel in one.wheels}
        return _Made(_stamp(self._folder), _write(self._url, sets), files)


def _line(url: str, script: str, host: str) -> str:
    digest = hashlib.sha256(script.encode()).hexdigest()
    return (
        f"s=$(curl -fsS {shlex.quote(f'{url}/install.sh')}) "
        f'&& [ "$(printf %s "$s" | sha256sum | cut -c-64)" = {digest} ] '
        f'&& $(command -v sudo) sh -c "$s" install {shlex.quote(host)} '
        '|| { echo "gpudeck is not installed" >&2; false; }'
    )


def _write(url: str, sets: list[WheelSet]) -> str:
    lines = [f"{one.python} {one.machine} {wheel.sha256} {wheel.file.name}" for one in sets for wheel in one.wheels]
    script = _SCRIPT.read_text().replace("@HUB@", shlex.quote(url)).replace("@WHEELS@", "\n".join(lines))
    return script.replace("@UNIT@", find_unit().read_text().rstrip("\n")).rstrip("\n")


def _stamp(folder: Path) -> object:
    return sorted((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in folder.glob("*.whl"))


TheInstaller = NamedDependency[Installer]


@get("/install.sh", opt=access("open"), include_in_schema=False)
async def read_script(installer: TheInstaller) -> Response[str]:
    """The script that `gpudeck hosts add` names. It is open: it says nothing but the hub's own address and version."""
    try:
        return Response(await installer.script(), media_type=MediaType.TEXT)
    except GpudeckError as error:
        raise ServiceUnavailableException(str(error)) from error


@get("/install/{name:str}", opt=access("open"), include_in_schema=False)
async def read_wheel(name: FromPath[str], installer: TheInstaller) -> Response[bytes]:
    """One of the wheels that the script names."""
    try:
        file = await installer.find(name)
    except GpudeckError as error:
        raise ServiceUnavailableException(str(error)) from error
    if file is None:
        raise NotFoundException("there is no such wheel")
    return Response(await asyncio.to_thread(file.read_bytes), media_type="application/zip")
