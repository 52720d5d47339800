"""Files as Prometheus reads them with file_sd_configs: a site that has them need not write its hosts down again."""

import glob
from pathlib import Path

import msgspec
import yaml

from gpudeck.discovery.base import Findings
from gpudeck.discovery.long_lists import read_list
from gpudeck.discovery.settings import FileSdSettings
from gpudeck.discovery.target_groups import read_groups
from gpudeck.discovery.watched import Looks, WatchedFile, find_path
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target, Via

MAX_FILES = 1000
MAX_DEPTH = 20


class FileSd:
    """The hosts in all files that fit the patterns. Files come and go; one that cannot be read keeps what it said last.

    `find` raises Temporary when the folder of a pattern is not there, and when no file at all could ever be read.
    """

    pause = 1.0

    def __init__(self, settings: FileSdSettings) -> None:
        self.origin = f"file_sd {', '.join(settings.paths)}"
        self._settings = settings
        self._files: dict[Path, _File] = {}
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
        matches = {pattern: find_files(pattern) for pattern in self._settings.paths}
        paths = dict.fromkeys(path for matched in matches.values() for path in matched)
        self._files = {path: self._files.get(path) or _File(path, self.origin, self._settings.via) for path in paths}
        for file in self._files.values():
            file.look()
        troubles = [file.trouble for file in self._files.values() if file.trouble]
        if troubles and all(file.findings is None for file in self._files.values()):
            raise Temporary(troubles[0])
        self._findings = self._put_together()
        for pattern in (pattern for pattern, matched in matches.items() if not matched):
            self._findings.tell(f"{pattern} fits no file.")
        return self._findings.targets

    def _put_together(self) -> Findings:
        whole = Findings()
        for file in self._files.values():
            said = file.findings or Findings()
            whole.add(said.targets, str(file.path))
            for problem in (*filter(None, [file.trouble]), *said.problems):
                whole.tell(problem)
        return whole


class _File:
    """One of the files. `findings` is what it said when it could be read last; None if it never could."""

    def __init__(self, path: Path, origin: str, via: Via) -> None:
        self.path = path
        self.findings: Findings | None = None
        self.trouble = ""
        self._origin = origin
        self._via = via
        self._watched = WatchedFile(path)

    def look(self) -> None:
        try:
            content = self._watched.read_if_changed()
            if content is not None:
                self.trouble = ""
                self.findings = self._read(content)
        except Temporary as error:
            self.trouble = error.message

    def _read(self, content: bytes) -> Findings:
        return read_list(read_file, content, self._origin, self._via, str(self.path))


def read_file(content: bytes, origin: str, via: Via, path: str) -> Findings:
    """The hosts in a file. Raises Temporary."""
    findings = Findings()
    try:
        groups = msgspec.json.decode(content) if path.endswith(".json") else decode_yaml(content)
        read_groups(groups, origin, via, findings, path)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Temporary(f"{path} cannot be used: {explain_content(error)}.") from error
    return findings


def decode_yaml(content: bytes) -> object:
    """What is in a YAML file, every scalar as the text that is written there. JSON is YAML, and read the faster way.

    Raises ValueError, RecursionError or YAMLError.
    """
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        text = content.decode()
        _check_depth(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - it makes texts, lists and mappings only


_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def _check_depth(text: str) -> None:
    """The loader in C goes as deep as the text says, and takes the process with it when that is too deep."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


def explain_content(error: Exception) -> str:
    """On one line, with the line of the file where that is known."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())[:200]


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


def make(settings: FileSdSettings) -> FileSd:
    """The provider as the registry makes it."""
    return FileSd(settings)
