"""What every test keeps to: it uses nothing private, asserts no wall time, and waits in one way."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if "captures" not in path.parts)
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"}
"""A moment of `time.time()` may be compared with one that is told."""
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit"}
"""In spite of their names: of named tuples, and of `os`."""
_MAYBE_PRIVATE = re.compile(
    r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|[\"'](?:[\w.]*\.)?_[a-zA-Z]|^\s*(?:from|import)\b.*\b_[a-zA-Z]|^\s*_\w+,?$",
    re.MULTILINE,
)
"""A file without any of these uses nothing private: to parse all files takes seconds."""


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def private_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Attributes, imports and names in `setattr` that begin with an underscore. A class may use its own."""
    own = {node.attr for node in nodes_of(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and not _is_self(node.value) and node.attr not in own:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and _name_of(node.func) in {"setattr", "getattr", "delattr", "object"}:
            texts = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
            yield from ((node.lineno, text.rpartition(".")[2]) for text in texts if isinstance(text, str))


def _is_self(node: ast.expr) -> bool:
    return _name_of(node) in {"self", "cls", "super"}


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *PUBLIC}


def timed_asserts(tree: ast.Module) -> Iterator[int]:
    """Comparisons of a clock of the machine, or of a span between two of its readings."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _timed_asserts_in(node)


def _timed_asserts_in(function: ast.AST) -> Iterator[int]:
    spans = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            named = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
            if _reads_clock(node.test) or named & spans:
                yield node.lineno


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in CLOCKS
        and _name_of(one.func.value) == "time"
        for one in ast.walk(node)
    )


def reads_a_clock(path: Path) -> bool:
    text = path.read_text()
    return any(f"time.{name}" in text for name in CLOCKS)


def test_tests_use_what_is_public() -> None:
    files = [path for path in FILES if _MAYBE_PRIVATE.search(path.read_text())]
    found = [(path, line, name) for path in files for line, name in private_names(parse(path)) if is_private(name)]
    assert [f"{path.relative_to(TESTS)}:{line}: {name}" for path, line, name in found] == []


def test_tests_assert_no_wall_time() -> None:
    files = [path for path in FILES if path.name.startswith("test_")]
    found = {(path, line) for path in files if reads_a_clock(path) for line in timed_asserts(parse(path))}
    assert [f"{path.relative_to(TESTS)}:{line}" for path, line in sorted(found)] == []
