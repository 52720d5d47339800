"""schemathesis against the real app: what the document allows is answered as the document says, never by a bug.

schemathesis itself would think up the calls of all routes while pytest collects: half a minute, in each process and
also where only another file is run. Here each route's calls are thought up when its test begins.

In `make test` the cases that cover the document are an admin's, whom no route refuses, and random ones are few;
`make slow` has all of them for everybody.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.schemas import APIOperation, BaseSchema

from fakes.clock import FakeClock
from fakes.doors import make_door
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.hub.hub import Hub


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
schema = schemathesis.openapi.from_asgi("/schema/openapi.json", make_door(_hub)).exclude(path="/api/v1/stream")
_admins_schema = (
    schemathesis.openapi.from_asgi("/schema/openapi.json", make_door(_hub, folder=Path(tempfile.mkdtemp())))
    .exclude(path="/api/v1/stream")
    .exclude(path="/api/v1/reports")
)


def each_route(schema: BaseSchema) -> pytest.MarkDecorator:
    routes = [result.ok() for result in schema.get_all_operations()]
    return pytest.mark.parametrize("route", routes, ids=[route.label for route in routes])


some_or_all = pytest.mark.parametrize(
    "is_all", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"]
)


def call(
    route: APIOperation, check: Callable[[schemathesis.Case], None], max_examples: int, *, covers: bool = True
) -> None:
    """Examples, cases that cover the document and `max_examples` random ones, as `schema.parametrize` makes them."""
    load_all_checks()
    route.schema.config.phases.coverage.enabled = covers
    build_operation_test(
        config=route.schema.config,
        operation=route,
        test_func=settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))(check),
        given_kwargs={},
        feedback=FeedbackSources(constants_value_source=make_constants_value_source(route.schema)),
    )()


@some_or_all
@each_route(schema)
def test_anonymous_calls_are_answered_as_described(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate()

    call(route, check, 40 if is_all else 15, covers=is_all)


@some_or_all
@each_route(schema.include(path="/api/v1/reports"))
def test_reports_of_an_agent_are_answered_as_described(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        answer = case.call(headers={"Authorization": "Bearer agent-token"})
        assert answer.status_code < 500 or answer.json()["error"]["code"] == "fleet_full"
        assert answer.status_code in {200, 202} or answer.json()["error"]["message"]

    call(route, check, 150 if is_all else 40)


@some_or_all
@each_route(_admins_schema)
def test_whatever_an_admin_sends_is_done_or_refused_in_words(route: APIOperation, is_all: bool) -> None:
    def check(case: schemathesis.Case) -> None:
        answer = case.call(headers={"Authorization": "Bearer admin-token"})
        assert answer.status_code < 500, answer.text
        assert answer.status_code < 400 or answer.json()["error"]["message"]

    call(route, check, 20 if is_all else 5)
