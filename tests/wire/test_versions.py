"""Hub and agents of neighbouring versions: fields that one of them does not know, and fields that it does not send."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.inspect import Field, StructType, type_info

from fakes.clock import FakeClock
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import ReportRefused
from gpudeck.wire import Envelope, ShortReport, decode, decode_any, encode

CAPTURES = Path(__file__).parent.parent / "captures" / "wire"
VERSIONS = sorted(
    (path.name for path in CAPTURES.iterdir() if path.is_dir()), key=lambda name: [*map(int, name.split("."))]
)
JSON, MSGPACK = "application/json", "application/msgpack"

REQUIRED = {
    "ShortReport": {
        "version",
        "host",
        "boot_id",
        "sequence",
        "collected_at",
        "interval_seconds",
        "description",
        "numbers",
    },
    "Envelope": {"version", "host", "boot_id", "sequence", "collected_at", "interval_seconds", "report"},
    "Report": set(),
    "GpuReading": {"uuid", "index", "name"},
    "Process": {"pid"},
    "GpuEvent": {"at", "code"},
    "Disk": {"mount", "used_bytes", "total_bytes"},
    "PodGpus": {"gpus", "namespace", "pod"},
    "JobCgroup": {"job", "read_at"},
}
"""What every agent has to send. One more, and a hub refuses all agents of the version before."""


def capture(version: str) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode((CAPTURES / version / "full.json").read_bytes())
    return document


def structs(kind: Any = None) -> dict[str, StructType]:
    """The structs of the wire by their names, from the envelope inwards."""
    kind = kind or type_info(Envelope)
    found = {kind.cls.__name__: kind} if isinstance(kind, StructType) else {}
    inner = [field.type for field in kind.fields] if isinstance(kind, StructType) else _parts(kind)
    for part in inner:
        found |= structs(part)
    return found


def _parts(kind: Any) -> list[Any]:
    return [
        *getattr(kind, "types", ()),
        *(getattr(kind, name) for name in ("item_type", "value_type") if hasattr(kind, name)),
    ]


WIRE = structs()
SHORT = structs(type_info(ShortReport))
OPTIONAL = [(name, field.encode_name) for name, kind in WIRE.items() for field in kind.fields if not field.required]


def objects(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of an envelope that is a struct, with its name; mappings such as `metrics` are values."""
    report = document["report"]
    yield "Envelope", document
    yield "Report", report
    yield from (("Disk", disk) for disk in report.get("disks", ()))
    yield from (("JobCgroup", cgroup) for cgroup in report.get("job_cgroups", ()))
    yield from (("PodGpus", pod) for pod in report.get("pods", ()))
    for gpu in report.get("gpus") or ():
        yield "GpuReading", gpu
        yield from (("Process", process) for process in gpu.get("processes") or ())
        yield from (("GpuEvent", event) for event in gpu.get("events", ()))


def with_unknown_fields(document: dict[str, Any]) -> dict[str, Any]:
    for _, found in list(objects(document)):
        found |= {"colour": "green", "zones": [{"deep": [1, 2, {"deeper": None}]}], "limit": 2**63, "is_new": True}
    return document


def without(document: dict[str, Any], struct: str, field: str) -> dict[str, Any]:
    for name, found in list(objects(document)):
        if name == struct:
            found.pop(field, None)
    return document


def fields_sent(document: dict[str, Any]) -> dict[str, set[str]]:
    sent: dict[str, set[str]] = {}
    for name, found in objects(document):
        sent[name] = sent.get(name, set()) | set(found)
    return sent


def take(document: dict[str, Any]) -> dict[str, Any]:
    """The host as a hub shows it that was sent this report."""
    hub = Hub(is_simulated=True)
    assert hub.ingest.take(msgspec.msgpack.encode(document), MSGPACK)
    (host,) = msgspec.json.decode(hub.fleet.encoded(document["collected_at"]))["hosts"]
    return dict(host)


def test_newest_capture_has_every_field_of_the_wire() -> None:
    every = {name: {field.encode_name for field in kind.fields} for name, kind in WIRE.items()}
    assert fields_sent(capture(VERSIONS[-1])) == every


def test_no_field_becomes_required() -> None:
    kinds = WIRE | SHORT
    required = {name: {field.encode_name for field in kind.fields if field.required} for name, kind in kinds.items()}
    assert required == REQUIRED


