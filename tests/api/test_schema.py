"""schemathesis against the real app: what the document allows is answered as the document says, never by a bug."""

import tempfile
from pathlib import Path

import msgspec
import schemathesis
from hypothesis import HealthCheck, settings

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


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_anonymous_calls_are_answered_as_described(case: schemathesis.Case) -> None:
    case.call_and_validate()


@schema.include(path="/api/v1/reports").parametrize()
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_reports_of_an_agent_are_answered_as_described(case: schemathesis.Case) -> None:
    answer = case.call(headers={"Authorization": "Bearer agent-token"})
    assert answer.status_code < 500 or answer.json()["error"]["code"] == "fleet_full"
    assert answer.status_code in {200, 202} or answer.json()["error"]["message"]


_admins_schema = (
    schemathesis.openapi.from_asgi("/schema/openapi.json", make_door(_hub, folder=Path(tempfile.mkdtemp())))
    .exclude(path="/api/v1/stream")
    .exclude(path="/api/v1/reports")
)


@_admins_schema.parametrize()
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_an_admin_sends_is_done_or_refused_in_words(case: schemathesis.Case) -> None:
    answer = case.call(headers={"Authorization": "Bearer admin-token"})
    assert answer.status_code < 500, answer.text
    assert answer.status_code < 400 or answer.json()["error"]["message"]
