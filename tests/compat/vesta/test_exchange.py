"""What real senders and readers of vesta exchanged, byte by byte; and every way in which the original was broken."""

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.reports import make_envelope, make_gpu, make_process
from fakes.vesta import TOKEN, VestaHub, captured_body, captured_posts, make_post
from fakes.views import show
from gpudeck import __version__
from gpudeck.model.target import Target

OK = {"status": "OK", "status_code": 200}
FORBIDDEN = {"status": "ERROR", "status_code": 403, "message": "forbidden", "info": "forbidden"}
UNKNOWN_ID = {"status": "ERROR", "status_code": 404, "message": "not in known list", "info": "not in known list"}
NOT_FOUND = {"status": "ERROR", "status_code": 404, "message": "not found", "info": "not found"}


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def vesta(tmp_path: Path) -> VestaHub:
    return VestaHub(tmp_path)


def test_a_sender_registers_and_posts_as_it_did(vesta: VestaHub) -> None:
    answer = vesta.get(f"/register/?host_name=gputest001&token={TOKEN}")
    told = answer.json()
    assert re.fullmatch(r"[1-9a-f][0-9a-f]{0,31}", told["id"])
    assert answer.text == (
        f'{{"id": "{told["id"]}", "register_name": "gputest001", "status": "OK", "status_code": 200}}'
    )
    for body in captured_posts():
        answer = vesta.call("POST", f"/update/host/{told['id']}?token={TOKEN}", content=body)
        assert answer.text == '{"status": "OK", "status_code": 200}'
    view = show(vesta.hub.fleet.hosts["gputest001"])
    assert [gpu["name"] for gpu in view["gpus"]] == ["GeForce GTX 1080 Ti"] * 2
    assert view["addresses"] == ["127.0.0.1"]


def test_states_are_those_of_the_original_with_the_timestamp_that_was_promised(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    captured = captured_body("states.txt").replace(
        '"timestamp": "15/11/2026 06:37:57"}]',
        '"timestamp": 20261115063757, "timestamp_text": "15/11/2026 06:37:57"}]',
    )
    for path in ("/states/", "/states", "/states/gputest001/", "/states/gputest001"):
        assert vesta.get(path).text == captured


def test_available_memory_is_what_the_driver_calls_free(vesta: VestaHub) -> None:
    """nvidia-smi of driver 580 on an H200: 143771 MiB, none used, 616 MiB reserved, 143156 MiB free."""
    posted = make_post(1, total_memory=143_771, used_memory=0, available_memory=143_156)
    for _ in range(2):
        vesta.report("gpu1", posted)
        vesta.clock.advance(10)
    for path in ("/states/", "/states/gpu1/", "/states/gpu1/?fetch_num=2"):
        for sample in vesta.get(path).json()["gpu1"]["data"]:
            assert sample["gpu_data"] == posted
    assert "     0 / 143771MiB          143156MiB " in vesta.get("/?term=true&detail=true").text


def test_available_memory_that_is_not_posted_is_what_is_left(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, total_memory=1000, used_memory=400, available_memory=None))
    assert vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]["available_memory"] == 600


