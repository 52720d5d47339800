"""The documents as the tests read them: what stands in backticks, in shell blocks, in links and in tables."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent

_FENCE = re.compile(r"^ *```(?P<language>[\w-]*)[^\n]*\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)
_CHANGE = re.compile(r"^ *```\w+\n *# \S+, (?:new file|after: |before: ).*?^ *```", re.MULTILINE | re.DOTALL)
"""A block that adds something which is not there: `test_contributing.py` tries those."""
_SHELL = {"", "sh", "bash", "console"}
_CONNECTORS = re.compile(r"&&|\|\|?|;|#|\$\(")
_ASSIGNMENTS = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ +)*")


class Document(NamedTuple):
    """A Markdown file. Blocks in a language other than a shell's are shown to people only: nothing in them is checked
    but the routes."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> "Document":
        return cls(path, _CHANGE.sub("", path.read_text()))

    @property
    def prose(self) -> str:
        return _FENCE.sub("", self.text)

    @property
    def spans(self) -> list[str]:
        """What stands in backticks within a sentence or a table."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    @property
    def commands(self) -> list[str]:
        """Command lines, each part of a pipeline on its own: from shell blocks and from backticks."""
        blocks = [found["body"] for found in _FENCE.finditer(self.text) if found["language"] in _SHELL]
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        parts = [part.strip() for line in [*lines, *self.spans] for part in _CONNECTORS.split(line)]
        return [_ASSIGNMENTS.sub("", part) for part in parts if part]

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures, without those that lead to other machines."""
        targets = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return [target for target in targets if not re.match(r"[a-z]+:", target)]

    @property
    def anchors(self) -> set[str]:
        """What a link can point to within the document: its headings, as GitHub writes them."""
        titles = re.findall(r"^#+ +(.+?) *$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}

    @property
    def rows(self) -> list[list[str]]:
        """The rows of its tables, as cells."""
        lines = re.findall(r"^\|(.+)\|$", self.prose, re.MULTILINE)
        return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def all_documents() -> list[Document]:
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return [Document.read(path) for path in sorted(paths)]
