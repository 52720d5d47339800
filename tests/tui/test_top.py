"""What keys do: order, groups, filter, search, details, people, standing still, a hub that goes away."""

import pytest
from msgspec.structs import replace

from fakes.tops import delta_of, make_top, press, some_fleet
from gpudeck.model.gpu_state import AVAILABILITIES
from gpudeck.model.reservation import GpuReservation
from gpudeck.tui.feed import FeedLost
from gpudeck.tui.renderer import HELP, ScreenRenderer
from gpudeck.tui.top import Top

UNKNOWN_LAST = "gpu02:2"


def shown(top: Top) -> list[str]:
    """The GPUs in their order; the heads of groups by their first word."""
    return [
        row.title().split(" · ")[0] if row.title else f"{row.host.name}:{row.gpu.label}"  # type: ignore[union-attr]
        for row in top.listing.rows
    ]


def picture(top: Top, width: int = 120, height: int = 30) -> str:
    return "\n".join("".join(text for text, _ in line) for line in ScreenRenderer(top).draw(width, height))


def test_fleet_begins_by_host_with_numbers_in_order() -> None:
    heads = [name for name in shown(make_top()) if ":" not in name]
    assert heads == ["gpu1", "gpu02", "gpu10"]


@pytest.mark.parametrize(
    ("key", "first"), [("P", "gpu02:1"), ("M", "gpu1:1"), ("U", "gpu1:1"), ("T", "gpu1:0"), ("N", "gpu1:0")]
)
def test_keys_sort_and_unknown_is_last(key: str, first: str) -> None:
    top = make_top()
    press(top, "g", "g", "g", ">", key)
    assert (top.grouping, shown(top)[0]) == ("none", first)


def test_unknown_stays_last_when_the_order_is_turned() -> None:
    top = make_top()
    press(top, "g", "g", "g", "P")
    assert (shown(top)[0], shown(top)[-1]) == ("gpu02:1", UNKNOWN_LAST)
    press(top, "I")
    assert (shown(top)[-2], shown(top)[-1]) == ("gpu02:1", UNKNOWN_LAST)
    press(top, "P")
    assert shown(top)[0] == "gpu02:1"


def test_angles_go_through_all_orders_and_around() -> None:
    top = make_top()
    seen = [top.shown_order().sort]
    for _ in range(8):
        press(top, ">")
        seen.append(top.shown_order().sort)
    assert (len(set(seen)), seen[0]) == (8, seen[-1])
    press(top, "<")
    assert top.shown_order().sort == "time"


def test_groups_are_host_model_user_none() -> None:
    top = make_top()
    press(top, "g")
    assert [name for name in shown(top) if ":" not in name] == ["A100-SXM4-80GB", "H200"]
    press(top, "g")
    assert shown(top)[0] == "alice"
    assert shown(top)[-4] == "nobody"
    press(top, "g")
    assert len(shown(top)) == 6


def test_filter_has_the_words_of_the_page_and_works_while_it_is_typed() -> None:
    top = make_top()
    press(top, "g", "g", "g", "/", *"alice")
    assert shown(top) == ["gpu1:1", "gpu10:0"]
    press(top, " ", *"-h200")
    assert shown(top) == ["gpu1:1"]
    assert "filter: alice -h200" in picture(top)
    press(top, "enter", "escape")
    assert len(shown(top)) == 6


def test_escape_takes_back_a_filter_that_is_being_typed() -> None:
    top = make_top()
    press(top, "/", *"free", "enter", "/", "backspace", "backspace", "escape")
    assert top.words == "free"


def test_whole_name_of_a_host_means_that_host_alone() -> None:
    top = make_top()
    press(top, "g", "g", "g", "/", *"gpu1", "enter")
    assert shown(top) == ["gpu1:0", "gpu1:1"]


def test_word_that_is_not_understood_is_named_and_nothing_fits() -> None:
    top = make_top()
    press(top, "/", *">lots", "enter")
    assert "'>lots' is not understood" in picture(top)
    assert "Nothing matches >lots. Esc shows all." in picture(top)


def test_search_moves_the_cursor_and_hides_nothing() -> None:
    top = make_top()
    press(top, "g", "g", "g", "s", *"busy", "enter")
    assert (len(shown(top)), shown(top)[top.listing.at]) == (6, "gpu1:1")
    press(top, "n")
    assert shown(top)[top.listing.at] == "gpu02:1"
    press(top, "s", *"zebra", "enter")
    assert "nothing matches zebra" in picture(top)


def test_cursor_stays_on_its_gpu_when_rows_move() -> None:
    top = make_top()
    press(top, "g", "g", "g", "down", "down", "down")
    before = shown(top)[top.listing.at]
    press(top, "P")
    assert (before, shown(top)[top.listing.at], top.listing.at) == ("gpu02:1", "gpu02:1", 0)


def test_details_of_a_gpu_list_its_processes_alone() -> None:
    top = make_top()
    press(top, "g", "g", "g", "P", "enter")
    drawn = picture(top)
    assert "gpu02 · GPU 1 · NVIDIA A100-SXM4-80GB · ■ busy" in drawn
    assert [row.process and row.process.user for row in top.listing.rows] == ["bob"]
    assert "python train.py" in drawn
    press(top, "escape")
    assert len(shown(top)) == 6


