"""What a node answers to `gpu_stats()`: XML-RPC around one string, which is JSON.

Only that much of XML-RPC is understood. A document type is refused, and with it every entity that could grow or lead
to a file: no node sends one.
"""

import logging
from typing import Any
from xml.parsers import expat

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.smi_answer import quote
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

CALL = b"<?xml version='1.0'?>\n<methodCall><methodName>gpu_stats</methodName><params></params></methodCall>\n"
BYTES_AT_MOST = 1024 * 1024
"""A node with 16 GPUs and 100 processes on each answers 200 kB."""
_DEEPEST = 16
_ANSWER = ["methodResponse", "params", "param", "value"]
_FAULT = ["methodResponse", "fault"]


class Stats(Struct, frozen=True):
    """`gpus` and `procs` as the node sent them: whatever stands in a field, as NVML's errors are put there too."""

    gpus: list[Any]
    procs: list[Any] = field(default_factory=list)


def read_answer(body: bytes) -> Stats:
    """Raises Temporary, with a sentence that goes on after the node's address."""
    try:
        return msgspec.json.decode(_read_string(body), type=Stats)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Temporary(f"answers no gpu_stats() in JSON: {quote(str(error))}.", "Is that a node of it?") from error


def _read_string(body: bytes) -> str:
    """The one string in the answer."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.open
    parser.EndElementHandler = reader.close
    parser.CharacterDataHandler = reader.take
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, UnicodeError, ValueError) as error:
        raise Temporary(f"answers what is no XML: {quote(str(error))}.", "Is that a node of it?") from error
    if reader.fault:
        log.debug("a node of gpumonitor answers with a fault: %s", quote(reader.fault))
        raise Temporary("answers with a fault of XML-RPC.", "See its log on that host.")
    if not reader.has_answer:
        raise Temporary("answers XML, but no string of gpu_stats().", "Is that a node of it?")
    return "".join(reader.answer)


def _refuse_doctype(*_: object) -> None:
    raise Temporary("answers XML with a document type, which no node does: it is not read.")


class _Reader:
    """Follows the elements, and keeps the text of the answer or of a fault."""

    def __init__(self) -> None:
        self.answer: list[str] = []
        self.has_answer = False
        self._fault: list[str] = []
        self._path: list[str] = []

    @property
    def fault(self) -> str:
        return " ".join("".join(self._fault).split())

    def open(self, name: str, _: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise Temporary("answers XML that is nested too deep.")
        # In XML-RPC a value without a type is a string too, with white space around it where it has one.
        if self._path in (_ANSWER, [*_ANSWER, "string"]):
            self.has_answer, self.answer = True, []

    def close(self, _: str) -> None:
        self._path.pop()

    def take(self, text: str) -> None:
        if self._path == [*_ANSWER, "string"] or (self._path == _ANSWER and text.strip()):
            self.answer.append(text)
        elif self._path[:2] == _FAULT and self._path[-1] in {"string", "int"}:
            self._fault.append(f" {text}")
