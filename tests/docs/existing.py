"""What exists in the repository, and which of a document's words claim something that does not."""

import ast
import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import httpx

from docs.documents import ROOT, Document
from docs.settings_reference import reference
from fakes.api_app import make_app
from gpudeck.cli import gpudeck
from gpudeck.fleet.hub import Hub
from gpudeck.settings import Settings

SOURCE = ROOT / "src" / "gpudeck"
PAGE = ROOT / "web" / "src"

_PATH = re.compile(
    r"(?:src|tests|docs|web|bench|deploy|requirements|\.ci)/[\w./-]*|[\w./-]+\.(?:py|ts|svelte|md|toml|sh)"
)
_CALL = re.compile(r"\w+\(\)")
_CLASS = re.compile(r"[A-Z][a-z]\w*(?:\.\w+)?")
_DOTTED = re.compile(r"[a-z]\w*(?:\.[a-z]\w*)+")
_WORD = re.compile(r"[A-Za-z]\w*_\w+")
_ROUTE = re.compile(
    r"(?:\b(GET|POST|HEAD|PUT|PATCH|DELETE) +)?[^\s`]*?"
    r"(/api/v\d[\w{}/-]*|/healthz\b|/readyz\b|/schema\b(?!\.py)[\w/.]*)"
)
_TYPESCRIPT_NAME = re.compile(
    r"^(?:export )?(?:async )?(?:class|function|const|let|interface|type) (\w+)", re.MULTILINE
)
_TYPESCRIPT_METHOD = re.compile(r"^  (?:private |readonly |static |async |get )*(\w+)\(", re.MULTILINE)

FOREIGN = {
    # Slurm's settings and columns, and the settings of deploy/slurm.
    *("NodeHostName", "NodeAddr", "AccountingStorageType", "PrivateData", "CoreCnt", "SlurmUser", "SlurmctldHost"),
    *("ConstrainCores", "ConstrainRAMSpace", "JobAcctGatherType", "ProctrackType", "slurmstepd.scope"),
    *("JobID", "AdminComment", "Start", "JobName", "gpudeck.env"),
    # Files that appear where gpudeck runs.
    *(
        "gpudeck.yaml",
        "gpudeck.db",
        "local.db",
        "tokens.json",
        "reservations.json",
        "maintenance.json",
        "history.db",
        "clock.json",
        "hosts.yaml",
        "hub.lock",
        "hub-real.lock",
        "manifest.json",
        "agent.token",
        "admin.token",
        "viewer.token",
        "report.json",
        "privkey.pem",
        "fullchain.pem",
        "inventory.ini",
    ),
    # Names of browsers, of the operating system and of other programs.
    *("CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE", "Origin"),
    # Of the monitors that came before.
    *("config.yml", "config.ini", "hosts.txt", "comments.json", "load_data.csv", "index.php", "index.html"),
    *("gpu_stats()", "Zombie", "hosts.json", "data/hosts.json", "CONSUL_SERVICE_URI"),
    *("CAP_SYS_PTRACE", "CAP_SYSLOG", "CAP_NET_BIND_SERVICE", "CAP_DAC_READ_SEARCH"),
}


def missing_paths(document: Document) -> list[str]:
    """Paths that are not there. A test's name stands behind its file: `tests/fleet/test_fleet.py::test_…`."""
    spans = [span.partition("::")[0] for span in document.spans]
    return [span for span in spans if _PATH.fullmatch(span) and not (ROOT / span).exists()]


def missing_names(document: Document) -> list[str]:
    """Functions (`judge()`), classes (`Fleet`, `Fleet.apply`), modules, settings, tests and other names of the code."""
    return [span for span in document.spans if span not in FOREIGN and not _is_known_or_no_name(span)]


def _is_known_or_no_name(span: str) -> bool:
    if _PATH.fullmatch(span.partition("::")[0]):
        file, _, test = span.partition("::")
        return not test or test in names_in(ROOT / file)
    if _CALL.fullmatch(span):
        return span.removesuffix("()") in all_names()
    if _CLASS.fullmatch(span):
        return span in all_names()
    if _DOTTED.fullmatch(span):
        return _is_setting(span) or span in all_names() or _is_module(span) or (ROOT / span).is_file()
    return not _WORD.fullmatch(span) or span in all_words()


def broken_links(document: Document) -> list[str]:
    return [target for target in document.links if not _leads_somewhere(document, target)]


def _leads_somewhere(document: Document, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = document.path.parent / name
    if not path.exists():
        return False
    return not anchor or anchor in (Document.read(path) if name else document).anchors


def wrong_make_targets(document: Document) -> list[str]:
    calls = [re.sub(r'\w+=(?:"[^"]*"|\S+)', "", command).split() for command in document.commands]
    targets = {target for words in calls for target in words[1:] if words[0] == "make"}
    return sorted(targets - make_targets())


def wrong_commands(document: Document) -> list[str]:
    """Commands of gpudeck that it does not have, and options that the command does not take."""
    lines = [line.split() for line in document.commands]
    calls = [words[1:] for words in lines if words[0].rpartition("/")[2] == "gpudeck" and len(words) > 1]
    loose = [span for span in document.spans if re.fullmatch(r"--[a-z][a-z-]*", span)]
    strange = [option for option in loose if not any(option in options for options in command_options().values())]
    return [mistake for words in calls for mistake in _mistakes_in_call(words)] + strange


def _mistakes_in_call(words: list[str]) -> Iterator[str]:
    command, rest = _split_call(words)
    known = command_options().get(command)
    if known is None:
        yield f"gpudeck {command}"
        return
    options = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(rest))
    yield from (f"gpudeck {command} {option}" for option in options if option not in known)


