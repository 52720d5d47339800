"""The container, pod, Slurm job and login session of a process, from its cgroups; container names from their runtime.

Runtimes name their cgroups in their own ways, and cgroup v1, v2 and both at once differ again. Below their own session
users may create groups of any name: what identifies a user (`uid_1000`, `user-1000.slice`) counts at the top only.

Names are asked of Docker or Podman through their sockets. Answers are cached; a socket or container that failed is not
asked again for a minute. Slurm's GPU indexes are in the order of its gres.conf: `slurmd -G` says which GPUs they are.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck.child_process import ChildFailed, run
from gpudeck.collectors.base import is_due
from gpudeck.collectors.redaction import clean
from gpudeck.model.report import Report

_SOCKETS = ("var/run/docker.sock", "run/podman/podman.sock")
_SOCKETS_OF_USER = ("run/user/{uid}/podman/podman.sock", "run/user/{uid}/docker.sock")
_TIMEOUT_SECONDS = 0.3
_RETRY_SECONDS = 60.0
_MAX_ANSWER_BYTES = 1024 * 1024
_MAX_KEPT = 4096
_NAME_LENGTH = 128
_ABOVE = r"(?:/\.\.)*"  # a reader with a cgroup namespace of its own sees the others' paths from there
_SESSION = re.compile(_ABOVE + r"/user\.slice/user-(\d+)\.slice(?:/|$)")
_SLURM_V1 = re.compile(_ABOVE + r"/slurm[^/]*/uid_(\d+)/job_(\d+)(?:/|$)")
# Slurm 26.05 names the group of a job by its SLUID (`s5K1KKYAYG5D00`), unless CgroupJobIdPaths is set.
_SLURM_V2 = re.compile(_ABOVE + r"/system\.slice/[^/]*slurmstepd\.scope/(?:job_(\d+)|(s[0-9A-Z]{13}))(?:/|$)")
# `docker-<id>.scope`, `libpod-<id>`, `crio-<id>.scope`, or the bare id below /docker, /kubepods, /default ...
# Not `libpod-conmon-<id>.scope`: that is the program outside which watches the container.
_CONTAINER = re.compile(r"(?:(?:docker|libpod|cri-containerd|containerd|crio|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?")
_POD = re.compile(
    r"(?:kubepods[a-z-]*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_LXC = re.compile(r"/(?:lxc\.payload\.|lxc\.payload/|lxc/)([^/]+)")


class _Inspected(Struct):
    name: str = msgspec.field(name="Name")


class ContainerNames:
    """Asks for names, and remembers them. `find` blocks for `timeout` seconds a socket at most, and never raises."""

    def __init__(
        self, root: Path = Path("/"), *, timeout: float = _TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._timeout = timeout
        self._clock = clock
        self.names: dict[str, tuple[str | None, float]] = {}
        self._failed_at: dict[str, float] = {}

    def find(self, container: str, uid: int | None = None) -> str | None:
        """The name of the container with that id, or None. `uid` is whose rootless container it is, if it is one."""
        name, asked_at = self.names.get(container, (None, None))
        if name or not is_due(asked_at, _RETRY_SECONDS, self._clock()):
            return name
        if len(self.names) > _MAX_KEPT:
            self.names.clear()
        name = next(filter(None, (self._ask(path, container) for path in self._find_sockets(uid))), None)
        self.names[container] = name, self._clock()
        return name

    def _find_sockets(self, uid: int | None) -> Iterator[str]:
        """A user's own runtime is asked only about that user's session: it could return any name."""
        yield from (str(self._root / path) for path in _SOCKETS)
        if uid is not None:
            yield from (str(self._root / path.format(uid=uid)) for path in _SOCKETS_OF_USER)

    def _ask(self, path: str, container: str) -> str | None:
        if not is_due(self._failed_at.get(path), _RETRY_SECONDS, self._clock()):
            return None
        try:
            answer = ask_runtime(path, f"/containers/{container}/json", self._timeout)
        except OSError:
            self._failed_at[path] = self._clock()
            return None
        head, _, body = answer.partition(b"\r\n\r\n")
        if head[:12].partition(b" ")[2] != b"200":
            return None
        try:
            name = msgspec.json.decode(body, type=_Inspected).name
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return clean(name).strip().lstrip("/")[:_NAME_LENGTH] or None


def ask_runtime(path: str, resource: str, timeout: float) -> bytes:
    """The whole answer, head and body, to a GET on a Unix socket. Raises OSError, also when time is up. By hand:
    http.client brings 3 MiB of parsers along and waits anew for each byte. HTTP/1.0 answers end with the connection."""
    ends_at = time.monotonic() + timeout
    answer = bytearray()
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        connection.sendall(f"GET {resource} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        while received := connection.recv(65536):
            answer += received
            remaining = ends_at - time.monotonic()
            if remaining <= 0 or len(answer) > _MAX_ANSWER_BYTES:
                raise TimeoutError(f"{path} takes too long to answer")
            connection.settimeout(remaining)
    return bytes(answer)


class Placement(Struct, frozen=True):
    """The container, pod, job and session that a process's cgroups name. `container` is the innermost one: an id of 64
    digits, or a name (LXC); `within` the one around it. `session_uid` is whose login session, or rootless container,
    this is. `sluid` is Slurm's other name of a job."""

    container: str | None = None
    within: str | None = None
    pod: str | None = None
    job: str | None = None
    job_uid: int | None = None
    session_uid: int | None = None
    sluid: str | None = None


