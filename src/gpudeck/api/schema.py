"""GET /schema/openapi.json: made from the types.

The two raw routes are described here by hand: the framework never sees them.
"""

from typing import Any

import msgspec
from litestar.connection import Request
from litestar.openapi.plugins import JsonRenderPlugin

from gpudeck.api.errors import ErrorBody
from gpudeck.api.host_book import NewHost
from gpudeck.wire import CONTENT_TYPES, Envelope

_STRICT = (NewHost.__name__,)
_REF = "#/components/schemas/{name}"


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": _REF.format(name="ErrorBody")}}},
    }


_STATUS = {"type": "object", "properties": {"status": {"enum": ["taken", "repeated"]}}, "required": ["status"]}
_RAW_PATHS: dict[str, Any] = {
    "/api/v1/reports": {
        "post": {
            "operationId": "PostReport",
            "summary": "Take a report from an agent",
            "description": "msgpack or JSON; plain, zstd or gzip (Content-Encoding). `Gpudeck-Sent-At` is the sender's "
            "clock in Unix seconds. A report seen before is answered 200 and changes nothing.",
            "security": [{"bearer": []}],
            "requestBody": {
                "required": True,
                "content": {kind: {"schema": {"$ref": _REF.format(name="Envelope")}} for kind in CONTENT_TYPES},
            },
            "responses": {
                "202": {"description": "Taken", "content": {"application/json": {"schema": _STATUS}}},
                "200": {"description": "Seen before", "content": {"application/json": {"schema": _STATUS}}},
                "400": _error("The body is no report, or of a newer version"),
                "401": _error("No token, or one this hub does not know"),
                "409": _error("A simulated report to a real hub, or a real one to a demo"),
                "413": _error("Too large, packed or unpacked"),
                "415": _error("A content type or encoding that is not taken"),
                "422": _error("A report whose fields are not as described"),
                "500": _error("A bug of the hub"),
                "503": _error("The fleet is full"),
            },
        }
    },
    "/api/v1/stream": {
        "get": {
            "operationId": "ReadStream",
            "summary": "The live fleet as server-sent events",
            "description": "One `snapshot`, then a `delta` a second with what changed; resumable by Last-Event-ID.",
            "responses": {
                "200": {"description": "Events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
                "503": _error("Too many streams are open"),
            },
        }
    },
}


def complete_schema(document: dict[str, Any]) -> dict[str, Any]:
    """The framework's OpenAPI document with the raw routes added: the whole hub."""
    _, schemas = msgspec.json.schema_components([Envelope, ErrorBody], ref_template=_REF)
    told = document.get("components", {}).get("schemas", {})
    # The framework does not tell that fields which nobody knows are refused.
    strict = {name: told[name] | {"additionalProperties": False} for name in _STRICT if name in told}
    components = {
        "schemas": schemas | told | strict,
        "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
    }
    return document | {"components": components, "paths": document["paths"] | _RAW_PATHS}


class CompleteSchema(JsonRenderPlugin):
    """Serves the complete document where the framework would serve its own."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return super().render(request, complete_schema(openapi_schema))
