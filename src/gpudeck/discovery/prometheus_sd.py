"""Lists of hosts as Prometheus reads them, from files (file_sd_configs) and from servers (http_sd_configs).

A list is `[{"targets": ["gpu01:9400"], "labels": {"rack": "b3"}}]`. Labels that begin with two underscores are
Prometheus' own: `__scheme__` and `__metrics_path__` say how a target is reached, the others are left out.
"""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gpudeck.discovery.host_names import HostAddress, expand, quote, read_host_address
from gpudeck.discovery.inputs import FileProvider, HostFindings, ServerProvider, WatchedFile, bound_labels, find_path
from gpudeck.model.address import Url, check_url, show_url
from gpudeck.model.errors import Temporary
from gpudeck.model.settings import Duration, Text
from gpudeck.model.target import Target, Via

if TYPE_CHECKING:
    import yaml

MAX_FILES = 1000
MAX_DEPTH = 20


def read_groups(groups: object, origin: str, via: Via, findings: HostFindings, file: str = "") -> None:
    """Put the hosts of decoded JSON or YAML into `findings`. `file` is where they stand, if not the origin. Raises
    ValueError for any other value; an invalid group becomes a problem."""
    if not isinstance(groups, list):
        raise ValueError("it is no list of groups of targets")  # noqa: TRY004 - a value from outside
    for number, group in enumerate(groups, 1):
        place = f"{file or origin}, group {number}"
        try:
            if not _read_group(group, origin, via, findings, place):
                return
        except ValueError as error:
            findings.add_problem(f"{place}: {error}.")


class _Labels(Struct, rename={"scheme": "__scheme__", "path": "__metrics_path__"}):
    scheme: Literal["http", "https"] = "http"
    path: Annotated[str, Meta(pattern=r"^/[^\x00-\x20\x7f]*$")] | None = None


class _Group(Struct):
    targets: list[Any]
    labels: dict[str, Any] | None = None


def _read_group(raw: object, origin: str, via: Via, findings: HostFindings, place: str) -> bool:
    """False when there is no room for more hosts. Raises ValueError."""
    group = msgspec.convert(raw, _Group)
    labels = group.labels or {}
    reach = msgspec.convert(labels, _Labels)
    shown = bound_labels({name: value for name, value in labels.items() if not name.startswith("__")})
    for where in _places(group.targets, findings, place):
        target = Target(
            name=where.host,
            via=via,
            address=where.address,
            port=where.port,
            scheme=reach.scheme,
            path=reach.path,
            labels=shown,
            origin=origin,
        )
        if not findings.add([target], place):
            return False
    return True


def _places(targets: list[object], findings: HostFindings, place: str) -> Iterator[HostAddress]:
    """The addresses of the targets; brackets mean only IPv6 here, as in Prometheus."""
    for text in targets:
        try:
            where = read_host_address(text if isinstance(text, str) else "")
            if [where.host] != expand(where.host) or where.user:
                raise ValueError(f"{quote(str(text))} is no host and port")  # noqa: TRY301 - reported as the others are
        except ValueError as error:
            findings.add_problem(f"{place}: {error}.")
        else:
            yield where


class FileSdSettings(Struct, frozen=True):
    """Files as Prometheus reads them with file_sd: YAML or JSON, groups of targets with labels."""

    paths: Annotated[list[Text], Meta(min_length=1)]
    """The files; `*` and `?` stand for any name, such as targets/*.yml."""
    via: Via = "scrape"
    """How the hosts in them are read."""


class FileSd(FileProvider):
    """The hosts in all files that fit the patterns. One that cannot be read keeps what it said last. `find` raises
    Temporary when the folder of a pattern is not there, and when no file could ever be read."""

    def __init__(self, settings: FileSdSettings) -> None:
        super().__init__(f"file_sd {', '.join(settings.paths)}")
        self._settings = settings
        self._files: dict[Path, _SdFile] = {}

    def _find(self) -> HostFindings:
        matches = {pattern: find_files(pattern) for pattern in self._settings.paths}
        paths = dict.fromkeys(path for matched in matches.values() for path in matched)
        self._files = {path: self._files.get(path) or _SdFile(path) for path in paths}
        whole = HostFindings()
        for path, file in self._files.items():
            try:
                if (content := file.read_if_changed()) is not None:
                    file.trouble = ""
                    file.findings = read_file(content, self.origin, self._settings.via, str(path))
            except Temporary as error:
                file.trouble = error.message
            whole.add(file.findings.targets if file.findings else [], str(path))
            for problem in (*filter(None, [file.trouble]), *(file.findings.problems if file.findings else ())):
                whole.add_problem(problem)
        troubles = [file.trouble for file in self._files.values() if file.trouble]
        if troubles and all(file.findings is None for file in self._files.values()):
            raise Temporary(troubles[0])
        for pattern in (pattern for pattern, matched in matches.items() if not matched):
            whole.add_problem(f"{pattern} fits no file.")
        return whole