def test_the_table_is_that_of_the_original(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    title = f"| gpudeck {__version__}"
    captured = re.sub(r"\| vesta ver\. 1\.2\.5 *(?=gpu info)", f"{title:<69}", captured_body("term.txt"))
    assert vesta.get("/?term=true").content == captured.encode()


def test_the_boxes_are_those_of_the_original(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    captured = captured_body("term-detail.txt").replace("vesta ver. 1.2.5", f"gpudeck {__version__}")
    assert vesta.get("/?term=true&detail=true").content == captured.encode()


def test_one_host_is_shown_as_text(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    vesta.report("gpu2", make_post())
    captured = captured_body("term-detail.txt").replace("vesta ver. 1.2.5", f"gpudeck {__version__}")
    for path in ("/states/gputest001/?term=true", "/states/gputest001?term=true"):
        answer = vesta.get(path)
        assert (answer.content, answer.headers["content-type"]) == (captured.encode(), "text/plain; charset=utf-8")
    assert vesta.get("/states/nobody/?term=true").json() == NOT_FOUND
    assert vesta.get("/states/gputest001/?term=false").json().keys() == {"gputest001"}


def test_between_two_hosts_of_the_boxes_is_an_empty_line(vesta: VestaHub) -> None:
    for name in ("gpu1", "gpu2"):
        vesta.report(name, make_post())
    text = vesta.get("/?term=true&detail=true").text
    assert text.count(f"{'_' * 80}\n\n#### gpu2 ") == 1
    assert text.startswith(f"gpudeck {__version__}\n\n#### gpu1 ")


def test_the_path_of_the_gpu_table_has_the_table(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    text = vesta.get("/gpu_table?term=true").text
    assert text == vesta.get("/?term=true").text
    page = vesta.get("/gpu_table")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert f"<pre>{text}</pre>" in page.text


def test_a_host_that_is_down_keeps_its_address_and_its_last_update(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post())
    vesta.clock.advance(101)
    rows = [
        "| status: down                                                                 |",
        "|   gpu1                          (127.0.0.1) last update: 15/11/2026 06:37:57 |",
    ]
    for path in ("/?term=true", "/gpu_table?term=true"):
        assert vesta.get(path).text.splitlines()[5:7] == rows
    vesta.start()
    assert vesta.get("/?term=true").text.splitlines()[5:7] == rows
    boxes = vesta.get("/?term=true&detail=true").text
    assert boxes == vesta.get("/states/gpu1/?term=true").text
    assert boxes.splitlines()[2:] == [
        "#### gpu1 :: 127.0.0.1 ".ljust(80, "#"),
        "  last update: 15/11/2026 06:37:57".ljust(80),
        "-" * 80,
        f"  ┌{'─' * 74}┐",
        f"  │{'':74}│",
        f"  │{'  status: down':74}│",
        f"  │{'':74}│",
        f"  └{'─' * 74}┘",
        "_" * 80,
    ]


def test_a_host_that_never_posted_says_so(vesta: VestaHub) -> None:
    vesta.add("gpu1")
    assert "(127.0.0.1) last update: no entry received.  |" in vesta.get("/?term=true").text


@pytest.mark.parametrize("query", ["term=false", "term=0", "", "detail=true"])
def test_without_term_there_is_the_page(vesta: VestaHub, query: str) -> None:
    answer = vesta.get(f"/?{query}", headers={"User-Agent": "Mozilla/5.0"})
    assert "text/html" in answer.headers["content-type"] or answer.status_code == 503
    assert "gpu info." not in answer.text


@pytest.mark.parametrize("more", ["users", "users&refresh=5", "free", "q=gpu1", "user=alice", "columns=100"])
def test_the_hubs_own_text_is_there_beside_the_table(vesta: VestaHub, more: str) -> None:
    vesta.report("gpu1", make_post())
    answer = vesta.get(f"/?term=true&{more}")
    assert answer.status_code == 200
    assert "gpu info." not in answer.text
    assert "gpu info." in vesta.get("/?term=true&other=1").text


def test_a_host_is_an_ordinary_host_of_the_fleet(vesta: VestaHub) -> None:
    vesta.report("gputest001", captured_posts()[0])
    host = vesta.get("/api/v1/hosts/gputest001").json()
    gpu = host["gpus"][0]
    assert (host["via"], host["status"], gpu["availability"], gpu["users"]) == ("vesta", "up", "busy", ["root"])
    assert (gpu["memory_used_bytes"], gpu["memory_total_bytes"]) == (8018 << 20, 11169 << 20)
    assert (gpu["power_watts"], gpu["reasons"]["power_watts"]) == (None, "vesta does not report it")
    assert [process["pid"] for process in gpu["processes"]] == [17862, 1]


@pytest.mark.parametrize("token", ["", "0000", TOKEN[:-1], f"{TOKEN}0", "%00", "ü" * 400])
def test_without_the_token_nobody_registers_or_posts(
    vesta: VestaHub, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    host_id = vesta.report("gpu1", make_post())
    assert vesta.add("gpu2", token=token) == FORBIDDEN
    assert vesta.post(host_id, make_post(2), token=token) == FORBIDDEN
    assert vesta.states().keys() == {"gpu1"}
    assert len(vesta.states()["gpu1"]["data"][0]["gpu_data"]) == 1
    assert TOKEN not in caplog.text


def test_a_token_is_never_logged(vesta: VestaHub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="gpudeck")
    host_id = vesta.report("gpu1", make_post())
    vesta.post(host_id, b"{", token=TOKEN)
    vesta.post(host_id, make_post(), token="wr0ng-token")
    vesta.add("", token=TOKEN)
    assert caplog.text
    assert TOKEN not in caplog.text
    assert "wr0ng-token" not in caplog.text


@pytest.mark.parametrize(
    "path",
    ["/states/", "/states/gpu1/", "/states/gpu1/?term=true", "/?term=true", "/?term=true&detail=true", "/gpu_table"],
)
def test_networks_restrict_readers_and_never_senders(tmp_path: Path, path: str) -> None:
    vesta = VestaHub(tmp_path, read_from=["192.0.2.0/24"])
    host_id = vesta.report("gpu1", make_post())
    vesta.address = "198.51.100.7"
    assert vesta.post(host_id, make_post()) == OK
    refused = vesta.get(path)
    assert (refused.status_code, refused.json()) == (403, FORBIDDEN)
    vesta.address = "::ffff:192.0.2.9"
    assert "GeForce" in vesta.get(path).text


def test_an_address_is_told_as_it_is_though_the_socket_is_for_both_kinds(vesta: VestaHub) -> None:
    vesta.address = "::ffff:192.0.2.7"
    vesta.report("gpu1", make_post())
    assert vesta.states()["gpu1"]["ip_address"] == "192.0.2.7"


@pytest.mark.parametrize("host_id", ["0", "5901beb55d9d99e9b4eb8589d508199d", "x" * 300, "%00", "' OR 1=1 --", "é"])
def test_an_unknown_id_is_told_to_register_again(vesta: VestaHub, host_id: str) -> None:
    assert vesta.post(host_id, make_post()) == UNKNOWN_ID
    assert vesta.states() == {}


def test_ids_are_known_after_a_restart(vesta: VestaHub) -> None:
    host_id = vesta.report("gpu1", make_post())
    vesta.start()
    assert vesta.states()["gpu1"] == {
        "data": [{"gpu_data": {}, "timestamp": 20261115063757, "timestamp_text": "15/11/2026 06:37:57"}],
        "ip_address": "127.0.0.1",
        "status": "down",
    }
    assert vesta.post(host_id, make_post()) == OK
    assert vesta.states()["gpu1"]["status"] == "running"


def test_a_host_that_was_registered_beside_this_hub_may_post(vesta: VestaHub, tmp_path: Path) -> None:
    host_id = str(vesta.add("gpu1")["id"])
    other = VestaHub(tmp_path)
    late = str(vesta.add("gpu2")["id"])
    assert (other.post(host_id, make_post()), other.post(late, make_post())) == (OK, OK)
    assert other.states().keys() == {"gpu1", "gpu2"}


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("gpu.a,b-c@d[e]f:g;h", "gpu_a_b_c_d_e_f_g_h"),
        ("1gpu", "1gpu"),
        ("a b", "a_b"),
        ("x'; DROP TABLE machines;--", "x___DROP_TABLE_machines___"),
        ("../../etc/passwd", "______etc_passwd"),
        ("a\x1b[2Jb\r\n", "a__2Jb__"),
        ("机器一", "机器一"),
        ("größe-1", "größe_1"),
        ("select", "select"),
    ],
)
def test_names_that_broke_the_original_are_names(vesta: VestaHub, wanted: str, given: str) -> None:
    told = vesta.add(wanted)
    assert told["register_name"] == given
    assert vesta.post(told["id"], make_post()) == OK
    assert vesta.states().keys() == {given}
    assert vesta.get(f"/states/{given}/").json()[given]["status"] == "running"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", vesta.hub.fleet.ordered()[0].name)


@pytest.mark.parametrize("name", ["", "-", "...", "x" * 129])
def test_what_cannot_be_a_name_leaves_no_phantom(vesta: VestaHub, name: str) -> None:
    assert vesta.add(name) == FORBIDDEN
    assert vesta.states() == {}


def test_a_taken_name_gets_eight_digits_more(vesta: VestaHub) -> None:
    first, second = vesta.add("gpu-1"), vesta.add("gpu_1")
    assert first["register_name"] == "gpu_1"
    assert re.fullmatch(r"gpu_1_[0-9a-f]{8}", second["register_name"])
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "body",
    [
        ["junk"],
        [],
        "junk",
        None,
        17,
        {"junk": 1},
        {"gpu:0": "junk"},
        {"gpu:x": {}},
        {"gpu:0": [1]},
        {f"gpu:{number}": {} for number in range(65)},
        b"",
        b"{",
        b'{"gpu:0": {',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"gpu:0": ' * 50_000,
    ],
)
def test_junk_is_refused_and_every_page_goes_on(vesta: VestaHub, body: Any) -> None:
    host_id = vesta.report("gpu1", make_post())
    before = vesta.states()
    assert vesta.post(host_id, body) == FORBIDDEN
    assert vesta.states() == before
    assert vesta.get("/?term=true").text.count("GeForce") == 1
    assert vesta.get("/?term=true&detail=true").status_code == 200


def test_a_body_that_is_too_large_is_not_read(vesta: VestaHub) -> None:
    host_id = str(vesta.add("gpu1")["id"])
    assert vesta.post(host_id, b'{"gpu:0": "' + b"x" * (1 << 20) + b'"}') == FORBIDDEN


def test_one_bad_value_hides_no_other(vesta: VestaHub) -> None:
    broken = make_post(1, temperature="[N/A]", used_memory=None, gpu_volatile=[1], total_memory="11169", uuid="")
    vesta.report("gpu1", broken | {"gpu:1": make_post(2)["gpu:1"], "gpu:2": "junk"})
    first, second = vesta.states()["gpu1"]["data"][0]["gpu_data"].values()
    assert (first["temperature"], first["used_memory"], first["gpu_volatile"]) == (None, None, None)
    assert (first["total_memory"], first["available_memory"], first["uuid"]) == (11169, 3151, "gpu1/gpu0")
    assert second["temperature"] == 80
    gpu = vesta.get("/api/v1/hosts/gpu1").json()["gpus"][0]
    assert gpu["reasons"]["temperature_celsius"] == "not supported by this GPU"


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", "NaN"), ("temperature", "1e400"), ("gpu_name", r'"\udcff"')]
)
def test_what_only_python_takes_for_json_costs_that_value(vesta: VestaHub, key: str, value: str) -> None:
    host_id = str(vesta.add("gpu1")["id"])
    body = json.dumps(make_post(2, **{key: "@"})).replace('"@"', value, 1).encode()
    assert vesta.post(host_id, body) == {"status": "OK", "status_code": 200}
    gpu = vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]
    assert (gpu[key], gpu["used_memory"]) == ({"temperature": None, "gpu_name": "\ufffd"}[key], 8018)


