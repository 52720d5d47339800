"""web-gpu-monitor: its config.ini, and the columns of its load_data.csv."""

import tempfile
import urllib.request
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compat.nodes import CAPTURES
from fakes.maintenance import make_window
from fakes.reports import make_envelope, make_gpu, make_process
from fakes.reverse_proxies import nginx_with
from gpudeck.compat.importing import HostStep, ImportContext
from gpudeck.compat.web_gpu_monitor import read, write_load_data
from gpudeck.fleet.state import FleetState
from gpudeck.model import view
from gpudeck.model.errors import UsageError
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuReading
from gpudeck.views.static_page import render_page

HERE = ImportContext(0.0, UTC)
NOW = 1_794_700_000.0
UUID = "GPU-11111111-aaaa-bbbb-cccc-00000000000"


def write(folder: Path, text: str) -> Path:
    file = folder / "config.ini"
    file.write_text(text)
    return file


def test_hosts_are_read_over_ssh_with_their_user_and_trimmed(tmp_path: Path) -> None:
    text = "[common]\nuser = monitor\nhosts = host1.domain.tld , host2.domain.tld,,\nkey_filename=keys/id_rsa\n"
    plan = read(write(tmp_path, text), HERE)
    assert plan.steps == [
        HostStep("host1.domain.tld", {"via": "ssh", "user": "monitor"}),
        HostStep("host2.domain.tld", {"via": "ssh", "user": "monitor"}),
    ]
    assert plan.left == plan.over == []
    assert plan.settings == f"ssh:\n  key_files:\n  - {tmp_path}/keys/id_rsa\n"


def test_key_that_is_named_from_the_root_or_the_home_stays(tmp_path: Path) -> None:
    for key in ("/etc/keys/a", "~/.ssh/id"):
        plan = read(write(tmp_path, f"[common]\nhosts=a\nkey_filename={key}\n"), HERE)
        assert plan.settings.endswith(f"- {key}\n")


def test_hosts_on_several_lines_percent_signs_and_other_users_are_taken(tmp_path: Path) -> None:
    plan = read(write(tmp_path, "[common]\nUser = a%b\nhosts = gpu1,\n  ada@gpu2:2222\n"), HERE)
    assert plan.steps == [
        HostStep("gpu1", {"via": "ssh", "user": "a%b"}),
        HostStep("gpu2", {"via": "ssh", "user": "ada", "port": 2222}),
    ]
    assert plan.settings == ""


def test_what_cannot_be_taken_is_named_with_its_line(tmp_path: Path) -> None:
    plan = read(write(tmp_path, "[common]\nuser=a\nhosts=gpu1,../x y,gpu1\ncolour=red\n"), HERE)
    assert [step.what for step in plan.steps] == ["watch gpu1 via ssh (user a)"]
    assert [left.place for left in plan.left] == ["hosts", "[common]"]
    assert [left.place for left in plan.over] == ["hosts"]


@pytest.mark.parametrize("text", ["", "hosts = a\n", "[other]\nhosts = a\n", "[common]\nuser = a\n", "hosts:\n  - a\n"])
def test_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.ini"):
        read(write(tmp_path, text), HERE)


def fleet_of(*hosts: tuple[str, list[GpuReading]], later: float = 0.0) -> view.Fleet:
    fleet = FleetState(FleetSettings())
    for name, gpus in hosts:
        fleet.apply(make_envelope(name, 1, gpus), via="ssh", now=NOW)
    fleet.age(NOW + later)
    return fleet.view(NOW + later)


def card(index: int, load: int, load_mem: int, *users: str | None, **others: Any) -> GpuReading:
    """A GPU of the capture. A process without an owner is what it called a zombie."""
    processes = [make_process(pid, user, gib=1) for pid, user in enumerate(users, 100)]
    metrics = {"utilization_percent": load, "memory_utilization_percent": load_mem}
    settings = {"name": "GeForce GTX 1080 Ti", "processes": processes} | others
    return make_gpu(index, uuid=f"{UUID}{index}", metrics=metrics, **settings)


def test_captured_file_is_written_byte_by_byte() -> None:
    """The capture was taken from one machine under two names; here two machines have GPUs of their own."""
    hosts = [("host1.domain.tld", [card(0, 92, 55, None, "root"), card(1, 0, 0, None)])]
    written = write_load_data(fleet_of(*hosts))
    captured = (CAPTURES / "web-gpu-monitor.load_data.csv").read_text().splitlines(keepends=True)
    assert written == "".join(captured[:3])


