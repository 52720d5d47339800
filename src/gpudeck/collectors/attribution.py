"""The person behind a process, the container and the job it runs in, and what that is concluded from.

The uid alone misleads: what runs as root in a container was started by somebody, and uid 1000 of an image is not the
host's uid 1000. In order of trust: the uid of the Slurm job, a person's own uid outside of containers, the uid that
logged in, the login session, a person's uid among the parents. Else the uid's name is all there is.
"""

from collections.abc import Callable

from msgspec import Struct

from gpudeck.collectors.cgroups import Placement
from gpudeck.collectors.containers import ContainerNames
from gpudeck.collectors.proc import Proc

_FIRST_PERSON, _NOBODY, _NO_UID = 1000, 65534, 2**32 - 1
_PARENTS_AT_MOST = 64
_ID_LENGTH, _SHORT_ID_LENGTH = 64, 12


class Attributed(Struct, frozen=True):
    """`container` and `job` are None where there is none. `evidence` is a sentence for people."""

    user: str
    evidence: str
    container: str | None = None
    job: str | None = None


class _Person(Struct, frozen=True):
    """`how` is what led to the uid; empty where it is the process's or the job's own."""

    uid: int
    how: str = ""


class _Traces(Struct, frozen=True):
    """What was found out about one process."""

    pid: int
    uid: int
    place: Placement
    login_uid: int | None
    person: _Person
    container: str | None
    job: str | None


def is_person(uid: int | None) -> bool:
    """Whether a uid belongs to people by the common rule (login.defs), and not to the system or to nobody."""
    return uid is not None and _FIRST_PERSON <= uid < _NO_UID and uid != _NOBODY


class Attribution:
    """`user_name` gives the account's name of a uid, or the number as text."""

    def __init__(self, proc: Proc, containers: ContainerNames, user_name: Callable[[int], str]) -> None:
        self._proc = proc
        self._containers = containers
        self._user_name = user_name

    def attribute(self, pid: int, uid: int) -> Attributed:
        """Never raises because of the process: one that ends meanwhile just leaves fewer traces."""
        place, login_uid = self._proc.placement(pid), self._proc.login_uid(pid)
        person = self._find_person(pid, uid, place, login_uid)
        job = place.job or self._find_job_in_environment(pid)
        traces = _Traces(pid, uid, place, login_uid, person, self._name(place.container, place), job)
        return Attributed(self._user_name(person.uid), self._tell(traces)[:1024], traces.container, job)

    def _find_person(self, pid: int, uid: int, place: Placement, login_uid: int | None) -> _Person:
        if place.job_uid is not None:
            return _Person(place.job_uid)
        if place.container is None and is_person(uid):
            # Before the login: a daemon that was started by hand hands its login down to everybody it works for.
            return _Person(uid)
        if login_uid is not None and is_person(login_uid):
            return _Person(login_uid, f"login uid {login_uid}")
        if place.session_uid is not None and is_person(place.session_uid):
            return _Person(place.session_uid, f"session of uid {place.session_uid}")
        return self._find_parent(pid) or _Person(uid)

    def _find_parent(self, pid: int) -> _Person | None:
        """The nearest parent that is a person's. A uid within any container may be one of its image."""
        for _ in range(_PARENTS_AT_MOST):
            try:
                pid = self._proc.stat(pid).parent
                uid = self._proc.uid(pid)
            except (OSError, ValueError):
                return None
            if pid <= 1:
                return None
            if is_person(uid) and self._proc.placement(pid).container is None:
                return _Person(uid, f"uid {uid} of its parent {pid}")
        return None

    def _find_job_in_environment(self, pid: int) -> str | None:
        job = self._proc.variable(pid, "SLURM_JOB_ID") or ""
        return job if job.isascii() and job.isdigit() and len(job) <= 20 else None

    def _name(self, container: str | None, place: Placement) -> str | None:
        if container is None or len(container) < _ID_LENGTH:
            return container
        return self._containers.find(container, place.session_uid) or container[:_SHORT_ID_LENGTH]

    def _tell(self, traces: _Traces) -> str:
        """For example: "root in container trainer, started by alice (login uid 1000)"."""
        told = (self._tell_job(traces), self._tell_place(traces), self._tell_person(traces))
        return ", ".join(filter(None, told))

    def _tell_job(self, traces: _Traces) -> str:
        if traces.job is None:
            return ""
        source = "" if traces.place.job else " (SLURM_JOB_ID of its environment)"
        return f"slurm job {traces.job} of {self._call(traces.person.uid)}{source}"

    def _tell_place(self, traces: _Traces) -> str:
        place = traces.place
        if traces.container is not None:
            within = f" within {self._name(place.within, place)}" if place.within else ""
            pod = f" of pod {place.pod}" if place.pod else ""
            return f"{self._call(traces.uid)} in container {traces.container}{within}{pod}"
        if traces.person.how:
            return self._call(traces.uid)
        return "" if traces.job else f"uid {traces.uid} of /proc/{traces.pid}"

    def _tell_person(self, traces: _Traces) -> str:
        person = traces.person
        if person.how:
            return f"started by {self._call(person.uid)} ({person.how})"
        if traces.container is not None and traces.place.job_uid is None and is_person(traces.uid):
            return "a uid that its image may use for itself"
        if is_person(traces.login_uid) and traces.login_uid is not None and traces.login_uid != person.uid:
            return f"logged in as {self._call(traces.login_uid)}"
        return ""

    def _call(self, uid: int) -> str:
        name = self._user_name(uid)
        return f"uid {uid}" if name == str(uid) else name