@pytest.mark.parametrize("version", VERSIONS)
def test_report_of_each_version_is_read_whole(version: str) -> None:
    document = capture(version)
    packed = decode((CAPTURES / version / "full.msgpack.zst").read_bytes(), MSGPACK, "zstd")
    assert msgspec.to_builtins(packed) == document
    assert decode(msgspec.json.encode(document), JSON) == packed
    assert decode(encode(packed), MSGPACK, "zstd") == packed


@pytest.mark.parametrize("version", VERSIONS)
def test_newer_agent_with_fields_that_the_hub_does_not_know(version: str) -> None:
    known = msgspec.convert(capture(version), Envelope)
    assert decode(msgspec.msgpack.encode(with_unknown_fields(capture(version))), MSGPACK) == known


@pytest.mark.parametrize(("struct", "field"), OPTIONAL, ids=".".join)
def test_older_agent_that_does_not_send_a_field(struct: str, field: str) -> None:
    document = without(capture(VERSIONS[-1]), struct, field)
    envelope = decode(msgspec.msgpack.encode(document), MSGPACK)
    left_out = {found.encode_name: found for found in WIRE[struct].fields}[field]
    sent = [found for name, found in objects(msgspec.to_builtins(envelope)) if name == struct]
    assert all(field not in found for found in sent)
    assert is_harmless(left_out)


def is_harmless(field: Field) -> bool:
    """What a reader assumes of a field that was not sent claims nothing: unknown, empty, not so."""
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return made in (None, "", False, [], {}, "other")


@pytest.mark.parametrize("version", VERSIONS)
def test_hub_shows_the_host_of_a_newer_agent(version: str) -> None:
    host = take(with_unknown_fields(capture(version)))
    assert (host["name"], len(host["gpus"])) == ("gpu07.lab.example", 3)
    assert "colour" not in str(host)


def test_hub_shows_the_host_of_an_agent_that_sends_the_least() -> None:
    document = capture(VERSIONS[-1])
    for struct, field in OPTIONAL:
        without(document, struct, field)
    document |= {"report": {"gpus": [{"uuid": "GPU-0", "index": 0, "name": "NVIDIA H200"}]}, "simulated": True}
    host = take(document)
    assert (host["name"], len(host["gpus"])) == ("gpu07.lab.example", 1)
    assert host["gpus"][0]["availability"] == "unknown"


def take_both(version: str, short: bytes, media: str, encoding: str = "") -> dict[str, Any]:
    """The host as a hub shows it that was sent the whole report of a version and then a short one."""
    hub = Hub(is_simulated=True, now=FakeClock())
    hub.ingest.take((CAPTURES / version / "full.json").read_bytes(), JSON)
    assert hub.ingest.take(short, media, encoding)
    (host,) = msgspec.json.decode(hub.fleet.encoded(0.0))["hosts"]
    return dict(host)


@pytest.mark.parametrize("version", VERSIONS)
def test_short_report_of_each_version_is_read_and_shown_as_the_whole_one(version: str) -> None:
    text, packed = ((CAPTURES / version / f"short.{kind}").read_bytes() for kind in ("json", "msgpack.zst"))
    assert decode_any(text, JSON) == decode_any(packed, MSGPACK, "zstd")
    whole = capture(version) | {"sequence": 43, "collected_at": capture(version)["collected_at"] + 2}
    shown = take_both(version, msgspec.json.encode(whole), JSON)
    for short, media, encoding in ((text, JSON, ""), (packed, MSGPACK, "zstd")):
        assert take_both(version, short, media, encoding) == shown


@pytest.mark.parametrize("version", VERSIONS)
def test_newer_agent_may_put_further_fields_into_a_short_report(version: str) -> None:
    text = (CAPTURES / version / "short.json").read_bytes()
    assert decode_any(msgspec.json.encode(msgspec.json.decode(text) | {"colour": [1]}), JSON) == decode_any(text, JSON)


def test_short_report_is_taken_nowhere_but_where_agents_push() -> None:
    body = (CAPTURES / VERSIONS[-1] / "short.msgpack.zst").read_bytes()
    with pytest.raises(ReportRefused, match="wire version 2"):
        decode(body, MSGPACK, "zstd")
