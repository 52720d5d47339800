"""GET /schema/openapi.json: made from the types. The two raw routes, reports and the stream, are described by hand: the
framework never sees them.

The messages of the stream (docs/api.md, *The stream*) are types for this document and the page alone: the hub joins
them from parts that are encoded once (fleet.stream). A field that may be left out is UNSET. Changes and columns take
their fields from `Gpu`, `Host` and the catalog: a new one needs no line here.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, get_args, get_type_hints

import msgspec
from litestar import Litestar
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute
from litestar.types.internal_types import PathParameterDefinition
from msgspec import UNSET, Struct, UnsetType, defstruct

from gpudeck.api.access import COOKIE
from gpudeck.api.descriptions import DESCRIPTIONS, EXAMPLES, PARAMETERS, TAGS
from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.allocation import Allocation
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Value
from gpudeck.model.event import Event
from gpudeck.model.gpu_state import Availability, HealthLevel
from gpudeck.model.reservation import GpuReservation, Maintenance
from gpudeck.model.view import Fleet, Gpu, Host, HostNote, HostStatus, Totals
from gpudeck.server.asgi import ErrorBody
from gpudeck.wire import CONTENT_TYPES, Envelope, ShortReport

HostRows = tuple[str, int, int]
"""A host's id, its row among hosts, and the row of its first GPU among GPUs."""


class ChangedValues(Struct):
    """Values at some positions `at` among the rows."""

    at: list[int]
    to: list[Value]


Structs = Collection[type[Struct]]
Values = list[Value] | ChangedValues
"""One value for each row, or only those that changed."""


def _optional(name: str, text: str, required: dict[str, Any], fields: dict[str, Any]) -> Any:
    """A struct in which `fields` may be left out."""
    told: list[Any] = [*required.items(), *((field, kind | UnsetType, UNSET) for field, kind in fields.items())]
    module = {"__doc__": text, "__module__": __name__}
    return defstruct(name, told, namespace=module, kw_only=True)


def _list_of(kind: Any) -> Any:
    return list[kind]


def _words(view: type[Struct], key: str, metrics: dict[str, Metric], *others: str) -> dict[str, Any]:
    """The fields of a view that are no metrics."""
    left_out = {key, *metrics, *others}
    return {name: kind for name, kind in get_type_hints(view).items() if name not in left_out}


def _live(metrics: dict[str, Metric]) -> dict[str, Any]:
    return {name: Values for name, metric in metrics.items() if metric.live}


GpuChange = _optional(
    "GpuChange",
    "The changed fields of a GPU except its metrics. Lists and `reasons` come whole.",
    {"uuid": str},
    _words(Gpu, "uuid", GPU_METRICS),
)
HostChange = _optional(
    "HostChange",
    "The changed fields, except metrics, of a host whose set of GPUs stayed the same.",
    {"id": str},
    _words(Host, "id", HOST_METRICS, "gpus") | {"gpus": _list_of(GpuChange)},
)
_ROWS = {"rows": list[int]}
GpuValues = _optional("GpuValues", "Metrics of the GPUs in `rows`.", _ROWS, _live(GPU_METRICS))
HostValues = _optional(
    "HostValues",
    "Metrics of the hosts in `rows`, which have reported, and when that was.",
    _ROWS,
    _live(HOST_METRICS) | {"last_report_at": Values},
)


class ProcessValues(Struct):
    """The numbers of all processes of each GPU in `rows`, in the order of its `processes`."""

    rows: list[int]
    memory_used_bytes: list[list[Value]]
    utilization_percent: list[list[Value]]


class SummaryValues(Struct):
    """The mean utilization and the highest temperature of the GPUs of each host in `rows`."""

    rows: list[int]
    utilization_percent: list[Value]
    temperature_celsius: list[Value]


class GpuModel(Struct):
    """Values of the first GPU of a host, which apply to each GPU without its own."""

    name: str
    display_name: str
    vendor: str
    memory_total_bytes: Value


