"""An event's id: where it stands in time, and what it is."""

from gpudeck.model.event import MAX_TITLE, id_at, make_event


def test_ids_are_in_the_order_of_time() -> None:
    moments = [-5.0, 0.0, 1.0, 999_999_999.999, 1_790_000_000.0, 1_790_000_000.001, 1e11]
    ids = [make_event(moment, "host_up", "gpu01 reports again").id for moment in moments]
    assert ids == sorted(ids)


def test_what_is_told_twice_is_one_event() -> None:
    told = [make_event(10.0, "xid", "GPU 0 of gpu01 XID 48", host="gpu01", gpu="GPU-0") for _ in range(2)]
    assert told[0] == told[1]


def test_two_things_at_one_moment_are_two_events() -> None:
    assert make_event(10.0, "xid", "a", gpu="GPU-0").id != make_event(10.0, "xid", "a", gpu="GPU-1").id


def test_all_before_a_moment_have_smaller_ids() -> None:
    assert make_event(9.999, "xid", "a").id < id_at(10.0) <= make_event(10.0, "xid", "a").id


def test_words_of_any_length_and_kind_make_an_event() -> None:
    made = make_event(10.0, "xid", "x" * 5000, host="\ud800", detail="y" * 50_000)
    assert len(made.title) == MAX_TITLE
    assert made.title.endswith("…")
