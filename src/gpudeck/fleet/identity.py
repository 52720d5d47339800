"""Host identity: ids, names, and configured hosts, which are separate from what hosts report.

A host is identified by its machine id, or by its name if it has none. Two hosts may share a name; both are shown. The
number of hosts per agent token is limited, so that a stolen token cannot fill the fleet.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gpudeck.auth.caller import is_for
from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable
from gpudeck.model.cpu_budget import Steps
from gpudeck.model.errors import ReportRefused
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.target import Target
from gpudeck.model.text import Names
from gpudeck.wire import Envelope, Head, ShortReport

_SHOWN_SECONDS: Final = 3600.0
"""A refusal is shown as a problem of the hub for this long."""
_MAX_SHOWN: Final = 3


class TokenName(Struct, frozen=True):
    """The token that a report came with: its id and its name."""

    id: int
    name: str


class TokenLimit:
    """Counts the hosts of each token. One event loop owns it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: Counter[int] = Counter()
        self._refused: dict[TokenName, tuple[int, float | None]] = {}

    def check(self, token: TokenName, host: str) -> None:
        """Called before an unknown host joins the fleet. Raises ReportRefused."""
        if self._hosts[token.id] < self._most:
            return
        count, _ = self._refused.get(token, (0, None))
        self._refused[token] = count + 1, None
        raise ReportRefused(
            429,
            "too_many_hosts",
            f"the token {token.name!r} has brought {self._count} into this hub already, and {host} is another",
            "Raise fleet.max_hosts_per_token in the hub's configuration, use another token for this host, or remove "
            f"hosts: gpudeck hosts remove --token {token.name!r} --down.",
        )

    @property
    def _count(self) -> str:
        return f"{self._most} host{'s' * (self._most != 1)}"

    def charge(self, host: HostState, token: int | None) -> None:
        """Count the host towards this token from now on; None: towards no token."""
        if host.token is not None:
            self._hosts[host.token] -= 1
            if not self._hosts[host.token]:
                del self._hosts[host.token]
        host.token = token
        if token is not None:
            self._hosts[token] += 1

    def problems(self, now: float) -> list[str]:
        if not self._refused:
            return []
        # Refusals get their time here, because the caller has no clock.
        dated = {token: (count, now if at is None else min(at, now)) for token, (count, at) in self._refused.items()}
        self._refused = {token: (count, at) for token, (count, at) in dated.items() if now - at < _SHOWN_SECONDS}
        shown = sorted(self._refused, key=lambda token: token.name)[:_MAX_SHOWN]
        return [
            f"the agent token {token.name!r} is at its limit of {self._count}: reports of further hosts are "
            "refused. Raise fleet.max_hosts_per_token, or remove hosts that do not exist: "
            f"gpudeck hosts remove --token {token.name!r} --down"
            for token in shown
        ]


Arrived = TypeVar("Arrived", bound=Head)

MAX_MACHINES_PER_NAME = 8
"""Machines that may report with a token for one name."""