class ShortGpu(Struct, kw_only=True):
    """A GPU of the overview. What is left out is the model's, empty, null or, for `health`, ok."""

    uuid: str
    index: int
    label: str
    availability: Availability
    since: float | None
    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    vendor: str | UnsetType = UNSET
    memory_total_bytes: Value | UnsetType = UNSET
    last_seen: Availability | UnsetType = UNSET
    users: list[str] | UnsetType = UNSET
    health: HealthLevel | UnsetType = UNSET
    health_reason: str | UnsetType = UNSET
    health_action: str | UnsetType = UNSET
    reservation: GpuReservation | UnsetType = UNSET
    reservation_conflict: str | UnsetType = UNSET
    maintenance: Maintenance | UnsetType = UNSET
    allocation: Allocation | UnsetType = UNSET


class ShortHost(Struct, kw_only=True):
    """A host of the overview. One without GPUs has no `model`."""

    id: str
    name: str
    display_name: str
    status: HostStatus
    via: str
    labels: dict[str, str]
    problems: list[str]
    last_report_at: float | None
    maintenance: Maintenance | None
    note: HostNote | None
    model: GpuModel | UnsetType = UNSET
    gpus: list[ShortGpu]


class StreamSnapshot(Fleet, kw_only=True):
    """The first event: the fleet with the rows of its hosts."""

    rows: list[HostRows]


class OverviewSnapshot(StreamSnapshot, kw_only=True):
    """The first event with `shape=overview`."""

    hosts: list[ShortHost]  # type: ignore[assignment]


_FACTS: dict[str, Any] = {
    "problems": list[str],
    "alerts": list[Alert],
    "alert_counts": AlertCounts,
    "reservations": int,
    "events": list[Event],
    "removed": list[str],
    "rows": list[HostRows],
    "changes": _list_of(HostChange),
    "gpus": GpuValues,
}
_TICK_FIELDS: dict[str, Any] = {"time": float, "totals": Totals}
StreamDelta = _optional(
    "StreamDelta",
    "What changed since the event before, to be applied in the order of docs/api.md. `hosts` are whole: new ones, and "
    "those whose set of GPUs changed; `rows` are theirs. `problems`, `alerts` and `alert_counts` are whole. "
    "`reservations` is another number whenever a reservation was created, changed or released.",
    _TICK_FIELDS,
    _FACTS | {"hosts": list[Host], "reports": HostValues, "processes": ProcessValues},
)
OverviewDelta = _optional(
    "OverviewDelta",
    "The same with `shape=overview`. `changes` has the fields of the overview alone, `gpus` only `memory_total_bytes`.",
    _TICK_FIELDS | {"summaries": SummaryValues},
    _FACTS | {"hosts": list[ShortHost]},
)
SNAPSHOTS = (StreamSnapshot, OverviewSnapshot)
DELTAS = (StreamDelta, OverviewDelta)


_EVERYWHERE = {
    "400": "The request is invalid",
    "401": "Not authenticated: log in, or send a token",
    "403": "Not allowed for this role",
    "404": "Not found",
    "429": "Too many requests: see Retry-After",
    "500": "Internal error: see the hub's log",
    "503": "Temporarily unavailable: see Retry-After",
}
_CONFLICT = {"409": "Not possible in the present state: the error's `code` says why"}
_SHEET = {"text/csv": {"schema": {"type": "string"}}}
_PARQUET = {"application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}}}
"""What routes with a parameter `format` answer too."""
_REF = "#/components/schemas/{name}"


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REF.format(name="ErrorBody")}}},
    }


