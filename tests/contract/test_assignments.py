"""No object is wired from outside: nobody assigns an attribute of what another object holds, or of another module's
object. What follows another object is registered there, by a method or in the constructor."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gpudeck

SOURCE = Path(gpudeck.__file__).parent

DATA = {
    "collectors/nvml_board.py: self.loads.reason",
    "compat/vesta/store.py: self._keep(row['id'], row['name'], row['address'], row['seen_at']).last_at",
    "history/embedded/open_hour.py: hosts[key].last",
    "history/embedded/store.py: self._thread.connection",
    "history/embedded/store.py: self._thread.opened",
    "history/remote/writer.py: self.sent.is_later",
    "history/remote/writer.py: self.sent.oldest",
    "history/remote/writer.py: self.sent.problem",
    "events/detector.py: host.baseline",
    "events/detector.py: replay.baseline",
    "fleet/observers.py: host.has_changed",
    "fleet/observers.py: replay.has_changed",
    "history/recorder.py: host.sampled_slot",
    "fleet/identity.py: host.name",
    "fleet/identity.py: host.token",
    "sources/ssh_connector.py: self._attempt.connection",
    "sources/ssh_connector.py: self._attempt.note",
    "sources/ssh_connector.py: self._attempt.offered",
    "client/live_fleet.py: self.fleet.hosts",
    "tui/top.py: self.prompt.text",
}
"""Values of a struct that the module keeps for itself, and of a host's state within the hub."""
LIBRARIES = {
    "auth/ldap.py: self._connection.authentication",
    "auth/ldap.py: self._connection.password",
    "auth/ldap.py: self._connection.user",
    "server/tls.py: self.context.sni_callback",
    "cli/top.py: logging.getLogger('gpudeck').propagate",
}
"""The libraries have no other way."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Classes:
    """The classes of the package by name, with their bases."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self._bases = {
            found.name: [_write(base).rpartition(".")[2] for base in found.bases]
            for tree in trees
            for found in _classes_of(tree)
        }

    def is_service(self, name: str) -> bool:
        """Whether it is one of ours, and no mere struct."""
        return name in self._bases and not self._is_struct(name)

    def _is_struct(self, name: str) -> bool:
        return name == "Struct" or any(self._is_struct(base) for base in self._bases.get(name, ()) if base != name)


@cache
def _nodes_of(tree: ast.AST) -> list[ast.AST]:
    """To walk over all modules takes a second, and is done four times."""
    return list(ast.walk(tree))


def _classes_of(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in _nodes_of(tree) if isinstance(node, ast.ClassDef))


def outside_assignments(tree: ast.Module, classes: Classes) -> Iterator[str]:
    """Each `a.b.c = …`, whatever `a.b` is, and each `a.b = …` where `a` is a parameter of another module's class."""
    own = {found.name for found in _classes_of(tree)}
    for target in _assigned(tree):
        if not isinstance(target.value, ast.Name):
            yield ast.unparse(target)
    for function in _nodes_of(tree):
        if isinstance(function, Function):
            kinds = {name: kind for name, kind in _parameters(function) if kind not in own and classes.is_service(kind)}
            for target in _assigned(function) if kinds else ():
                if _write(target.value) in kinds:
                    yield ast.unparse(target)


def _assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in _nodes_of(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def _parameters(function: Function) -> Iterator[tuple[str, str]]:
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if one.annotation is not None:
            yield one.arg, _write(one.annotation).strip("'").removesuffix(" | None")


def _write(node: ast.expr) -> str:
    """Most are a name: `ast.unparse` takes twenty times as long."""
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def test_no_module_assigns_attributes_of_another_object() -> None:
    trees = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    classes = Classes(list(trees.values()))
    found = {f"{name}: {target}" for name, tree in trees.items() for target in outside_assignments(tree, classes)}
    assert found == DATA | LIBRARIES


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("self._fleet.recorder = Recorder()", {"self._fleet.recorder"}),
        ("a, self.hub.fleet.alerts = 1, []", {"self.hub.fleet.alerts"}),
        ("self.sent.count += 1", {"self.sent.count"}),
        ("with a as find().b: pass", {"find().b"}),
        ("def wire(clock: Clock) -> None: clock.tell = print", {"clock.tell"}),
        ("def wire(clock: 'Clock | None') -> None: clock.tell = print", {"clock.tell"}),
        ("def note(entry: Entry) -> None: entry.count = 1", set()),
        ("def note(entry: Other) -> None: entry.count = 1", set()),
        ("self.count = 1", set()),
        ("class Clock:\n  def fork(self, other: Clock) -> None: other.count = 1", set()),
    ],
)
def test_an_assignment_from_outside_is_found(code: str, wanted: set[str]) -> None:
    known = ast.parse("class Clock: ...\nclass Entry(msgspec.Struct): ...")
    assert set(outside_assignments(ast.parse(code), Classes([known]))) == wanted