def test_details_of_a_host_have_all_its_gpus() -> None:
    top = make_top()
    press(top, "enter")
    drawn = picture(top)
    assert "gpu1 · up · 1 of 2 GPUs free" in drawn
    assert "GPU 0       ● free        0%" in drawn
    assert "GPU 1       ■ busy       70%" in drawn


def test_gpu_that_left_while_it_is_looked_at_is_said_to_be_gone() -> None:
    top = make_top()
    press(top, "g", "g", "g", "enter")
    fleet = some_fleet()
    top.take(replace(fleet, hosts=[host for host in fleet.hosts if host.name != "gpu1"]))
    top.arrange()
    assert "It is gone. Esc leads back." in picture(top)


def test_people_are_counted_over_all_hosts_and_lead_to_their_gpus() -> None:
    top = make_top()
    press(top, "u")
    assert [(row.activity.user, len(row.activity.uses)) for row in top.listing.rows if row.activity] == [
        ("alice", 2),
        ("bob", 1),
    ]
    assert "gpu1:1  gpu10:0" in picture(top)
    press(top, "enter", "g", "g", "g")
    assert (top.words, shown(top)) == ('user:"alice"', ["gpu1:1", "gpu10:0"])


@pytest.mark.parametrize(
    ("conflict", "note"),
    [
        (None, "reserved by ada, 4h left: paper"),
        ("bob is on it, though it is ada's", "bob is on it, though it is ada's"),
    ],
)
def test_who_has_reserved_a_gpu_is_told(conflict: str | None, note: str) -> None:
    fleet = some_fleet()
    gpu = next(host for host in fleet.hosts if host.name == "gpu1").gpus[1]
    gpu.reservation = GpuReservation(1, "ada", fleet.time + 4 * 3600 - 1, "paper", "reservation")
    gpu.reservation_conflict = conflict
    top = make_top(fleet)
    assert note in picture(top, 180)
    press(top, "down", "down", "enter")
    assert note in picture(top)
    assert "details · sorted by host · 1 row, all shown" in picture(top)


@pytest.mark.parametrize(
    ("keys", "words", "left"),
    [
        (["g"], 'model:"A100-SXM4-80GB"', ["gpu1:0", "gpu1:1", "gpu02:0", "gpu02:1", "gpu02:2"]),
        (["g", "g", "/", *"busy", "enter"], 'busy user:"alice"', ["gpu1:1", "gpu10:0"]),
    ],
)
def test_title_of_a_group_leads_to_that_group_alone(keys: list[str], words: str, left: list[str]) -> None:
    top = make_top()
    press(top, *keys, "enter", "enter", *["g"] * (3 - keys.count("g")))
    assert (top.words, shown(top)) == (words, left)


def test_title_of_a_group_without_a_name_says_that_no_word_finds_it() -> None:
    top = make_top()
    press(top, "g", "g", "end", *["up"] * 3)
    assert shown(top)[top.listing.at] == "nobody"
    press(top, "enter")
    assert "these have no user, and no word finds them" in picture(top)
    assert top.words == ""


def test_help_has_all_states_and_fits_a_small_terminal() -> None:
    assert all(any(word in line.split() for line in HELP) for word in AVAILABILITIES)
    assert max(map(len, HELP)) <= 76


def test_processes_are_listed_over_all_hosts() -> None:
    top = make_top()
    press(top, "p", "U")
    assert [row.process and row.process.user for row in top.listing.rows] == ["alice", "alice", "bob"]


def test_help_is_closed_by_any_key() -> None:
    top = make_top()
    press(top, "?")
    assert "sort by utilization" in picture(top, 80, 24)
    press(top, "P")
    assert "sort by utilization" not in picture(top, 80, 24)
    assert top.shown_order().sort == "host"


def test_hub_out_of_reach_greys_everything_and_nothing_is_free_any_more() -> None:
    top = make_top()
    top.take(FeedLost("no hub answers at http://hub:8042."))
    top.arrange()
    lines = ScreenRenderer(top).draw(120, 30)
    assert "OUT OF REACH since" in "".join(text for text, _ in lines[1])
    assert {colour for line in lines[2:-1] for _, colour in line} <= {"grey", "reverse"}
    assert "● free" not in picture(top)
    assert {row.gpu.availability for row in top.listing.rows if row.gpu} == {"unknown"}


def test_everything_is_back_with_the_next_delta() -> None:
    top = make_top()
    top.take(FeedLost("gone"))
    top.take(delta_of(top, 5))
    top.arrange()
    assert "OUT OF REACH" not in picture(top)
    assert "● free" in picture(top)


def test_reason_why_it_is_out_of_reach_may_change_but_not_since_when() -> None:
    top = make_top()
    top.take(FeedLost("first"))
    since = top.lost_at
    top.take(FeedLost("second"))
    top.arrange()
    assert (top.lost_at, "second" in picture(top)) == (since, True)


def test_pasted_words_are_a_filter_without_line_breaks() -> None:
    top = make_top()
    press(top, "/")
    top.paste("bo\nb\x1b")
    assert top.words == "bob"