def test_a_program_of_which_little_is_told_is_there_and_costs_itself_only(vesta: VestaHub) -> None:
    processes = [
        {"pid": "1", "name": "", "user": "", "used_memory": 100},
        {"pid": "", "name": "gone"},
        "junk",
        {"pid": "2", "name": "train", "user": "bob", "used_memory": "[N/A]"},
    ]
    vesta.report("gpu1", make_post(1, processes=processes))
    assert vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]["processes"] == [
        {"pid": "1", "name": None, "user": None, "used_memory": 100},
        {"pid": "0", "name": "gone", "user": None, "used_memory": None},
        {"pid": "0", "name": None, "user": None, "used_memory": None},
        {"pid": "2", "name": "train", "user": "bob", "used_memory": None},
    ]
    shown = vesta.get("/api/v1/hosts/gpu1").json()["gpus"][0]["processes"]
    assert shown[0]["reasons"]["user"] == "vesta does not report it"


def test_version_1_0_0_writes_numbers_as_text(vesta: VestaHub) -> None:
    told = {"available_memory": "11170", "device_num": "1", "gpu_volatile": "0", "used_memory": "2"}
    vesta.report("gpu1", make_post(1, **told))
    gpu = vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]
    assert (gpu["gpu_volatile"], gpu["used_memory"]) == (0, 2)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 24])