_REPORTS = {"anyOf": [{"$ref": _REF.format(name=kind.__name__)} for kind in (Envelope, ShortReport)]}
_MESSAGES = {"anyOf": [{"$ref": _REF.format(name=kind.__name__)} for kind in (*SNAPSHOTS, *DELTAS)]}
_STATUS = {"type": "object", "properties": {"status": {"enum": ["taken", "repeated"]}}, "required": ["status"]}
_ANYBODY: list[dict[str, list[str]]] = [{}]
_KNOWN: list[dict[str, list[str]]] = [{"bearer": []}, {"session": []}]
READERS = _KNOWN + _ANYBODY
"""Callers with a token or a session, and everyone if the setting `read` is `open`."""
_SECURITY = {"open": READERS, "read": READERS, "reserve": READERS, "self": _KNOWN, "user": _KNOWN, "admin": _KNOWN}
_RAW_PATHS: dict[str, Any] = {
    "/api/v1/reports": {
        "post": {
            "operationId": "sendReport",
            "summary": "Take a report from an agent",
            "description": "msgpack or JSON; plain, zstd or gzip (Content-Encoding). `Gpudeck-Sent-At` is the sender's "
            "clock in Unix seconds. A report seen before is answered 200 and changes nothing.",
            "security": [{"bearer": []}],
            "requestBody": {"required": True, "content": {kind: {"schema": _REPORTS} for kind in CONTENT_TYPES}},
            "responses": {
                "202": {"description": "Taken", "content": {"application/json": {"schema": _STATUS}}},
                "200": {"description": "Seen before", "content": {"application/json": {"schema": _STATUS}}},
                "400": _error("The body is no report, or of a newer version"),
                "401": _error("No token, or one this hub does not know"),
                "409": _error("A simulated report to a real hub, or a real one to a demo"),
                "413": _error("Too large, packed or unpacked"),
                "415": _error("A content type or encoding that is not taken"),
                "422": _error("A report whose fields are not as described"),
                "428": _error("A short report whose description is not known: send the whole one"),
                "500": _error("Internal error: see the hub's log"),
                "503": _error("The fleet is full"),
            },
        }
    },
    "/api/v1/stream": {
        "get": {
            "operationId": "readStream",
            "security": READERS,
            "summary": "The live fleet as server-sent events",
            "description": "One `snapshot`, then a `delta` a second with what changed; resumable by Last-Event-ID. The "
            "schema is that of the JSON in the `data` of an event.",
            "parameters": [
                {
                    "name": "hosts",
                    "in": "query",
                    "description": "Only the hosts with these ids, 200 at most, commas between them, also those that "
                    "come later; empty: totals, problems, alerts and events alone",
                    "style": "form",
                    "explode": False,
                    "allowEmptyValue": True,
                    "schema": {"type": "array", "maxItems": 200, "items": {"type": "string"}},
                },
                {
                    "name": "shape",
                    "in": "query",
                    "description": "overview: all hosts in short, without metrics and processes; not with `hosts`",
                    "schema": {"type": "string", "enum": ["overview"]},
                },
            ],
            "responses": {
                "200": {"description": "Events", "content": {"text/event-stream": {"schema": _MESSAGES}}},
                "400": _error("Ids that are too many or too long, or another parameter"),
                "503": _error("Too many streams are open"),
            },
        }
    },
}


_COOKIE_NAMES = f"Over TLS it is called __Host-{COOKIE}, or __Secure-{COOKIE} where the hub is served below a path."


