"""/install.sh and /install/WHEEL (GET): the agent as a service, installed from the hub itself.

`gpudeck hosts add` prints a line with the SHA-256 of the script, and the script has that of every wheel: what a line
installs is what the hub meant, also behind a proxy that changes it. Nothing here is secret.

The wheels are in the folder `wheelhouse` of the hub's data folder. Nothing has to be downloaded for servers with the
hub's own Python version: `pack_installed` makes wheels of what is installed on the hub. `gpudeck wheelhouse` adds those
for other versions.
"""

import asyncio
import base64
import functools
import hashlib
import itertools
import logging
import platform
import re
import shlex
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ServiceUnavailableException
from litestar.params import FromPath
from msgspec import Struct

import gpudeck
from gpudeck import __version__
from gpudeck.api.access import access
from gpudeck.model.errors import GpudeckError, UsageError

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
_WHEEL = re.compile(
    r"(?P<name>[\w.]+)-(?P<version>[\w.!+]+)(?:-\d\w*)?-(?P<python>[\w.]+)-(?P<abi>[\w.]+)-(?P<platform>[\w.]+)\.whl"
)
_BELOW = re.compile(r"python_version < ['\"]3\.(\d+)['\"]")
_WHEEL_FILE = "Wheel-Version: 1.0\nGenerator: gpudeck\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_OUT = ("__pycache__", "page.new")


class Wheel(NamedTuple):
    """A wheel in the folder."""

    file: Path
    sha256: str


class WheelSet(NamedTuple):
    """All that an agent needs, for one version of Python on one kind of machine."""

    python: str
    machine: str
    wheels: list[Wheel]


class Requirement(NamedTuple):
    """A package that the base install needs; by Pythons below 3.`below` alone, where that is given."""

    name: str
    below: int | None = None

    def is_for(self, python: str) -> bool:
        return self.below is None or int(python.partition(".")[2]) < self.below


def list_requirements() -> list[Requirement]:
    """The requirements of the base install. None of them has further requirements."""
    found = []
    for text in distribution("gpudeck").requires or ():
        if "extra ==" not in text:
            name, below = re.match(r"[\w.-]+", text), _BELOW.search(text)
            found.append(Requirement(_plain(name[0] if name else text), int(below[1]) if below else None))
    return found


def list_sets(folder: Path) -> list[WheelSet]:
    """The sets that are complete. Blocks: reads every wheel that is in one of them."""
    needed = [Requirement("gpudeck"), *list_requirements()]
    files = sorted(folder.glob("*.whl"))
    sum_of = functools.cache(lambda file: hashlib.sha256(file.read_bytes()).hexdigest())
    sets = []
    for python, machine in itertools.product(PYTHONS, MACHINES):
        chosen = [_choose(files, one.name, python, machine) for one in needed if one.is_for(python)]
        wheels = [Wheel(file, sum_of(file)) for file in chosen if file is not None]
        if len(wheels) == len(chosen):
            sets.append(WheelSet(python, machine, wheels))
    return sets


def _choose(files: Iterable[Path], name: str, python: str, machine: str) -> Path | None:
    """The last of those that suit; of gpudeck that of this version alone: an agent is never newer than its hub."""
    version = re.escape(__version__) if name == "gpudeck" else r".*"
    found = [
        file
        for file in files
        if (tags := _WHEEL.fullmatch(file.name))
        and _plain(tags["name"]) == name
        and re.fullmatch(version, tags["version"])
        and _suits(tags, python.partition(".")[2], machine)
    ]
    return found[-1] if found else None


def _suits(tags: "re.Match[str]", minor: str, machine: str) -> bool:
    places = tags["platform"].split(".")
    if places != ["any"] and not any(
        place.startswith(("manylinux", "linux")) and place.endswith(machine) for place in places
    ):
        return False
    pythons = tags["python"].split(".")
    if tags["abi"] == "abi3":
        return any(one.startswith("cp3") and int(one[3:]) <= int(minor) for one in pythons)
    return f"cp3{minor}" in pythons or "py3" in pythons


def pack_installed(folder: Path) -> None:
    """Make wheels of gpudeck and of what it needs, as they are installed here: for this Python on this kind of machine.
    Blocks. Raises UsageError, and OSError where the folder cannot be written."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = distribution("gpudeck")
    package = Path(gpudeck.__file__).parent
    files = [(path, f"gpudeck/{path.relative_to(package)}") for path in sorted(package.rglob("*")) if _belongs(path)]
    unit = find_unit()
    files += [(unit, f"gpudeck/api/{unit.name}")] if unit.parent.name != "api" else []
    _pack(folder, own, files, _WHEEL_FILE)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in (one.name for one in list_requirements() if one.is_for(running)):
        try:
            found = distribution(name)
        except PackageNotFoundError as error:
            raise UsageError(f"{name}, which agents need, is not installed here.") from error
        text = found.read_text("WHEEL")
        if found.files is None or text is None:
            raise UsageError(f"{name} was not installed from a wheel, so no wheel can be made of it.")
        inside = [(Path(str(found.locate_file(file))), str(file)) for file in found.files if file.parts[0] != ".."]
        files = [(path, place) for path, place in inside if _belongs(path) and ".dist-info/" not in place]
        _pack(folder, found, files, text)


def _belongs(path: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and not set(path.parts) & set(_LEFT_OUT)


def _pack(folder: Path, of: Distribution, files: Iterable[tuple[Path, str]], wheel: str) -> None:
    """Write one wheel, whole or not at all."""
    name = re.sub(r"[-_.]+", "_", of.metadata["Name"])
    info = f"{name}-{of.version}.dist-info"
    parts = [(place, path.read_bytes()) for path, place in files]
    parts += [(f"{info}/METADATA", (of.read_text("METADATA") or "").encode()), (f"{info}/WHEEL", wheel.encode())]
    if points := of.read_text("entry_points.txt"):
        parts.append((f"{info}/entry_points.txt", points.encode()))
    record = "".join(f"{place},sha256={_record_sum(content)},{len(content)}\n" for place, content in parts)
    parts.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    file = folder / f"{name}-{of.version}-{_file_tag(wheel)}.whl"
    fresh = file.with_suffix(".new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in parts:
            # Always the same bytes from the same files: no time stands in it.
            archive.writestr(zipfile.ZipInfo(place), content, zipfile.ZIP_DEFLATED)
    fresh.replace(file)


def _record_sum(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _file_tag(wheel: str) -> str:
    """The tags of all lines, as a file's name has them: cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64."""
    tags = [line.partition(":")[2].strip().split("-") for line in wheel.splitlines() if line.startswith("Tag:")]
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_unit() -> Path:
    """The unit of the agent: in the installed package, or in a clone."""
    packed = Path(__file__).parent / "gpudeck-agent.service"
    return packed if packed.exists() else Path(__file__).parents[3] / "deploy" / "systemd" / packed.name


def download_arguments(python: str, machine: str, folder: Path) -> list[str]:
    """For pip: everything but gpudeck, in the versions that the hub has."""
    places = [f"{kind}_{machine}" for kind in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    return [
        *("download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", python, *(f"--platform={place}" for place in places)),
        *("--dest", str(folder), *_list_versions(python)),
    ]


def _list_versions(python: str) -> Iterator[str]:
    for one in list_requirements():
        if one.is_for(python):
            try:
                yield f"{one.name}=={distribution(one.name).version}"
            except PackageNotFoundError:
                yield one.name  # only other Pythons need it


def this_machine() -> tuple[str, str]:
    """The Python version and the kind of machine of the hub."""
    return sysconfig.get_python_version(), platform.machine()


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
