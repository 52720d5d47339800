"""Where a process stands in the kernel's tree of groups: its container, its pod, its Slurm job, its login session.

Runtimes name their groups in their own ways, and cgroup v1, v2 and both at once differ again. Below their own session
people may make groups of any name: what names a person (`uid_1000`, `user-1000.slice`) counts at the top only.
"""

import re

from msgspec import Struct

_ABOVE = r"(?:/\.\.)*"  # a reader with a cgroup namespace of its own sees the others' paths from there
_SESSION = re.compile(_ABOVE + r"/user\.slice/user-(\d+)\.slice(?:/|$)")
_SLURM_V1 = re.compile(_ABOVE + r"/slurm[^/]*/uid_(\d+)/job_(\d+)(?:/|$)")
_SLURM_V2 = re.compile(_ABOVE + r"/system\.slice/[^/]*slurmstepd\.scope/job_(\d+)(?:/|$)")
# `docker-<id>.scope`, `libpod-<id>`, `crio-<id>.scope`, or the bare id below /docker, /kubepods, /default ...
# Not `libpod-conmon-<id>.scope`: that is the program outside which watches the container.
_CONTAINER = re.compile(r"(?:(?:docker|libpod|cri-containerd|containerd|crio|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?")
_POD = re.compile(
    r"(?:kubepods[a-z-]*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
_LXC = re.compile(r"/(?:lxc\.payload\.|lxc\.payload/|lxc/)([^/]+)")


class Placement(Struct, frozen=True):
    """What a process's groups tell of it. None where they tell nothing.

    `container` is the innermost one: an id of 64 digits, or the name where the runtime uses names (LXC). `within` is
    the container around it. `session_uid` is whose login session, or whose rootless container, this is.
    """

    container: str | None = None
    within: str | None = None
    pod: str | None = None
    job: str | None = None
    job_uid: int | None = None
    session_uid: int | None = None


def parse_placement(text: str) -> Placement:
    """`text` is a /proc/<pid>/cgroup: one line with cgroup v2, one for each hierarchy with v1, both on hybrid ones."""
    paths = [path for line in text.splitlines() if (path := _path_of(line)) not in {"", "/"}]
    containers: list[str] = max(map(_find_containers, paths), key=len, default=[])
    job, job_uid = next(filter(None, map(_find_job, paths)), (None, None))
    session = next(filter(None, map(_SESSION.match, paths)), None)
    return Placement(
        container=containers[-1] if containers else None,
        within=containers[-2] if len(containers) > 1 else None,
        pod=next(filter(None, map(_find_pod, paths)), None),
        job=job,
        job_uid=job_uid,
        session_uid=int(session[1]) if session else None,
    )


def _path_of(line: str) -> str:
    """`4:memory:/docker/<id>`; the path itself may hold colons (containerd with the systemd driver)."""
    return line.partition(":")[2].partition(":")[2]


def _find_containers(path: str) -> list[str]:
    """The containers on the way, outermost first."""
    lxc = _LXC.match(path)
    found = [match[1] for part in re.split("[/:]", path) if (match := _CONTAINER.fullmatch(part))]
    if lxc and not _CONTAINER.fullmatch(lxc[1]):
        found.insert(0, lxc[1])
    return found


def _find_pod(path: str) -> str | None:
    pods = (match for part in re.split("[/:]", path) if (match := _POD.fullmatch(part)))
    pod = next(pods, None)
    return pod[1].replace("_", "-") if pod else None


def _find_job(path: str) -> tuple[str, int | None] | None:
    if found := _SLURM_V1.match(path):
        return found[2], int(found[1])
    if found := _SLURM_V2.match(path):
        return found[1], None
    return None