def complete_schema(app: Litestar) -> dict[str, Any]:
    """The framework's OpenAPI document with the raw routes added, what every route may answer, who may call it, and
    what everything means: the whole hub."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    levels = _find_levels(app)
    own = [Envelope, ShortReport, ErrorBody, *SNAPSHOTS, *DELTAS]
    structs = _find_structs(app, own)
    _, schemas = msgspec.json.schema_components(own, ref_template=_REF)
    told = document.get("components", {}).get("schemas", {})
    # The framework's document does not say that unknown fields are refused.
    strict = {name: told[name] | {"additionalProperties": False} for name in _strict_names(structs) & told.keys()}
    paths = {
        path: {method: _describe(path, method, one, levels) for method, one in operations.items()}
        for path, operations in (document["paths"] | _RAW_PATHS).items()
    }
    components = {
        "schemas": _describe_shapes(_require_answered(schemas | told | strict, paths, structs), paths, structs),
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": _COOKIE_NAMES},
        },
    }
    # Tuples have no further items: `prefixItems` and `maxItems` say that, too, in a way that all generators understand.
    paths, components = _without_items(paths), _without_items(components)
    tags = [{"name": name, "description": about} for name, (about, _) in TAGS.items()]
    return document | {"components": components, "paths": paths, "tags": tags}


def _without_items(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_items(one) for one in part]
    if isinstance(part, dict):
        return {name: _without_items(one) for name, one in part.items() if not (name == "items" and one is False)}
    return part


def name_operation(handler: HTTPRouteHandler, _: object, path: Sequence[str | PathParameterDefinition]) -> str:
    """`listHosts`, of `list_hosts`: the id of its operation; of a handler with several paths also their parameters."""
    first, *others = handler.handler_name.split("_")
    given = [one.name for one in path if not isinstance(one, str)] if len(handler.paths) > 1 else []
    return first + "".join(word.capitalize() for word in [*others, *(["by"] if given else []), *given])


def _find_levels(app: Litestar) -> dict[tuple[str, str], str]:
    """The access level of each route, by path and method."""
    return {
        (route.path_format, method.lower()): handler.opt["access"]
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if "access" in handler.opt
        for method in handler.http_methods
    }


def _describe(path: str, method: str, operation: dict[str, Any], levels: dict[tuple[str, str], str]) -> dict[str, Any]:
    """An operation with its tags and the descriptions of its parameters; one of the framework also with all its answers
    and with who may call it."""
    word = path.removeprefix("/api/v1").split("/")[1]
    described = operation | {
        "tags": [name for name, (_, words) in TAGS.items() if word in words.split()],
        "parameters": [_describe_parameter(one) for one in operation.get("parameters", ())],
    }
    if path in _RAW_PATHS:
        return described
    summary, security = _first_sentence(operation), _SECURITY[levels[path, method]]
    return described | {"summary": summary, "responses": _answers(method, operation), "security": security}


def _first_sentence(operation: dict[str, Any]) -> str:
    text = " ".join(str(operation.get("description") or operation["summary"]).split())
    return text.partition(". ")[0].partition(": ")[0].rstrip(".")


def _describe_parameter(parameter: dict[str, Any]) -> dict[str, Any]:
    schema = {name: value for name, value in parameter["schema"].items() if name != "description"}
    about = parameter.get("description") or PARAMETERS.get(parameter["name"])
    if parameter["in"] == "path":
        # Of a handler with several paths, some have no such parameter.
        schema = next((one for one in schema.get("oneOf", ()) if one.get("type") != "null"), schema)
    # The framework writes the values, too, that the standard assumes.
    kept = {name: value for name, value in parameter.items() if value is not False}
    return kept | {"schema": _with_example(parameter["name"], schema)} | ({"description": about} if about else {})


def _describe_shapes(schemas: dict[str, Any], paths: dict[str, Any], structs: Structs) -> dict[str, Any]:
    operations = [operation for one in paths.values() for operation in one.values()]
    asked = _find_used(schemas, [operation.get("requestBody") for operation in operations])
    texts = {one.__name__: cleandoc(one.__doc__) for one in structs if one.__doc__}
    return {
        name: ({"description": texts[name]} if name in texts else {})
        | schema
        | (
            {"properties": _describe_properties(name, schema, schemas.keys(), is_asked=name in asked)}
            if "properties" in schema
            else {}
        )
        for name, schema in schemas.items()
    }


def _describe_properties(
    shape: str, schema: dict[str, Any], shapes: Collection[str], *, is_asked: bool
) -> dict[str, Any]:
    properties = schema["properties"]
    null = "not given" if is_asked else "unknown, see `reasons`" if "reasons" in properties else "unknown"
    described = dict[str, Any]()
    for name, one in properties.items():
        described[name] = _with_example(name, one)
        if (about := _about(shape, name, one, null)) is not None:
            described[name] |= {"description": about}
        if f"{shape}{name.capitalize()}" in shapes and "enum" in one:
            # Generators name an enumeration by its shape and property, which is the name of another shape.
            described[name] |= {"title": f"{name}_state"}
    return described


def _about(shape: str, name: str, schema: dict[str, Any], null: str) -> str | None:
    """The description of a property, with its unit and with the meaning of null if it may be null."""
    metrics = HOST_METRICS if shape.startswith("Host") else GPU_METRICS
    text = DESCRIPTIONS.get(f"{shape}.{name}")
    if text is None and (metric := metrics.get(name)) is not None:
        text = f"{metric.label}{_UNITS.get(metric.unit, f', in {metric.unit}')}"
    text = text or DESCRIPTIONS.get(name)
    if text is None:
        return None
    if not _may_be_null(schema):
        return text.partition("; null:")[0]
    return text if "; null:" in text else f"{text}; null: {null}"


_UNITS = {
    "bytes": ", in bytes",
    "bytes_per_second": ", in bytes per second",
    "celsius": ", in °C",
    "count": "",
    "flag": ": 1 yes, 0 no",
    "joules": ", in joules",
    "load": "",
    "megahertz": ", in MHz",
    "percent": ", 0 to 100",
    "seconds": ", in seconds",
    "state": "",
    "watts": ", in watts",
}


def _may_be_null(schema: dict[str, Any]) -> bool:
    """Whether the property, or a value in it, may be null."""
    return str({"type": "null"}) in str(schema) or None in schema.get("enum", ())


def _with_example(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Adds an example if the type allows it."""
    example = EXAMPLES.get(name)
    kinds = [kind.get("type") for kind in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), schema)]
    wanted = ("string",) if isinstance(example, str) else ("integer", "number")
    allowed = next((kind["enum"] for kind in (schema, *schema.get("oneOf", ())) if "enum" in kind), [example])
    fits = example is not None and any(kind in wanted for kind in kinds) and example in allowed
    return schema | {"examples": [example]} if fits else schema


