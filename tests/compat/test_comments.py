"""gpu-monitor's reservations in comments.json, and the names in its hosts.json."""

import json
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from fakes.fleets import make
from gpudeck.client import Client
from gpudeck.compat.gpu_monitor_import import plan_reservations, read, write_comments
from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget, ReservationStep, SkippedEntry, check_steps
from gpudeck.model.errors import UsageError
from gpudeck.model.reservation import Reservation, ReservationList, ReservedGpu, ShownReservation
from gpudeck.model.view import Gpu, Host

NOW = 1_530_000_000.0
"""2018-06-26 08:00 in UTC: before the dates of its README."""
HERE = ImportContext(NOW, UTC)
README = """{
  "big-one": [  // by place: the first is GPU 0; { "0": {"name": ....} } says the same
    {  // GPU 0
      "name": "ada lovelace",
      "date": "2018-07-02 12:30",  // still to come
      "comment": "paper"
    },
    { // GPU 1
      "name": "ben",
      "date": "2017-01-01 00:00",  // over
      "comment": "reserved by Père Noël"
    }
  ],
  "gputest001-pa4": {
    "1": {"name": "pnoël", "date": "2018-08-01 00:00", "comment": "see http://lab/x // and <b>this</b>"}
  },
  "gputest002-pa4": []  // nothing
}
"""
"""As its README shows such a file."""


def plan_of(content: str | bytes, here: ImportContext = HERE) -> ImportPlan:
    plan = ImportPlan()
    plan_reservations(content if isinstance(content, bytes) else content.encode(), "comments.json", here, plan)
    return plan


def one(entry: object) -> ImportPlan:
    return plan_of(json.dumps({"gpu01": [entry]}))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_file_of_the_readme_is_taken_with_its_comments_in_both_forms(encoding: str) -> None:
    plan = plan_of(README.encode(encoding))
    assert plan.steps == [
        ReservationStep("big-one", "0", "ada lovelace", 1530534600.0, "paper", "2018-07-02 12:30 UTC"),
        ReservationStep(
            "gputest001-pa4", "1", "pnoël", 1533081600.0, "see http://lab/x // and <b>this</b>", "2018-08-01 00:00 UTC"
        ),
    ]
    assert plan.over == [SkippedEntry("big-one, GPU 1", "ended 2017-01-01 00:00 UTC")]
    assert plan.left == []
    assert "no_show" in plan.notes[0]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_dates_are_in_utc_as_its_page_sets_it_wherever_the_machine_stands(zone: str) -> None:
    plan = plan_of(README, ImportContext(NOW, ZoneInfo(zone)))
    assert plan == plan_of(README)
    assert plan.steps[0] == ReservationStep(
        "big-one", "0", "ada lovelace", 1530534600.0, "paper", "2018-07-02 12:30 UTC"
    )


def test_reservation_that_no_hub_would_make_is_named_before_one_is_asked() -> None:
    plan = one({"name": "ada", "date": "2099-01-01 00:00"})
    assert plan.steps == []
    reason = "is reserved until 2099-01-01 00:00 UTC, and that is refused: the end is more than ten years away"
    assert plan.left == [SkippedEntry("gpu01, GPU 0", reason)]


def reservation(user: str, end: float, note: str, *places: str) -> Reservation:
    gpus = [ReservedGpu(place, *place.split(":")) for place in places]
    return make(Reservation, user=user, end=end, note=note, gpus=gpus)


class Reserved(Client):
    """A hub with one GPU, which grace has reserved."""

    def hosts(self) -> list[Host]:
        return [make(Host, name="gpu01", gpus=[make(Gpu, label=label) for label in ("0", "1")])]

    def get(self, path: str, query: object = None) -> bytes:
        reserved = make(ShownReservation, id=7, user="grace", end=2e9, gpus=[ReservedGpu("GPU-0", "gpu01", "0")])
        return msgspec.json.encode(ReservationList([reserved], 0.0, False))


def test_dry_run_names_the_reservation_in_the_way() -> None:
    entry = {"name": "ada", "date": "2018-07-02 12:30"}
    results = check_steps(
        plan_of(json.dumps({"gpu01": [entry, entry]})).steps, ImportTarget(Reserved("http://127.0.0.1:9"))
    )
    assert [(result.outcome, result.detail) for result in results] == [
        ("failed", "gpu01:0 is reserved by grace: reservation 7."),
        ("new", ""),
    ]


@pytest.mark.parametrize("date", ["2018-07-02 12:30", "2018-07-02 12:30:00", "2018/07/02 12:30", "2018-07-02T12:30Z"])
def test_date_and_time_in_any_form_that_it_wrote(date: str) -> None:
    (step,) = one({"name": "ada", "date": date}).steps
    assert isinstance(step, ReservationStep)
    assert step.end == 1530534600.0


def test_what_php_escapes_is_read() -> None:
    plan = plan_of(r'{"gpu01": [{"name": "\u00c9mile \ud83d\ude80", "date": "2018-07-02", "comment": "a\/b \"q\""}]}')
    (step,) = plan.steps
    assert isinstance(step, ReservationStep)
    assert (step.user, step.note) == ("Émile 🚀", 'a/b "q"')


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"name": "ada", "date": "2d"}, "is no date and time"),
        ({"name": "ada", "date": "tomorrow"}, "is no date and time"),
        ({"name": "ada", "date": "2018-13-45 99:00"}, "is no date and time"),
        ({"name": "", "date": "2018-07-02"}, "no user is named"),
        ("ada", "is no reservation"),
        ([1], "is no reservation"),
    ],
)
def test_entry_that_makes_no_sense_is_named_with_its_place(entry: object, told: str) -> None:
    plan = one(entry)
    assert plan.steps == []
    (left,) = plan.left
    assert left.place == "gpu01, GPU 0"
    assert told in left.reason