def _split_call(words: list[str]) -> tuple[str, list[str]]:
    """The command, with the one below it where it has some (`hosts add`), and what follows."""
    if words[0].startswith("-"):
        return "", words
    if words[0] in _groups() and len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]):
        return f"{words[0]} {words[1]}", words[2:]
    return words[0], words[1:]


_OF_STORES = {"/api/v1/write", "/api/v1/push", "/api/v1/query_range"}
"""Routes of Prometheus-compatible stores, which the hub asks."""


def wrong_routes(document: Document) -> list[str]:
    """Routes, also inside URLs and in any block, that the OpenAPI document does not have with that method."""
    found = {(method, route.rstrip("/.")) for method, route in _ROUTE.findall(document.text)}
    return sorted(f"{method} {route}".strip() for method, route in found if not _is_route(method, route))


def _is_route(method: str, route: str) -> bool:
    if route in _OF_STORES:
        return True
    for template, methods in routes().items():
        pattern = re.sub(r"\\{\w+\\}", r"[^/]+", re.escape(template))
        if re.fullmatch(pattern, route):
            return not method or method in methods
    return False


def wrong_defaults(document: Document) -> list[str]:
    """Settings that stand first in the row of a table in which no other cell is their default; its title aside."""
    below = [*document.rows[1:], [""]]
    titles = [cells for cells, line in zip(document.rows, below, strict=False) if set(line[0]) <= set("-|") and line[0]]
    rows = [(cells[0].strip("`"), cells[1:]) for cells in document.rows if cells not in titles]
    defaults = settings_defaults()
    return [name for name, cells in rows if name in defaults and defaults[name] not in cells]


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def command_options() -> dict[str, set[str]]:
    """The options of each command that people are meant to know; "" is gpudeck itself."""
    context = click.Context(gpudeck)
    commands: dict[str, click.Command] = {"": gpudeck}
    commands |= {name: gpudeck.get_command(context, name) for name in gpudeck.list_commands(context)}
    groups = {name: command for name, command in commands.items() if name and isinstance(command, click.Group)}
    commands |= {
        f"{name} {part}": command for name, group in groups.items() for part, command in group.commands.items()
    }
    return {name: _options_of(command) for name, command in commands.items()}


@cache
def _groups() -> set[str]:
    """The commands that have commands of their own, such as `hosts`."""
    return {name.split()[0] for name in command_options() if " " in name}


def _options_of(command: click.Command) -> set[str]:
    shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    return {"--help", "-h"}.union(*(option.opts for option in shown))


@cache
def routes() -> dict[str, set[str]]:
    """The paths of the OpenAPI document with their methods, and where the document itself is."""
    address = "/schema/openapi.json"

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Hub()))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            return await client.get(address)

    # An agent that listens answers too; no document describes it.
    others = {address: {"GET"}, "/api/v1/report": {"GET"}}
    paths: dict[str, dict[str, Any]] = asyncio.run(ask()).json()["paths"]
    return {path: {method.upper() for method in methods} for path, methods in paths.items()} | others


@cache
def settings_defaults() -> dict[str, str]:
    """Every setting with its default, as the reference page writes it."""
    page = Document(ROOT / "docs" / "configuration.md", reference(Settings))
    return {cells[0].strip("`"): cells[2] for cells in page.rows if cells[0].startswith("`")}


@cache
def all_names() -> set[str]:
    """Functions, classes, constants, and members as `Class.member` and `module.name`, in Python and in the page."""
    folders = (SOURCE, ROOT / "tests", ROOT / "bench")
    python = {name for folder in folders for path in folder.rglob("*.py") for name in names_in(path)}
    page = {name for path in PAGE.rglob("*.ts") for name in _typescript_names(path)}
    components = {path.stem for path in PAGE.rglob("*.svelte")}
    return python | page | components


@cache
def names_in(path: Path) -> set[str]:
    """The names that a Python file defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        for name in _names_of(node):
            found |= {name, f"{path.stem}.{name}"}
        if isinstance(node, ast.ClassDef):
            members = {name for inner in ast.walk(node) for name in _names_of(inner) if inner is not node}
            found |= {f"{node.name}.{member}" for member in members}
    return found


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    attributes = [target.attr for target in targets if isinstance(target, ast.Attribute)]
    return attributes + [target.id for target in targets if isinstance(target, ast.Name)]


def _typescript_names(path: Path) -> set[str]:
    """The names that a file of the page defines; every method counts for every class of its file."""
    text = path.read_text()
    names = set(_TYPESCRIPT_NAME.findall(text))
    return names | {f"{name}.{method}" for name in names for method in _TYPESCRIPT_METHOD.findall(text)}


def _is_setting(dotted: str) -> bool:
    """Whether it is a setting or a section of them."""
    return any(f"{name}.".startswith(f"{dotted}.") for name in settings_defaults())


def _is_module(dotted: str) -> bool:
    """Whether it is a module of the package, written in full or from its room on."""
    paths = [folder / dotted.replace(".", "/") for folder in (ROOT / "src", SOURCE)]
    return any(path.with_suffix(".py").exists() or (path / "__init__.py").exists() for path in paths)


@cache
def all_words() -> set[str]:
    """Every word with an underscore anywhere in the code: fields, metrics, error codes, variables, tests."""
    files = [path for folder in (SOURCE, PAGE, ROOT / "tests", ROOT / "bench") for path in folder.rglob("*")]
    code = [
        path
        for path in files
        if path.suffix in {".py", ".ts", ".svelte", ".c"} and path.parent != Path(__file__).parent
    ]
    variables = (ROOT / "deploy" / "ansible").rglob("defaults/*.yml")
    return {word for path in (*code, *variables) for word in _WORD.findall(path.read_text())}