def parse_placement(text: str) -> Placement:
    """`text` is a /proc/<pid>/cgroup: one line with cgroup v2, one for each hierarchy with v1, both on hybrid ones."""
    # `4:memory:/docker/<id>`; the path itself may hold colons (containerd with the systemd driver).
    paths = [path for line in text.splitlines() if (path := line.partition(":")[2].partition(":")[2]) not in {"", "/"}]
    containers: list[str] = max(map(_find_containers, paths), key=len, default=[])
    old, new = (next(filter(None, map(form.match, paths)), None) for form in (_SLURM_V1, _SLURM_V2))
    session = next(filter(None, map(_SESSION.match, paths)), None)
    return Placement(
        container=containers[-1] if containers else None,
        within=containers[-2] if len(containers) > 1 else None,
        pod=next(filter(None, map(_find_pod, paths)), None),
        job=old[2] if old else new[1] if new else None,
        job_uid=int(old[1]) if old else None,
        session_uid=int(session[1]) if session else None,
        sluid=new[2] if new else None,
    )


def find_job_group(path: str) -> str | None:
    """The group of the whole Slurm job, or pod, that a group is of; None of one outside of any."""
    if match := _SLURM_V1.match(path) or _SLURM_V2.match(path):
        return re.sub(rf"^{_ABOVE}", "", match[0]).rstrip("/")
    parts = path.split("/")
    ends = (at for at, part in enumerate(parts, 1) if _POD.fullmatch(part))
    return "/".join(parts[: next(ends, 0)]) or None


def _find_containers(path: str) -> list[str]:
    lxc = _LXC.match(path)
    found = [match[1] for part in re.split("[/:]", path) if (match := _CONTAINER.fullmatch(part))]
    if lxc and not _CONTAINER.fullmatch(lxc[1]):
        found.insert(0, lxc[1])
    return found


def _find_pod(path: str) -> str | None:
    pods = (match for part in re.split("[/:]", path) if (match := _POD.fullmatch(part)))
    pod = next(pods, None)
    return pod[1].replace("_", "-") if pod else None


_AGAIN_SECONDS = 600.0
_SLURMD_SECONDS = 5.0
_SYSTEM_PATH = "/usr/sbin:/usr/local/sbin:/opt/slurm/sbin:/usr/bin:/usr/local/bin"
_GPUS = re.compile(r"Gres Name=gpu .*?Index=(\d+) .*?File=(\S+)(?:.*?UniqueId=(MIG-[\w/-]+))?")
_NUMBERED = re.compile(r"(.*?)(?:\[([\d,-]+)\])?", re.DOTALL)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_MOST = 512


class SlurmCollector:
    """Reports `slurm_gpus` where slurmd is installed. `root` is where /proc and /sys are found."""

    name = "slurm"

    def __init__(self, root: Path = Path("/"), command: Sequence[str] | None = None) -> None:
        self._root = root
        self._command = command
        self._asked_at: float | None = None
        self._found: list[str] = []

    def collect(self, now: float) -> Report:
        if is_due(self._asked_at, _AGAIN_SECONDS, now):
            self._asked_at = now
            slurmd = shutil.which("slurmd") or shutil.which("slurmd", path=_SYSTEM_PATH)
            command = self._command or ([slurmd, "-G"] if slurmd else None)
            if command is not None:
                with contextlib.suppress(ChildFailed):
                    printed = run(command, seconds=_SLURMD_SECONDS, stderr=subprocess.STDOUT).output
                    self._found = find_addresses(parse_devices(printed.decode(errors="replace")), self._root)
        return Report(slurm_gpus=self._found)

    def close(self) -> None:
        return


def parse_devices(text: str) -> list[str]:
    """The device files in the order of Slurm's indexes, from what `slurmd -G` prints; of a MIG instance its UUID."""
    files: dict[int, str] = {}
    for index, path, instance in _GPUS.findall(text):
        named = [instance] if instance else _expand(path)
        files |= {int(index) + place: file for place, file in enumerate(named) if place < _MOST}
    return [files[index] for index in sorted(files)]


def _expand(path: str) -> list[str]:
    match = _NUMBERED.fullmatch(path)
    if match is None or match[2] is None:
        return [path]
    numbers: list[int] = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), min(int(last or first), int(first) + _MOST) + 1)
    return [f"{match[1]}{number}" for number in numbers]


def find_addresses(files: Sequence[str], root: Path) -> list[str]:
    """The PCI address of each file, or the UUID of an instance; nothing at all where one of them is not known, as the
    order would be wrong then."""
    found = {f"nvidia{minor}": address for minor, address in _nvidia_minors(root).items()}
    for file in files:
        name = Path(file).name
        if name.startswith("renderD"):
            found[name] = (root / "sys/class/drm" / name / "device").resolve().name
    addresses = [file if file.startswith("MIG-") else found.get(Path(file).name, "") for file in files]
    return addresses if all(addresses) else []


def _nvidia_minors(root: Path) -> dict[int, str]:
    minors = {}
    for folder in (root / "proc/driver/nvidia/gpus").glob("*"):
        try:
            match = _MINOR.search((folder / "information").read_text(errors="replace"))
        except OSError:
            continue
        if match:
            minors[int(match[1])] = folder.name.lower()
    return minors
