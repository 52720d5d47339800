"""GET /api: the OpenAPI document as a page to read. One file without a script, which needs nothing from outside."""

import base64
import functools
import gzip
import hashlib
import re
from html import escape
from typing import Any, Final

from litestar import Litestar, MediaType, Response, get

from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, takes_gzip
from gpudeck.api.schema import complete_schema

_STYLE: Final = """\
:root{color-scheme:light dark;--ink:light-dark(#1c1d20,#e7e7e4);--soft:light-dark(#5a5e66,#9ea2aa);\
--rule:light-dark(#dedfdb,#303237);--paper:light-dark(#fafaf8,#121315);--link:light-dark(#2563c9,#6ea8ff)}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:16px;background:var(--paper);color:var(--ink);\
font:14px/1.5 system-ui,sans-serif}
h1{margin:0;font-size:20px}
h2{margin:28px 0 6px;font-size:16px}
h3{margin:12px 0 2px;font-size:13px}
p{margin:2px 0 8px}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
code{font:12.5px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
small,td:nth-child(2){color:var(--soft)}
nav{display:flex;flex-wrap:wrap;gap:0 14px}
details{border-top:1px solid var(--rule);padding:5px 0}details>p{scroll-margin-top:44px}
summary{display:flex;flex-wrap:wrap;gap:0 12px;cursor:pointer;overflow-wrap:anywhere}
summary>b{min-width:4.5em;font:600 12.5px/1.7 ui-monospace,monospace}
summary>span{color:var(--soft)}
details>:not(summary){margin-left:16px}
table{border-collapse:collapse;width:calc(100% - 16px)}
td{padding:2px 16px 2px 0;vertical-align:top;border-top:1px solid var(--rule)}
td:first-child{width:24%;overflow-wrap:anywhere}td:nth-child(2){width:22%}
@media(max-width:639px){td,td:first-child,td:nth-child(2){display:block;width:auto;padding:0;border:0}\
td:first-child{border-top:1px solid var(--rule);margin-top:4px}summary>code{flex:1}summary>span{flex-basis:100%}}
@media print{details{break-inside:avoid}}
"""
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REF: Final = "#/components/schemas/"
_CODE: Final = re.compile(r"`([^`]+)`")
_WHO: Final = {0: "every caller", 1: "callers with a token", 2: "callers with a token or a session"}


@get("/api", opt=access("open"), include_in_schema=False, sync_to_thread=True)
def read_reference(request: HubRequest) -> Response[bytes]:
    """All routes and shapes, for people."""
    page = _packed_page(request.app)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if takes_gzip(request):
        return Response(page, media_type=MediaType.HTML, headers=headers | {"Content-Encoding": "gzip"})
    return Response(gzip.decompress(page), media_type=MediaType.HTML, headers=headers)


@functools.lru_cache(maxsize=1)
def _packed_page(app: Litestar) -> bytes:
    return gzip.compress(render_reference(complete_schema(app)).encode(), 6)


def render_reference(document: dict[str, Any]) -> str:
    """The page. Every text of the document is escaped."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>gpudeck: the API</title><style>{_STYLE}</style>",
        f"<h1>The API of gpudeck {escape(document['info']['version'])}</h1>",
        '<p>Generated from <a href="schema/openapi.json">schema/openapi.json</a>, from which clients can be generated, '
        "too. For Python: <code>from gpudeck import Client</code>. Times are Unix seconds; null is never zero.",
        f"<nav>{''.join(_link_group(tag['name']) for tag in document['tags'])}<a href=#shapes>Shapes</a></nav>",
    ]
    for tag in document["tags"]:
        name = tag["name"]
        parts.append(f"<h2 id={_anchor(name)}>{escape(name)}</h2><p>{escape(tag['description'])}.")
        parts += [
            _show_operation(method, path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if name in operation["tags"]
        ]
    parts.append("<h2 id=shapes>Shapes</h2>")
    parts += [_show_shape(name, shape) for name, shape in sorted(document["components"]["schemas"].items())]
    return "\n".join(parts) + "\n"


def _link_group(name: str) -> str:
    return f"<a href=#{_anchor(name)}>{escape(name)}</a>"


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())


def _show_operation(method: str, path: str, operation: dict[str, Any]) -> str:
    security = operation["security"]
    who = ("everybody, where `read` is `open`; else " if {} in security else "") + _WHO[
        sum(1 for one in security if one)
    ]
    parts = [
        f"<details><summary><b>{method.upper()}</b><code>{escape(path)}</code>"
        f"<span>{_text(operation['summary'])}</span></summary>",
        f"<p id={escape(operation['operationId'])}>{_text(operation.get('description', ''))}",
        f"<p><small>Operation <code>{escape(operation['operationId'])}</code>, for {_text(who)}.</small>",
    ]
    if operation["parameters"]:
        rows = (
            _row(one["name"], one["schema"], one.get("description", "") + ("; required" if one.get("required") else ""))
            for one in operation["parameters"]
        )
        parts.append(f"<h3>Parameters</h3><table>{''.join(rows)}</table>")
    if body := operation.get("requestBody"):
        parts.append(f"<h3>Body</h3><p>{_kinds_of(body)}")
    answers = "".join(
        f"<tr><td>{escape(status)}<td>{_kinds_of(answer)}<td>{_text(answer['description'])}"
        for status, answer in sorted(operation["responses"].items())
    )
    return "".join([*parts, f"<h3>Answers</h3><table>{answers}</table></details>"])


def _show_shape(name: str, shape: dict[str, Any]) -> str:
    required = shape.get("required", ())
    rows = "".join(
        _row(field, schema, schema.get("description", ""), is_required=field in required)
        for field, schema in shape.get("properties", {}).items()
    )
    # A link opens it, as what it leads to is inside.
    head = f"<details><summary><code>{escape(name)}</code></summary>"
    return f"{head}<p id={escape(name)}>{_text(shape.get('description', ''))}<table>{rows}</table></details>"


def _row(name: str, schema: dict[str, Any], about: str, *, is_required: bool = True) -> str:
    told = [_text(about), *(f"Such as <code>{escape(str(one))}</code>" for one in schema.get("examples", ()))]
    if not is_required:
        told.append("May be left out")
    return f"<tr><td><code>{escape(name)}</code><td>{_kind(schema)}<td>{'. '.join(told)}."


def _kinds_of(content: dict[str, Any]) -> str:
    kinds = dict.fromkeys(f"{_kind(one.get('schema', {}))}" for one in content.get("content", {}).values())
    return " or ".join(kinds)


def _kind(schema: dict[str, Any]) -> str:
    """The type in words; shapes are links."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REF))
        return f"<a href=#{name}>{name}</a>"
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(one) for one in several))
    if "enum" in schema:
        return " ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"] if word is not None)
    return _plain_kind(schema)


def _plain_kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type", "")
    inner = schema.get("additionalProperties" if kind == "object" else "items")
    if "prefixItems" in schema:
        return f"[{', '.join(_kind(one) for one in schema['prefixItems'])}]"
    if kind in {"array", "object"}:
        return f"{'list' if kind == 'array' else kind} of {_kind(inner)}" if isinstance(inner, dict) and inner else kind
    return escape(" or ".join(kind) if isinstance(kind, list) else str(kind))


def _text(text: str) -> str:
    """Escaped; words in backticks are code."""
    return _CODE.sub(r"<code>\1</code>", escape(" ".join(text.split())))
