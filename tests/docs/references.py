"""The reference pages of the site that are made from the code: commands, metrics, routes."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click

from gpudeck.cli import gpudeck
from gpudeck.model.catalog import CATALOG, Metric, Scope
from gpudeck.model.exposition import expose

_COMMANDS = """\
# Commands

Generated from the code; `gpudeck COMMAND --help` prints the same. [The fleet in a terminal](terminal.md) explains how
to use the commands, [Install](install.md) how to run hub and agents.

Exit codes of all commands: 0 success, 1 the answer is no, 2 wrong usage, 3 the hub cannot be reached.
"""
_METRICS = """\
# Metrics

Generated from the catalog, `src/gpudeck/model/catalog.py`. [What is read on a machine](machines.md) lists which metrics
a machine reports; [Prometheus](prometheus.md) describes how to scrape them.

A value outside the range is rejected and becomes unknown, with that reason. *Of many* is how values of several
devices or times are combined. *In the stream*: either each change is sent to viewers, or the value is only part of
the whole host (`/api/v1/hosts/{host}`).
"""
_ROUTES = """\
# Routes

Generated from the OpenAPI document, which a hub serves at `/schema/openapi.json`. [The API](api.md) has examples, the
format of errors, the live stream, and access rights.

Every route can also return these, with an [ErrorBody](#errorbody); 409 only if it changes something:

| answer | what |
|---|---|
"""
_OF_ALL = ("400", "401", "403", "404", "409", "429", "500", "503")
_METHODS = ("get", "post", "put", "patch", "delete")


def commands_page() -> str:
    context = click.Context(gpudeck, info_name="gpudeck")
    parts = [_COMMANDS]
    for name in gpudeck.list_commands(context):
        command = gpudeck.get_command(context, name)
        assert command is not None
        parts += _write_command(click.Context(command, info_name=name, parent=context), "##")
    return "\n".join(parts)


def _write_command(context: click.Context, level: str) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"{level} {context.command_path}\n"
    yield f"```text\n{context.command_path} {usage}\n```\n"
    yield f"{_write_help(command)}\n"
    rows = [
        _write_option(option) for option in command.params if isinstance(option, click.Option) and not option.hidden
    ]
    if rows:
        yield "| option | what |\n|---|---|"
        yield "\n".join(rows) + "\n"
    if command.epilog:
        yield f"```text\n{inspect.cleandoc(command.epilog.replace(chr(8), '')).strip()}\n```\n"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _write_command(click.Context(inner, info_name=name, parent=context), "###")


def _write_help(command: click.Command) -> str:
    """Paragraphs; one that begins with \\b is a table, and keeps its lines."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(
        f"```text\n{paragraph[1:].strip()}\n```" if paragraph.startswith("\b") else _escape(" ".join(paragraph.split()))
        for paragraph in paragraphs
    )


def _write_option(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(click.Context(gpudeck))}"
    shown = f"`{names}{value}`".replace("|", "\\|")
    default = f" Default: `{option.default}`." if option.show_default and option.default is not None else ""
    several = " May be given several times." if option.multiple and "several" not in (option.help or "") else ""
    return f"| {shown} | {_escape(option.help or '')}{several}{default} |"


def _escape(text: str) -> str:
    """As Markdown that shows these words; what stands in backticks is left as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*_<>\[\]|~])", r"\\\1", part) if not number % 2 else part for number, part in enumerate(parts)]
    return "".join(plain)


def metrics_page() -> str:
    parts = [_METRICS]
    for scope, title in ((Scope.GPU, "Of a GPU"), (Scope.HOST, "Of a host")):
        parts.append(f"## {title}\n")
        parts.append(
            "| metric | what | unit | range | kind | of many | in the stream | for Prometheus |\n"
            "|---|---|---|---|---|---|---|---|"
        )
        parts.append("\n".join(_write_metric(metric) for metric in CATALOG if metric.scope is scope) + "\n")
    return "\n".join(parts)


def _write_metric(metric: Metric) -> str:
    between = f"{metric.low:.0f} to {metric.high:.0f}"
    sent = "each change" if metric.live else "with the host"
    cells = (f"`{metric.name}`", metric.label, metric.unit, between, metric.kind.value, metric.rollup.value, sent)
    return f"| {' | '.join(cells)} | `{expose(metric).name}` |"


def routes_page(document: dict[str, Any]) -> str:
    responses = document["paths"]["/api/v1/mutes"]["post"]["responses"]
    of_all = {status: responses[status]["description"] for status in _OF_ALL}
    parts = [_ROUTES + "\n".join(f"| {status} | {told} |" for status, told in of_all.items()) + "\n"]
    for path, methods in document["paths"].items():
        for method in (method for method in _METHODS if method in methods):
            parts += _write_route(method, path, methods[method], of_all)
    parts.append("## Shapes\n")
    for name, schema in document["components"]["schemas"].items():
        parts += _write_shape(name, schema)
    return "\n".join(parts)


def _write_route(method: str, path: str, route: dict[str, Any], of_all: dict[str, str]) -> Iterator[str]:
    yield f"## {method.upper()} {path}\n"
    about = route.get("description") or _split_words(route.get("summary", ""))
    if about:
        yield f"{_escape(about)}\n"
    rows = [_write_parameter(found) for found in route.get("parameters", ()) if "name" in found]
    if rows:
        yield "| parameter | in | type | what |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    body = _content_of(route.get("requestBody", {}))
    if body:
        yield f"Takes {body}.\n"
    yield "| answer | what | shape |\n|---|---|---|"
    for status, answer in route["responses"].items():
        if answer.get("description") == of_all.get(status):
            continue
        told = _escape(" ".join(answer.get("description", "").split()))
        yield f"| {status} | {told} | {_content_of(answer)} |"
    yield ""


def _split_words(name: str) -> str:
    """`ReadAbout`, as the document names a route, in words."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return f"{words[:1]}{words[1:].lower()}." if words else ""


def _write_parameter(found: dict[str, Any]) -> str:
    told = _tell(found, is_required=bool(found.get("required")))
    return f"| `{found['name']}` | {found['in']} | {_type_of(found.get('schema', {}))} | {told} |"


def _tell(found: dict[str, Any], *, is_required: bool) -> str:
    about = _escape(" ".join(found.get("description", "").split()))
    return " ".join(filter(None, (about, "" if is_required else "(may be left out)")))


def _content_of(part: dict[str, Any]) -> str:
    shapes = [_type_of(content.get("schema", {})) for content in part.get("content", {}).values()]
    return " or ".join(dict.fromkeys(shapes))


def _write_shape(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield f"{_escape(' '.join(schema['description'].split()))}\n"
    fields = schema.get("properties")
    if not fields:
        yield f"{_type_of(schema)}\n"
        return
    required = set(schema.get("required", ()))
    yield "| field | type | what |\n|---|---|---|"
    for field, found in fields.items():
        yield f"| `{field}` | {_type_of(found)} | {_tell(found, is_required=field in required)} |"
    yield ""


def _type_of(schema: dict[str, Any]) -> str:
    """In words, with links to the shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type_of(one) for one in schema[key]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "prefixItems" in schema:
        return f"list of {', '.join(_type_of(one) for one in schema['prefixItems'])}"
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