def test_any_number_of_hosts_is_shown(vesta: VestaHub, count: int) -> None:
    for number in range(count):
        vesta.report(f"gpu{number:02}", make_post())
    assert list(vesta.states()) == [f"gpu{number:02}" for number in range(count)]
    assert vesta.get("/?term=true").text.count("GeForce") == count
    assert vesta.get("/?term=true&detail=true").text.count("last update") == count


def test_a_host_that_never_reported_is_down(vesta: VestaHub) -> None:
    vesta.hub.fleet.expect([Target(name="configured", via="ssh")])
    assert vesta.states()["configured"]["status"] == "down"


def test_a_silent_sender_is_down_after_a_minute(vesta: VestaHub) -> None:
    host_id = vesta.report("gpu1", make_post())
    vesta.clock.advance(20)
    vesta.post(host_id, make_post())
    vesta.clock.advance(60)
    vesta.hub.fleet.age(vesta.clock())
    assert (vesta.states()["gpu1"]["status"], vesta.hub.fleet.hosts["gpu1"].status) == ("running", "late")
    vesta.clock.advance(1)
    vesta.hub.fleet.age(vesta.clock())
    assert vesta.hub.fleet.hosts["gpu1"].status == "down"
    assert vesta.states()["gpu1"] == {
        "data": [{"gpu_data": {}, "timestamp": 20261115063817, "timestamp_text": "15/11/2026 06:38:17"}],
        "ip_address": "127.0.0.1",
        "status": "down",
    }
    alone = vesta.states("/states/gpu1/")["gpu1"]
    assert (alone["status"], alone["data"][0]["gpu_data"]["gpu:0"]["temperature"]) == ("down", 80)
    assert "down" in vesta.get("/?term=true").text