class _SdFile(WatchedFile):
    """One of the files, with its last findings; None if it could never be read."""

    findings: HostFindings | None = None
    trouble = ""


def read_file(content: bytes, origin: str, via: Via, path: str) -> HostFindings:
    """The hosts in a file. Raises Temporary."""
    findings = HostFindings()
    try:
        groups = msgspec.json.decode(content) if path.endswith(".json") else decode_yaml(content)
        read_groups(groups, origin, via, findings, path)
    except (ValueError, RecursionError) as error:
        raise Temporary(f"{path} cannot be used: {_explain(error)}.") from error
    return findings


def decode_yaml(content: bytes) -> object:
    """The content of a YAML file, every scalar as text. JSON is YAML, and read the faster way. Raises ValueError or
    RecursionError."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        text = content.decode()
    import yaml  # noqa: PLC0415 - settings are read without it where there is no configuration file

    try:
        return _build(yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
    except (KeyError, TypeError) as error:
        raise ValueError("it has an unknown alias, or a list or mapping as a name") from error
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ValueError(f"{line}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _build(events: "Iterator[yaml.Event]") -> object:
    """Not by the loader: a single call of C code for a long list would stop the event loop for a second, and one for a
    deep list the process. Raises KeyError for an unknown alias, TypeError for an invalid name."""
    import yaml  # noqa: PLC0415 - see above

    started: list[yaml.CollectionStartEvent] = []
    found: list[list[object]] = [[]]
    anchors: dict[str | None, object] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            if len(started) == MAX_DEPTH:
                raise RecursionError
            started.append(event)
            found.append([])
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            start, items = started.pop(), found.pop()
            is_mapping = isinstance(start, yaml.MappingStartEvent)
            value: object = dict(zip(items[::2], items[1::2], strict=True)) if is_mapping else items
            anchors[start.anchor] = value
        elif isinstance(event, yaml.ScalarEvent):
            value = anchors[event.anchor] = event.value
        elif isinstance(event, yaml.AliasEvent):
            value = anchors[event.anchor]
        else:
            continue
        found[-1].append(value)
    return found[0][0] if found[0] else None


def _explain(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]


def find_files(pattern: str) -> list[Path]:
    """The files that fit, in the order of their names; one without `*` is itself, there or not. Raises Temporary."""
    path = find_path(pattern)
    if not glob.has_magic(str(path)):
        return [path]
    folder = next(parent for parent in path.parents if not glob.has_magic(str(parent)))
    if not folder.is_dir():
        raise Temporary(f"the folder {folder} is not there.")
    found = sorted(map(Path, glob.iglob(str(path), recursive=True)))  # noqa: PTH207 - Path has no glob of whole paths
    return [file for file in found[:MAX_FILES] if not file.is_dir()]


class HttpSdSettings(Struct, frozen=True):
    """An address as Prometheus asks it with http_sd: JSON, groups of targets with labels."""

    url: Url
    """The address."""
    via: Via = "scrape"
    """How the hosts in the answer are read."""
    interval: Annotated[Duration, Meta(ge=1, le=86_400)] = 60.0
    """How often it is asked."""
    token_file: Text | None = None
    """A file whose first line is sent as a bearer token."""
    ca_file: Text | None = None
    """The certificates that are trusted, instead of those of this machine."""

    def __post_init__(self) -> None:
        check_url(self.url)


class HttpSd(ServerProvider):
    """The hosts that a server answers, asked at an interval."""

    def __init__(self, settings: HttpSdSettings) -> None:
        self._shown = show_url(settings.url)
        super().__init__(f"http_sd {self._shown}", settings.interval, settings.token_file, settings.ca_file)
        self._settings = settings

    async def find(self) -> list[Target]:
        await self._fetch(self._settings.url, read_targets, self.origin, self._settings.via, self._shown)
        return self._findings.targets


def read_targets(body: bytes, origin: str, via: Via, shown: str) -> HostFindings:
    """The hosts in an answer. Raises Temporary, which names the address `shown`."""
    findings = HostFindings()
    try:
        read_groups(msgspec.json.decode(body), origin, via, findings)
    except (ValueError, RecursionError) as error:
        raise Temporary(f"{shown} answers no list of targets in JSON: {_explain(error)}.") from error
    return findings
