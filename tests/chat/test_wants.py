"""Which GPUs and when, out of words."""

import pytest

from fakes.chats import NOW, ZONE
from gpudeck.chat.commands import ParsedRequest, read_kind, read_request, read_reservation
from gpudeck.model.errors import UsageError
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.reservations.requests import ReservationRequest


def asked(text: str) -> ParsedRequest:
    return read_request(text.split())


@pytest.mark.parametrize(
    ("text", "wanted", "words"),
    [
        ("", GpuRequest(), ()),
        ("h100", GpuRequest(), ("h100",)),
        ("2 h100", GpuRequest(gpus=2), ("h100",)),
        ("2x h100 40G", GpuRequest(gpus=2, memory_bytes=40 * 2**30), ("h100",)),
        ("4090", GpuRequest(), ("4090",)),
        ("2 4090", GpuRequest(gpus=2), ("4090",)),
        (">40G", GpuRequest(), (">40G",)),
        ("2 gpus same-host", GpuRequest(gpus=2, same_host=True), ()),
        ("1 h100 on gpu11", GpuRequest(host="gpu11"), ("h100",)),
        ("2 mig", GpuRequest(gpus=2, mig=True), ()),
        ("20G allow-mig", GpuRequest(memory_bytes=20 * 2**30, allow_mig=True), ()),
    ],
)
def test_numbers_amounts_and_words_are_read(text: str, wanted: GpuRequest, words: tuple[str, ...]) -> None:
    found = asked(text)
    assert (found.wanted, found.words) == (wanted, words)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "9999x",
        "1 on",
        "allow-mig",
        "20G mig allow-mig",
    ],
)
def test_nonsense_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError):
        read_kind(text.split())


def test_a_watch_takes_the_rest_as_the_model() -> None:
    assert read_kind(["2", "RTX", "6000", ">=40G"]) == GpuRequest(gpus=2, model="RTX 6000", memory_bytes=40 * 2**30)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("gpu07 for 4h", ReservationRequest(host="gpu07")),
        ("gpu07:0,1 for 4h", ReservationRequest(host="gpu07", labels=("0", "1"))),
        (
            "GPU-0f5c2f1e-1111-2222-3333-444455556666 for 4h",
            ReservationRequest(gpus=("GPU-0f5c2f1e-1111-2222-3333-444455556666",)),
        ),
        ("2 h100 for 4h", ReservationRequest(any=GpuRequest(gpus=2, model="h100"))),
        ("any h100 for 4h", ReservationRequest(any=GpuRequest(gpus=1, model="h100"))),
        (
            "1 >=20G allow-mig for 4h",
            ReservationRequest(any=GpuRequest(gpus=1, memory_bytes=20 * 2**30, allow_mig=True)),
        ),
        ("2 40G same-host for 4h", ReservationRequest(any=GpuRequest(gpus=2, memory_bytes=40 * 2**30, same_host=True))),
        ("2 on gpu07 for 4h", ReservationRequest(any=GpuRequest(gpus=2, host="gpu07"))),
    ],
)
def test_places_are_read(text: str, wish: ReservationRequest) -> None:
    assert read_reservation(text.split(), NOW, ZONE).wanted == wish


def test_times_are_those_of_the_zone_and_the_note_goes_to_the_end() -> None:
    draft = read_reservation(
        ["gpu07", "from", "tomorrow", "9:00", "for", "1d", "6h", "note", "for", "the", "paper", "from", "ada"],
        NOW,
        ZONE,
    )
    # 1 790 000 000 is 2026-09-21 16:13 in Berlin, which is two hours ahead of UTC then.
    assert draft.start == 1_790_060_400.0
    assert draft.length == 30 * 3600
    assert draft.note == "for the paper from ada"


def test_time_of_day_as_an_end_is_the_next_one_after_the_start() -> None:
    draft = read_reservation(["gpu07", "from", "tomorrow", "9:00", "until", "17:00"], NOW, ZONE)
    assert (draft.start, draft.end) == (1_790_060_400.0, 1_790_060_400.0 + 8 * 3600)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu07",
        "gpu07 for",
        "gpu07 for ever",
        "gpu07 for 4h until 18:00",
        "gpu07 for 4h for 5h",
        "gpu07: for 4h",
        ":0 for 4h",
        "h100 a100 for 4h",
        "for 4h",
        "gpu07 for 4h from whenever",
    ],
)
def test_what_is_no_reservation_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_reservation(text.split(), NOW, ZONE)
    assert caught.value.message
