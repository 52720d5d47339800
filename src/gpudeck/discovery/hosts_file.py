"""A file with one host a line: what people keep who have no inventory.

gpu[01-16]                 # a range
ada@gpu17:2222 rack=b3     # a user, a port, a label
[2001:db8::17]:9400
"""

from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.discovery.base import HostFindings, bound_labels
from gpudeck.discovery.host_names import expand, quote, read_host_address
from gpudeck.discovery.inputs import FileProvider, WatchedFile, find_path
from gpudeck.model.settings import Text
from gpudeck.model.target import Target, Via


class HostsFileSettings(Struct, frozen=True):
    """A file with one host a line. It is looked at each second."""

    config_shorthand: ClassVar[str] = "path"

    path: Text
    """The file; `~` is the home folder, a relative path begins in the folder where the hub was started."""
    via: Via = "ssh"
    """How the hosts in it are read."""


class HostsFile(FileProvider):
    """The hosts in one file, read again when it changes. A line that makes no sense costs itself only."""

    def __init__(self, settings: HostsFileSettings) -> None:
        super().__init__(settings.path)
        self._via = settings.via
        self._file: WatchedFile | None = None

    def _find(self) -> HostFindings:
        if self._file is None:
            self._file = WatchedFile(find_path(self.origin), self.origin)
        content = self._file.read_if_changed()
        return self._findings if content is None else read_hosts(content, self.origin, self._via)


def read_hosts(content: bytes, origin: str, via: Via) -> HostFindings:
    findings = HostFindings()
    text = content.decode("utf-8-sig", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{origin}, line {number}"
        try:
            if not findings.add(_read_line(words, origin, via, findings, place), place):
                break
        except ValueError as error:
            findings.add_problem(f"{place}: {error}.")
    return findings


def _read_line(words: list[str], origin: str, via: Via, findings: HostFindings, place: str) -> list[Target]:
    where = read_host_address(words[0])
    labels, left_out = bound_labels(dict(map(_read_label, words[1:])))
    if left_out:
        findings.add_problem(f"{place}: {left_out}.")
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