def test_lines_are_numbered_by_host_and_name_the_user_of_each_process() -> None:
    second = [msgspec.structs.replace(card(0, 0, 0), uuid="GPU-2")]
    lines = write_load_data(fleet_of(("a", [card(0, 1, 2, "zoe", "ann", "zoe")]), ("b", second))).splitlines()
    assert lines[1] == f'0,1,2,0, GeForce GTX 1080 Ti, {UUID}0,a,"zoe, ann, zoe"'
    assert lines[2] == "0,0,0,0, GeForce GTX 1080 Ti, GPU-2,b,"


def test_dead_host_has_no_line_and_costs_nobody_else_theirs() -> None:
    fleet = FleetState(FleetSettings())
    fleet.apply(make_envelope("dead", 1, [card(0, 0, 0)]), via="ssh", now=NOW)
    fleet.apply(make_envelope("live", 1, [card(1, 0, 0)]), via="ssh", now=NOW + 100)
    fleet.age(NOW + 101)
    lines = write_load_data(fleet.view(NOW + 101)).splitlines()
    assert [line.split(",")[6] for line in lines[1:]] == ["live"]


def test_gpu_whose_processes_cannot_be_read_is_not_taken_for_free() -> None:
    gpu = card(0, 50, 1, processes=None, processes_reason="not permitted")
    assert write_load_data(fleet_of(("a", [gpu]))).endswith(",a,Zombie\n")


def test_drained_gpu_is_not_taken_for_free() -> None:
    fleet = FleetState(FleetSettings())
    fleet.apply(make_envelope("gpu01", 1, [card(0, 0, 0)], host_id="gpu01"), via="ssh", now=NOW)
    fleet.drain([make_window()], NOW)
    assert write_load_data(fleet.view(NOW)).endswith(",gpu01,maintenance\n")


def test_unknown_load_is_empty_and_never_zero() -> None:
    gpu = make_gpu(0, metrics={"utilization_percent": None, "memory_utilization_percent": None})
    assert write_load_data(fleet_of(("a", [gpu]))).splitlines()[1].startswith("0,,,0,")


def test_no_name_is_a_formula_or_breaks_a_line() -> None:
    text = write_load_data(fleet_of(("a", [card(0, 0, 0, "=cmd|x", name="G\n=1,2")])))
    assert len(text.splitlines()) == 2
    assert "'=cmd|x" in text


@pytest.mark.parametrize(
    ("gpu", "state"),
    [
        (card(0, 4, 0), "free"),
        (card(0, 5, 0), "busy"),
        (card(0, 0, 0, "ada"), "busy"),
        (card(0, 0, 0, None), "busy"),
    ],
    ids=["load below 5", "load of 5", "a user without load", "a zombie"],
)
def test_static_page_is_red_with_load_of_5_or_a_user_and_green_else(gpu: GpuReading, state: str) -> None:
    assert f"<i class={state}>" in render_page(fleet_of(("a", [gpu])))


def test_static_page_tells_users_and_memory_on_hover() -> None:
    page = render_page(fleet_of(("a", [card(0, 92, 55, "ada", "ben")])))
    told = page.partition("<i class=busy>")[2].partition("</i>")[0]
    assert "ada 1.0 GiB + ben 1.0 GiB" in told
    assert "0/80 GiB" in told


def test_markup_in_a_name_is_text_on_the_static_page() -> None:
    assert "<script>alert" not in render_page(fleet_of(("a", [card(0, 92, 55, "<script>alert(1)</script>")])))


@pytest.mark.parametrize(
    "path", ["/gpu-monitor", "/gpu-monitor/", "/gpu-monitor/index.html", "/gpu-monitor/load_data.csv"]
)
def test_block_for_nginx_serves_the_folder_where_the_old_one_did(tmp_path: Path, path: str) -> None:
    page = (Path(__file__).parents[2] / "docs/migrate/web-gpu-monitor.md").read_text()
    block = page.partition("```nginx\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        # One that the user of nginx's workers may enter, unlike `tmp_path`.
        Path(folder).chmod(0o755)
        for name in ("index.html", "load_data.csv"):
            (Path(folder) / name).write_text("free")
        with (
            nginx_with(tmp_path, block.replace("/var/www/gpu-monitor", folder)) as url,
            urllib.request.urlopen(url + path, timeout=20) as answer,
        ):
            assert answer.read() == b"free"