def _find_structs(app: Litestar, own: Iterable[Any]) -> Structs:
    """All structs of the document. Others in the process, such as a plugin's, may have the same names."""
    found = set[type[Struct]]()
    left = [*own, *(kind for route in app.routes if isinstance(route, HTTPRoute) for kind in _kinds_of(route))]
    while left:
        kind = left.pop()
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            left += get_args(kind)
        elif kind not in found:
            found.add(kind)
            left += get_type_hints(kind).values()
    return found


def _kinds_of(route: HTTPRoute) -> Iterator[Any]:
    """The types that its handlers take and return."""
    for handler in route.route_handlers:
        signature = handler.parsed_fn_signature
        yield from (field.annotation for field in (signature.return_type, *signature.parameters.values()))
        yield from (told.data_container for told in (handler.responses or {}).values())


def _strict_names(structs: Structs) -> set[str]:
    """Of those structs that refuse fields they do not have."""
    return {one.__name__ for one in structs if one.__struct_config__.forbid_unknown_fields}


def _require_answered(schemas: dict[str, Any], paths: dict[str, Any], structs: Structs) -> dict[str, Any]:
    """A default is for who writes a request. An answer has every field, except those that are left out where they are
    unset, or where they have their default."""
    operations = [operation for one in paths.values() for operation in one.values()]
    asked = _find_used(schemas, [operation.get("requestBody") for operation in operations])
    answered = _find_used(schemas, [operation["responses"] for operation in operations]) - asked
    may_lack = {one.__name__: _omitted(one) for one in structs}
    required = {
        name: schemas[name] | {"required": [field for field in fields if field not in may_lack.get(name, ())]}
        for name in answered
        if (fields := schemas[name].get("properties"))
    }
    return schemas | required


def _find_used(schemas: dict[str, Any], parts: Iterable[Any]) -> set[str]:
    """The names of the schemas that these refer to, and that those do."""
    used, found = set[str](), _refs(parts)
    while found:
        used |= found
        found = _refs([schemas[name] for name in found]) - used
    return used


def _refs(parts: Iterable[Any]) -> set[str]:
    return set(re.findall(r"#/components/schemas/(\w+)", str(parts)))


def _omitted(struct: type[Struct]) -> set[str]:
    """The fields that the encoder may leave out."""
    fields = msgspec.structs.fields(struct)
    if struct.__struct_config__.omit_defaults:
        return {field.encode_name for field in fields if not field.required}
    return {field.encode_name for field in fields if field.default is UNSET}


def _answers(method: str, operation: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = dict(operation["responses"])
    if "ErrorBody" not in str(told.get("400")):
        told.pop("400", None)
    if form := next((one["schema"] for one in operation.get("parameters", ()) if one["name"] == "format"), None):
        others = _SHEET | (_PARQUET if "parquet" in str(form) else {})
        told["200"] = told["200"] | {"content": told["200"]["content"] | others}
    for status, phrase in (("200", "OK"), ("201", "Created")):
        if status in told and told[status]["description"] == HTTPStatus(int(status)).description:
            told[status] |= {"description": phrase}
    general = _EVERYWHERE if method == "get" else _EVERYWHERE | _CONFLICT
    return {status: _error(why) for status, why in general.items()} | told


class CompleteSchema(JsonRenderPlugin):
    """Serves the complete document where the framework would serve its own. It is made once: anonymous
    clients may ask for it, and making it takes ten times as long as most answers."""

    _made = b""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        self._made = self._made or super().render(request, complete_schema(request.app))
        return self._made