@pytest.mark.parametrize("gap", [59, 65])
def test_a_sender_that_posts_about_once_a_minute_is_never_late(vesta: VestaHub, gap: int) -> None:
    """By cron; and in a loop, where a minute's pause and the sender itself make more than a minute."""
    host_id = vesta.report("gpu1", make_post())
    statuses = set()
    for _ in range(4):
        vesta.clock.advance(gap)
        vesta.hub.fleet.age(vesta.clock())
        statuses.add(vesta.hub.fleet.hosts["gpu1"].status)
        vesta.post(host_id, make_post())
    assert statuses == {"up"}


def test_a_sender_that_posts_once_a_minute_is_not_down_between_two_posts(vesta: VestaHub) -> None:
    host_id = vesta.report("gpu1", make_post())
    for _ in range(3):
        vesta.clock.advance(61.5)
        assert vesta.states()["gpu1"]["status"] == "running"
        vesta.post(host_id, make_post())
    vesta.clock.advance(101)
    assert vesta.states()["gpu1"]["status"] == "down"


def test_when_a_sender_is_down_can_be_set(tmp_path: Path) -> None:
    vesta = VestaHub(tmp_path, down_after=300.0)
    host_id = vesta.report("gpu1", make_post())
    vesta.clock.advance(5)
    vesta.post(host_id, make_post())
    vesta.clock.advance(299)
    assert vesta.states()["gpu1"]["status"] == "running"
    vesta.clock.advance(2)
    assert vesta.states()["gpu1"]["status"] == "down"


def test_the_last_posts_are_told_in_order_of_time(vesta: VestaHub) -> None:
    host_id = str(vesta.add("gpu1")["id"])
    for temperature in (61, 62, 63, 64):
        vesta.post(host_id, make_post(1, temperature=temperature))
        vesta.clock.advance(1)
    for asked, expected in (("3", [62, 63, 64]), ("1", [64]), ("99", [61, 62, 63, 64]), ("0", [64]), ("x", [64])):
        for path in ("/states/gpu1/", "/states/"):
            data = vesta.states(f"{path}?fetch_num={asked}")["gpu1"]["data"]
            assert [one["gpu_data"]["gpu:0"]["temperature"] for one in data] == expected
    assert data[0]["timestamp"] == 20261115063800


def test_hosts_are_ordered_by_name_or_by_address(tmp_path: Path) -> None:
    vesta = VestaHub(tmp_path, sort_by="ip")
    for name, address in (("a", "192.0.2.10"), ("b", "192.0.2.9"), ("c", "")):
        vesta.address = address
        vesta.report(name, make_post())
    assert list(vesta.states()) == ["b", "a", "c"]


@pytest.mark.parametrize(("wanted", "text"), [("DMY", "15/11/2026"), ("MDY", "11/15/2026"), ("YMD", "2026/11/15")])
def test_times_are_written_as_the_site_writes_them(tmp_path: Path, wanted: str, text: str) -> None:
    vesta = VestaHub(tmp_path, timestamp_format=wanted)
    vesta.report("gpu1", make_post())
    assert vesta.states()["gpu1"]["data"][0]["timestamp_text"] == f"{text} 06:37:57"
    assert f"last update: {text} 06:37:57" in vesta.get("/?term=true&detail=true").text


@pytest.mark.parametrize(
    "path",
    ["/states/", "/states/gpu1/", "/states/gpu1/?term=true", "/?term=true", "/?term=true&detail=true", "/gpu_table"],
)
def test_who_may_not_look_sees_nothing(tmp_path: Path, path: str) -> None:
    vesta = VestaHub(tmp_path, is_readable=False)
    vesta.report("gpu1", make_post())
    assert vesta.get(path).json() == FORBIDDEN
    assert vesta.get(f"{path}{'&' if '?' in path else '?'}token={TOKEN}").json() == FORBIDDEN
    assert "GeForce" in vesta.get(path, headers={"Authorization": "Bearer viewer-token"}).text


