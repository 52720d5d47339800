"""schemathesis against the real app: what the document allows is answered as the document says, never by a bug.

schemathesis itself would think up the calls of all routes while pytest collects: half a minute, in each process and
also where only another file is run. Here each route's calls are thought up when its test begins.

`make test` tries a few calls that the document allows and as many that it does not; `make slow` tries many.
"""

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, BaseSchema, GenerationMode

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.fleet.hub import Hub


@schemathesis.serializer("application/msgpack")
def to_msgpack(_: object, value: object) -> bytes:
    # Lone surrogates and integers beyond 64 bits cannot be written as msgpack: such a body cannot be sent at all.
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError):
        return b""


_hub = Hub(now=FakeClock())
for _name in ("gpu01", "gpu02"):
    _hub.fleet.apply(make_envelope(_name, gpus=[make_gpu(0), make_busy_gpu(1)]), via="push", now=_hub.started_at)
_hub.stream.tick()
# The stream has no end, so it is left to tests of its own.
schema = schemathesis.openapi.from_asgi("/schema/openapi.json", make_app(_hub)).exclude(path="/api/v1/stream")
_folder = Path(tempfile.mkdtemp(prefix="gpudeck-schema-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
_admins_schema = (
    schemathesis.openapi.from_asgi("/schema/openapi.json", make_app(_hub, folder=_folder))
    .exclude(path="/api/v1/stream")
    .exclude(path="/api/v1/reports")
)


ALSO_REFUSED = ("/badge/free.svg", "/embed/fleet", "/api/v1/device", "/api/v1/device/token")
"""With 400 for what the document allows: words of the search that mean nothing, names that are blank, and what RFC 8628
answers so."""


def each_route(schema: BaseSchema) -> pytest.MarkDecorator:
    # In the same order in each worker: that of the document may differ.
    routes = sorted((result.ok() for result in schema.get_all_operations()), key=lambda route: route.label)
    return pytest.mark.parametrize("route", routes, ids=[route.label for route in routes])


some_or_all = pytest.mark.parametrize(
    "is_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"]
)


def call(route: APIOperation, check: Callable[[schemathesis.Case], None], max_examples: int) -> None:
    """So many calls that the document allows, and so many that it does not where a call has anything to be wrong."""

    def try_calls(mode: GenerationMode) -> None:
        patient = settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))

        @patient
        @given(route.as_strategy(mode))
        def try_call(case: schemathesis.Case) -> None:
            check(case)

        try_call()

    try_calls(GenerationMode.POSITIVE)
    if route.body or any(True for _ in route.iter_parameters()):
        # Any text is a name in a path.
        with contextlib.suppress(Unsatisfiable):
            try_calls(GenerationMode.NEGATIVE)


@some_or_all
@each_route(schema)
def test_anonymous_calls_are_answered_as_described(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        answer = case.call()
        if answer.status_code != 400 or route.path not in ALSO_REFUSED:
            case.validate_response(answer)

    call(route, check, 100 if is_all else 2)


@some_or_all
@each_route(schema.include(path="/api/v1/reports"))
def test_reports_of_an_agent_are_answered_as_described(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        answer = case.call(headers={"Authorization": "Bearer agent-token"})
        assert answer.status_code < 500 or answer.json()["error"]["code"] == "fleet_full"
        assert answer.status_code in {200, 202} or answer.json()["error"]["message"]

    call(route, check, 300 if is_all else 5)


@some_or_all
@each_route(_admins_schema)
def test_whatever_an_admin_sends_is_done_or_refused_in_words(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        answer = case.call(headers={"Authorization": "Bearer admin-token"})
        assert answer.status_code < 500, answer.text
        if route.path in ("/badge/free.svg", "/embed/fleet"):
            # The badge says what is wrong where people look at it, but for what no badge could be asked.
            assert "<title>" in answer.text or answer.json()["error"]["message"]
            return
        assert answer.status_code < 400 or answer.json()["error"]["message"]

    call(route, check, 100 if is_all else 2)
