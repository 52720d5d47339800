"""What reservations say of GPUs is shown with them: at once, and with every later report."""

from msgspec import structs

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.state import FleetState
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.reservations.service import observe

NOW = 1_790_000_000.0
RESERVED = ReservationMark(GpuReservation(7, "ada", NOW + 3600, "training", "reservation"))


def make_fleet(*gpus: object) -> FleetState:
    fleet = FleetState(FleetSettings())
    fleet.apply(make_envelope(gpus=list(gpus) or None), via="push", now=NOW)  # type: ignore[arg-type]
    fleet.take_changes()
    return fleet


def gpus_of(fleet: FleetState) -> list[dict[str, object]]:
    (host,) = fleet.hosts.values()
    return [structs.asdict(gpu) for gpu in host.view().gpus]


def test_empty_gpu_becomes_reserved_at_once_and_free_again() -> None:
    fleet = make_fleet()
    fleet.mark({"GPU-0": RESERVED}, NOW + 1)
    (gpu,) = gpus_of(fleet)
    assert (gpu["availability"], gpu["reservation"], gpu["since"]) == ("reserved", RESERVED.reservation, NOW + 1)
    assert fleet.totals().reserved == 1
    fleet.mark({}, NOW + 2)
    (gpu,) = gpus_of(fleet)
    assert (gpu["availability"], gpu["reservation"]) == ("free", None)
    assert (fleet.totals().reserved, fleet.totals().free) == (0, 1)


def test_change_reaches_viewers_with_the_next_delta() -> None:
    hub = Hub(now=FakeClock(NOW))
    hub.fleet.apply(make_envelope(), via="push", now=NOW)
    hub.stream.tick()
    hub.fleet.mark({"GPU-0": RESERVED}, NOW + 1)
    delta = hub.stream.tick().plain
    assert b'"availability":"reserved"' in delta
    assert b'"reservation":{"id":7,"user":"ada","until":1790003600.0,"note":"training","kind":"reservation",' in delta
    assert b'"reserved"' not in hub.stream.tick().plain.replace(b'"reserved":', b"")


def test_gpu_that_is_seen_later_is_reserved_from_its_first_report() -> None:
    fleet = FleetState(FleetSettings())
    fleet.mark({"GPU-0": RESERVED}, NOW)
    fleet.apply(make_envelope(), via="push", now=NOW)
    assert gpus_of(fleet)[0]["availability"] == "reserved"


def test_next_report_keeps_it_reserved() -> None:
    fleet = make_fleet()
    fleet.mark({"GPU-0": RESERVED}, NOW)
    fleet.apply(make_envelope(sequence=2), via="push", now=NOW + 2)
    assert gpus_of(fleet)[0]["availability"] == "reserved"


def test_values_that_were_read_before_the_reservation_do_not_hide_it() -> None:
    fleet = make_fleet()
    fleet.mark({"GPU-0": ReservationMark(RESERVED.reservation, since=NOW + 20)}, NOW + 20)
    # As from a source that knows when its values were read: files that a script writes every 20 s.
    values = make_envelope(sequence=2, collected_at=NOW + 10, interval_seconds=20.0)
    assert fleet.apply(values, via="push", now=NOW + 25, sent_at=NOW + 25, target="gpu01")
    (gpu,) = gpus_of(fleet)
    assert (gpu["availability"], gpu["reservation"]) == ("reserved", RESERVED.reservation)


def test_busy_gpu_stays_busy_and_says_who_has_reserved_it() -> None:
    fleet = make_fleet(make_busy_gpu())
    fleet.mark({"GPU-0": ReservationMark(RESERVED.reservation, "alice is on it")}, NOW)
    (gpu,) = gpus_of(fleet)
    assert (gpu["availability"], gpu["reservation_conflict"]) == ("busy", "alice is on it")
    assert gpu["reservation"] == RESERVED.reservation


def test_silent_gpu_stays_unknown() -> None:
    fleet = make_fleet()
    fleet.age(NOW + 600)
    fleet.mark({"GPU-0": RESERVED}, NOW + 600)
    (gpu,) = gpus_of(fleet)
    assert (gpu["availability"], gpu["reservation"]) == ("unknown", RESERVED.reservation)


def test_neighbours_are_left_alone() -> None:
    fleet = make_fleet(make_gpu(0), make_gpu(1))
    fleet.mark({"GPU-1": RESERVED, "GPU-of-nobody": RESERVED}, NOW)
    assert [gpu["availability"] for gpu in gpus_of(fleet)] == ["free", "reserved"]


def test_occupants_of_a_silent_host_are_not_known() -> None:
    fleet = make_fleet(make_busy_gpu())
    assert observe(fleet)["GPU-0"].users() == ["alice"]
    fleet.age(NOW + 600)
    seen = observe(fleet, {"GPU-0"})["GPU-0"]
    assert (seen.occupants, seen.availability, seen.is_in_use) == (None, "unknown", False)