@pytest.mark.parametrize("entry", [None, {}, {"name": "", "date": "", "comment": ""}])
def test_empty_entry_is_no_reservation_and_no_trouble(entry: object) -> None:
    plan = one(entry)
    assert plan.steps == plan.left == plan.over == []


@pytest.mark.parametrize("host", ["../../etc/cron.d/x", "a b", "<script>", ""])
def test_name_that_is_no_host_is_refused(host: str) -> None:
    plan = plan_of(json.dumps({host: [{"name": "ada", "date": "2018-07-02"}]}))
    assert plan.steps == []
    assert "is no name of a host" in plan.left[0].reason


def test_number_that_is_none_is_refused() -> None:
    plan = plan_of(
        '{"gpu01": {"../x": {"name": "ada", "date": "2018-07-02"}, "03": {"name": "b", "date": "2018-07-02"}}}'
    )
    assert [step.what for step in plan.steps] == ["reserve gpu01:3 for b until 2018-07-02 00:00 UTC"]
    assert "is no number of a GPU" in plan.left[0].reason


def test_nothing_in_a_name_or_comment_moves_a_terminal() -> None:
    (step,) = one({"name": "a\x1b[2Jda\n", "date": "2018-07-02", "comment": "x\u202ey\x00"}).steps
    assert isinstance(step, ReservationStep)
    assert (step.user.isprintable(), step.note.isprintable()) == (True, True)


@pytest.mark.parametrize(
    "content", ["", "[1]", "3", "{", '{"a": [}', "[common]\nhosts = a\n", "{" * 9999, '"' * 9999, '"' + '\\"' * 200_000]
)
def test_file_of_another_kind_is_refused(content: str) -> None:
    with pytest.raises(UsageError, match=r"comments\.json"):
        plan_of(content)


@pytest.mark.parametrize("note", ["<script>alert(1)</script>", "a \"b\" 'c' & d", "&lt;b&gt;", "1 < 2", "Père Noël"])
def test_texts_are_run_nowhere_and_come_back_as_they_were(note: str) -> None:
    text = write_comments([reservation(note[:20], 1533081600.0, note, "gpu02:1")])
    written = json.loads(text)["gpu02"]["1"]["comment"]
    assert not set(written) & set("<>\"'")
    (step,) = plan_of(text).steps
    assert isinstance(step, ReservationStep)
    assert (step.user, step.note) == (note[:20].strip(), note)


def test_what_a_browser_would_make_of_a_text_moves_no_terminal() -> None:
    (step,) = one({"name": "a&#27;[2Jda&NewLine;", "date": "2018-07-02", "comment": "x&#x202e;y&#0;"}).steps
    assert isinstance(step, ReservationStep)
    assert (step.user.isprintable(), step.note.isprintable()) == (True, True)


def test_empty_list_is_what_php_writes_for_no_hosts() -> None:
    assert plan_of("[]").steps == []


def test_reservations_are_written_as_they_were_read() -> None:
    reservations = [
        reservation("pnoël", 1533081600.0, "<b>", "gpu02:1"),
        reservation("ada", 1530534600.0, "", "gpu01:0", "gpu01:1"),
    ]
    text = write_comments(reservations)
    assert json.loads(text)["gpu02"] == {"1": {"name": "pnoël", "date": "2018-08-01 00:00", "comment": "&lt;b&gt;"}}
    assert [step.what for step in plan_of(text).steps] == [
        "reserve gpu01:0 for ada until 2018-07-02 12:30 UTC",
        "reserve gpu01:1 for ada until 2018-07-02 12:30 UTC",
        "reserve gpu02:1 for pnoël until 2018-08-01 00:00 UTC",
    ]


def test_folder_becomes_a_setting_and_its_reservations_are_read(tmp_path: Path) -> None:
    (tmp_path / "gpu01_gpus.csv").touch()
    (tmp_path / "..x_gpus.csv").touch()
    (tmp_path / "comments.json").write_text('{"gpu01": [{"name": "ada", "date": "2018-07-02"}]}')
    plan = read(tmp_path, HERE)
    assert plan.settings == f"compat:\n  gpu_monitor:\n    folder: {tmp_path}\n"
    assert [step.what for step in plan.steps] == ["reserve gpu01:0 for ada until 2018-07-02 00:00 UTC"]
    assert plan.left == [SkippedEntry("'..x'", "is no name of a host")]


def test_names_in_hosts_json_become_settings_alone_and_with_their_folder(tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text('{"gpu01": "gpu01.example.org", "gpu02": "gpu02", "gpu03": ""}')
    names = "names:\n  hosts:\n    gpu01: gpu01.example.org\n"
    plan = read(file, HERE)
    assert (plan.settings, plan.steps) == (names, [])
    assert [left.place for left in plan.left] == ["hosts.json, 'gpu03'"]
    (tmp_path / "gpu01_gpus.csv").touch()
    assert read(tmp_path, HERE).settings == f"compat:\n  gpu_monitor:\n    folder: {tmp_path}\n{names}"


def test_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data"):
        read(tmp_path, HERE)
