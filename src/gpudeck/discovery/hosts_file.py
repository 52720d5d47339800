"""A file with one host a line: what people keep who have no inventory.

gpu[01-16]                 # a range
ada@gpu17:2222 rack=b3     # a user, a port, a label
[2001:db8::17]:9400
"""

from msgspec.structs import replace

from gpudeck.discovery.addresses import read_place
from gpudeck.discovery.base import Findings
from gpudeck.discovery.labels import bound_labels
from gpudeck.discovery.long_lists import read_list
from gpudeck.discovery.ranges import expand, quote
from gpudeck.discovery.settings import HostsFileSettings
from gpudeck.discovery.watched import Looks, WatchedFile, find_path
from gpudeck.model.target import Target, Via


class HostsFile:
    """The hosts in one file, read again when it changes. A line that makes no sense costs itself only."""

    pause = 1.0

    def __init__(self, settings: HostsFileSettings) -> None:
        self.origin = settings.path
        self._via = settings.via
        self._file: WatchedFile | None = None
        self._findings = Findings()
        self._looks = Looks()

    @property
    def problems(self) -> list[str]:
        return self._findings.problems

    async def find(self) -> list[Target]:
        return await self._looks.look(self._find)

    async def close(self) -> None:
        """Nothing is open."""

    def _find(self) -> list[Target]:
        if self._file is None:
            self._file = WatchedFile(find_path(self.origin), self.origin)
        content = self._file.read_if_changed()
        if content is not None:
            self._findings = read_list(read_hosts, content, self.origin, self._via)
        return self._findings.targets


def read_hosts(content: bytes, origin: str, via: Via) -> Findings:
    """The hosts in the bytes of such a file."""
    findings = Findings()
    text = content.decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{origin}, line {number}"
        if findings.is_full:
            findings.tell_full(place)
            break
        try:
            findings.add(_read_line(words, origin, via, findings, place), place)
        except ValueError as error:
            findings.tell(f"{place}: {error}.")
    return findings


def _read_line(words: list[str], origin: str, via: Via, findings: Findings, place: str) -> list[Target]:
    where = read_place(words[0])
    labels, left_out = bound_labels(dict(map(_read_label, words[1:])))
    if left_out:
        findings.tell(f"{place}: {left_out}.")
    # The operator writes this file, as gpudeck.yaml: its hosts may be anywhere.
    reach = Target(
        name="", via=via, address=where.address, port=where.port, user=where.user, labels=labels, is_operators=True
    )
    return [replace(reach, name=name, origin=origin) for name in expand(where.host)]


def _read_label(word: str) -> tuple[str, str]:
    name, sign, value = word.partition("=")
    if not name or not sign:
        raise ValueError(f"{quote(word)} is no label; write name=value")
    return name, value


def make(settings: HostsFileSettings) -> HostsFile:
    """The provider as the registry makes it."""
    return HostsFile(settings)