class Register:
    """All hosts by id. `removed` has the ids that left, until they are collected. `version` changes whenever a host or
    target is added, removed or renamed."""

    def __init__(self, settings: FleetSettings, table: FleetTable) -> None:
        self.hosts: dict[str, HostState] = {}
        self.removed: set[str] = set()
        self.version = 0
        self._settings = settings
        self._table = table
        self._targets: dict[str, Target] = {}
        self._targeted: dict[str, HostState] = {}
        self._formerly: dict[str, HostState] = {}
        self._named: dict[str, set[str]] = {}
        self.tokens = TokenLimit(settings.max_hosts_per_token)

    def find(
        self,
        envelope: Envelope | ShortReport,
        via: str,
        target: str | None,
        only: str | None = None,
        token: TokenName | None = None,
    ) -> tuple[HostState, str]:
        """The host of a report, and the id it is to have; it joins the fleet with `settle`. `only` limits the hosts
        that the sender may report as. Raises ReportRefused if the fleet is full, or if the host is already shown under
        another name."""
        host_id = self._id_of(envelope, target, only)
        host = self.hosts.get(host_id) or self._find_unidentified(envelope, target)
        if host is None:
            self._check_name_limit(envelope.host, only)
            if token is not None:
                self.tokens.check(token, envelope.host)
            return self._make(host_id, via), host_id
        self._check_claim(host, target)
        return host, host_id

    def make(self, host_id: str, via: str) -> HostState:
        return HostState(host_id, via, self._table)

    def restore(self, host: HostState, target: str) -> bool:
        """Restore a host after a restart. `target` is its configured name if that differs. False if it reports already,
        or if the fleet is full."""
        known = self.hosts.get(host.id)
        if known is not None and known.status == "never_seen":
            self.remove(known.id)
        elif known is not None or len(self.hosts) >= self._settings.max_hosts:
            return False
        token, host.token = host.token, None
        self._add(host)
        self.tokens.charge(host, token)
        if target:
            self._formerly[target] = host
        self._link(host, target or host.name)
        return True

    def name(self, host: HostState, envelope: Arrived) -> Arrived:
        """The report under its configured name, unless only an address was configured. If the host's own name is that
        of another configured host, which therefore never reports, that one shows why."""
        target = self._targets.get(host.target or "")
        if target is None or target.via == "push" or envelope.host == target.name or not target.is_named:
            return envelope
        self._explain_absence(envelope.host, host)
        return msgspec.structs.replace(envelope, host=target.name)

    def disambiguate(self, envelope: Arrived, target: str | None) -> Arrived:
        """The report under the address by which the host is read, if the name it reports is that of another configured
        host."""
        asked = self._targets.get(target or "")
        if asked is None or envelope.host == asked.name or asked.is_named:
            return envelope
        is_taken = any(host.target not in {None, asked.name} for host in self.called(envelope.host))
        return msgspec.structs.replace(envelope, host=asked.name) if is_taken else envelope

    def settle(self, host: HostState, host_id: str, envelope: Head, target: str | None) -> None:
        if host.id == host_id and host.name == envelope.host and self.hosts.get(host_id) is host:
            if host.target is None and self._targets:
                self._link(host, target or envelope.host)
            return
        self._place(host, host_id)
        self._release_name(host.name, host_id)
        host.name = envelope.host
        self._claim_name(host)
        self._change_target(host, envelope.host)
        self._link(host, target or envelope.host)
        self._note_clone(host, envelope)

    def is_settled(self, host: HostState) -> bool:
        target = self._targets.get(host.target or host.name)
        return target is None or (host.target is not None and target.via == "push")

    def targeted(self, name: str) -> HostState | None:
        return self._targeted.get(name)

    def expect(self, targets: Iterable[Target]) -> Steps[None]:
        """Set the configured hosts. One without a report is shown as never seen; one that is no longer configured is
        removed, unless it pushes reports. One step per host; an unfinished call may be abandoned for a newer one."""
        wanted = {target.name: target for target in targets}
        for name in self._targets.keys() - wanted.keys():
            self.version += 1
            self._targets.pop(name, None)  # a newer call may run between two steps
            self._dismiss(self._targeted.pop(name, None))
            yield
        for name, target in wanted.items():
            if self._targets.get(name) != target or name not in self._targeted:
                self.version += 1
                self._targets[name] = target
                self._stand_for(target, self._targeted.get(name) or self._find_own(name))
            yield

    @property
    def targets(self) -> list[Target]:
        return sorted(self._targets.values(), key=lambda target: target.name)

    def rename(self, names: Names) -> None:
        self._table.rename(names)
        for host in self.hosts.values():
            host.rename(names)

    def remove(self, host_id: str) -> None:
        """Forget a host; it returns with its next report."""
        self.version += 1
        host = self.hosts.pop(host_id)
        self.tokens.charge(host, None)
        if host.target is not None:
            self._targeted.pop(host.target, None)
        self.removed.add(host_id)
        self._release_name(host.name, host_id)
        host.release()

    def _id_of(self, envelope: Envelope | ShortReport, target: str | None, only: str | None) -> str:
        """The machine id, or the name if there is none. Machines cloned with their id are distinguished by name.

        A renamed machine keeps its id, unless its sender may not report under its former name: all readers of the fleet
        know all machine ids. A host that is read over a source without ids keeps the id it had.
        """
        if not envelope.host_id:
            same = [host for host in self.called(envelope.host) if self._is_same(host, envelope, target)]
            return same[0].id if len(same) == 1 else envelope.host
        own = f"{envelope.host_id}:{envelope.host}"
        if own in self.hosts:
            return own
        known = self.hosts.get(envelope.host_id)
        is_clone = known is not None and (known.is_other_machine(envelope) or not is_for(only, known.name))
        return own if is_clone else envelope.host_id

    def called(self, name: str) -> list[HostState]:
        return [self.hosts[host_id] for host_id in sorted(self._named.get(name, ()))]

    def _is_same(self, host: HostState, envelope: Envelope | ShortReport, target: str | None) -> bool:
        """Whether a report without a machine id, or with a new one, is from the known host of that name."""
        is_asked = target is not None and host.target == target
        return host.status == "never_seen" or is_asked or host.has_gpu_of(envelope)

    def _find_own(self, name: str) -> HostState | None:
        """The host of that name, or the one configured under it before the restart, that no other target refers to."""
        former = self._formerly.get(name)
        if former is not None and former.target is None and self.hosts.get(former.id) is former:
            return former
        return next((host for host in self.called(name) if host.target in {None, name}), None)

    def _check_claim(self, host: HostState, target: str | None) -> None:
        """A machine that was polled as one host may not answer as another host that is up."""
        if target is None or host.target in {None, target} or host.status != "up":
            return
        raise ReportRefused(
            409,
            "same_machine",
            f"{target} answers as the machine that is shown as {host.target} already.",
            "Take one of the two names out, or give each machine an id of its own (/etc/machine-id).",
        )

    def _check_name_limit(self, name: str, only: str | None) -> None:
        """A token for one host allows a few machines of that name, because machines are reinstalled or cloned."""
        if only != name or len(self.called(name)) < MAX_MACHINES_PER_NAME:
            return
        raise ReportRefused(
            409,
            "too_many_machines",
            f"{MAX_MACHINES_PER_NAME} machines with the name {name} are there already, and this token is for one.",
            f"Give each machine a name of its own, or begin anew: gpudeck hosts remove {name}, and add it again.",
        )

    def _make(self, host_id: str, via: str) -> HostState:
        if len(self.hosts) >= self._settings.max_hosts:
            raise ReportRefused(
                503,
                "fleet_full",
                f"this hub already watches {len(self.hosts)} hosts",
                "Raise fleet.max_hosts in its configuration.",
            )
        return self.make(host_id, via)

    def _find_unidentified(self, envelope: Envelope | ShortReport, target: str | None) -> HostState | None:
        host = self.hosts.get(envelope.host)
        is_it = host is not None and bool(envelope.host_id) and self._is_same(host, envelope, target)
        return host if is_it else None

    def _place(self, host: HostState, host_id: str) -> None:
        self.version += 1
        if self.hosts.get(host.id) is host:
            del self.hosts[host.id]
            self._release_name(host.name, host.id)
            self.removed.add(host.id)
        host.rename_id(host_id)
        self.hosts[host_id] = host
        self.removed.discard(host_id)

    def _add(self, host: HostState) -> HostState:
        self._place(host, host.id)
        self._claim_name(host)
        return host

    def _stand_for(self, target: Target, host: HostState | None) -> None:
        host = host or self._add(self.make(target.name, target.via))
        self._targeted[target.name] = host
        host.expect(target.name, target.via, target.labels)

    def _explain_absence(self, name: str, shown: HostState) -> None:
        """Explain why this configured host never reports. If the hub reads it, its reports are refused."""
        target, absent = self._targets.get(name), self._targeted.get(name)
        if target is None or target.via != "push" or absent is None or absent is shown or absent.status == "up":
            return
        problem = f"its agent runs on the machine that is shown as {shown.target}: take one of the two names out"
        absent.flag("read", problem)

    def _change_target(self, host: HostState, name: str) -> None:
        """A machine that was expected under one name now reports under that of another target: the first is missing."""
        before = self._targets.get(host.target or "")
        if before is not None and before.via == "push" and name in self._targets and name != before.name:
            host.expect(None, host.via, {})
            self._stand_for(before, None)

    def _link(self, host: HostState, name: str) -> None:
        """Link the host to the target of that name, in place of one never seen or of the previous machine (a
        reinstalled machine has a new id)."""
        target, before = self._targets.get(name), self._targeted.get(name)
        if target is None or before is host or host.target is not None:
            return
        if before is not None and before.status in {"up", "late"}:
            return
        if before is not None:
            self.remove(before.id)
        self._targeted[name] = host
        host.expect(name, target.via, target.labels)

    def _dismiss(self, host: HostState | None) -> None:
        """The host is no longer configured. If it pushes reports, it stays."""
        if host is None:
            return
        if host.via == "push" and host.status != "never_seen":
            host.expect(None, host.via, {})
        else:
            self.remove(host.id)

    def _note_clone(self, host: HostState, envelope: Head) -> None:
        """Two machines with one machine id: both show a problem."""
        original = self.hosts.get(envelope.host_id) if host.id != envelope.host_id else None
        if original is None or original is host:
            return
        for one, other in ((host, original), (original, host)):
            hint = "give each an id of its own (systemd-machine-id-setup)"
            one.flag("clone", f"it has the same machine id as {other.name}: {hint}")

    def _claim_name(self, host: HostState) -> None:
        self._named.setdefault(host.name, set()).add(host.id)
        self._flag_names(host.name)

    def _release_name(self, name: str, host_id: str) -> None:
        ids = self._named.get(name, set())
        ids.discard(host_id)
        if ids:
            self._flag_names(name)
        else:
            self._named.pop(name, None)

    def _flag_names(self, name: str) -> None:
        """Hosts that share a name show it as a problem: nothing else distinguishes them."""
        hosts = [self.hosts[host_id] for host_id in self._named[name] if host_id in self.hosts]
        for host in hosts:
            others = len(hosts) - 1
            sentence = f"{'another host has' if others == 1 else f'{others} other hosts have'} the name {name} too"
            host.flag("name", sentence if others else None)