def test_commands_are_for_those_whom_the_settings_name(tmp_path: Path) -> None:
    vesta = VestaHub(tmp_path, commands="admin")
    host_id = vesta.report("gpu1", make_post())
    vesta.post(host_id, make_post())
    for path in ("/states/", "/states/gpu1/?fetch_num=5", "/?term=true&detail=true"):
        assert "train" not in vesta.get(path).text
        assert "train" in vesta.get(path, headers={"Authorization": "Bearer admin-token"}).text


def test_secrets_on_command_lines_are_hidden(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, processes=[{"pid": "1", "name": "python x.py --api-key=hunter2", "user": "a"}]))
    assert "hunter2" not in vesta.get("/states/").text + vesta.get("/api/v1/fleet").text


def test_markup_in_names_is_not_taken_for_a_page(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, gpu_name="<script>alert(1)</script>"))
    for path in ("/states/", "/?term=true", "/?term=true&detail=true"):
        answer = vesta.get(path)
        assert "html" not in answer.headers["content-type"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_unknown_host_is_not_found(vesta: VestaHub) -> None:
    assert vesta.states("/states/nobody/") == NOT_FOUND
    assert vesta.states("/states/%2e%2e%2f%2e%2e%2fetc%2fpasswd") == NOT_FOUND


def test_other_methods_change_nothing(vesta: VestaHub) -> None:
    host_id = vesta.report("gpu1", make_post())
    assert vesta.get(f"/update/host/{host_id}?token={TOKEN}").json() == NOT_FOUND
    assert vesta.call("DELETE", "/states/gpu1/").json() == NOT_FOUND
    assert vesta.states()["gpu1"]["status"] == "running"


def test_an_agent_that_takes_over_counts_before_the_sender(vesta: VestaHub) -> None:
    post = make_post(1, uuid="GPU-0")
    host_id = vesta.report("gpu01", post)
    envelope = make_envelope("gpu01", gpus=[make_gpu(0)], collected_at=vesta.clock())
    vesta.hub.fleet.apply(envelope, via="push", now=vesta.clock())
    assert vesta.post(host_id, post) == OK
    (host,) = vesta.hub.fleet.ordered()
    assert host.via == "push"
    assert list(vesta.states()) == ["gpu01"]
    assert vesta.states()["gpu01"]["data"][0]["gpu_data"]["gpu:0"]["gpu_name"] == "NVIDIA A100-SXM4-80GB"


def test_hosts_of_agents_are_told_under_the_names_that_vesta_gave(vesta: VestaHub) -> None:
    vesta.hub.fleet.apply(
        make_envelope("gpu-01.lab", gpus=[make_gpu(0)], collected_at=vesta.clock()), via="push", now=vesta.clock()
    )
    assert list(vesta.states()) == ["gpu_01_lab"]
    for name in ("gpu_01_lab", "gpu-01.lab"):
        assert vesta.states(f"/states/{name}/")["gpu_01_lab"]["status"] == "running"


def test_processes_of_agents_are_named_by_their_program_as_nvidia_smi_does(vesta: VestaHub) -> None:
    gpu = make_gpu(0, processes=[make_process()])
    vesta.hub.fleet.apply(make_envelope("gpu01", gpus=[gpu], collected_at=vesta.clock()), via="push", now=vesta.clock())
    (process,) = vesta.states()["gpu01"]["data"][0]["gpu_data"]["gpu:0"]["processes"]
    assert (process["name"], process["user"]) == ("python", "alice")
    assert "└── python   " in vesta.get("/states/gpu01/?term=true").text


def test_a_silent_name_is_given_again_after_a_month(vesta: VestaHub) -> None:
    old = vesta.report("gpu1", make_post())
    vesta.clock.advance(31 * 86_400)
    assert vesta.add("gpu2")["register_name"] == "gpu2"
    assert vesta.add("gpu1")["register_name"] == "gpu1"
    assert vesta.post(old, make_post()) == UNKNOWN_ID


def test_there_are_not_more_hosts_than_there_is_room_for(vesta: VestaHub) -> None:
    vesta.register.most = 2
    assert [vesta.add("gpu")["status"] for _ in range(3)] == ["OK", "OK", "ERROR"]
    assert len(vesta.register) == 2


def test_json_of_names_is_ascii_as_it_was(vesta: VestaHub) -> None:
    vesta.report("größe", make_post())
    assert vesta.get("/states/").text.isascii()
    assert json.loads(vesta.get("/states/").text).keys() == {"größe"}
