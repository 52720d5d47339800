"""vesta's settings and database become hosts and history of a hub; what cannot be taken is told with its place."""

import bz2
import pickle
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fakes.vesta import VestaHub, make_post
from gpudeck.client.errors import Busy, NotFound
from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget, apply_steps, check_steps
from gpudeck.compat.settings import VestaSettings
from gpudeck.compat.vesta.import_database import read
from gpudeck.history.base import RunsQuery, SeriesQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import UsageError
from gpudeck.model.settings import TlsSettings
from gpudeck.settings import load_settings

BEGIN = datetime(2026, 11, 10, 12, 0, 0, tzinfo=UTC)
ADMIN = {"Authorization": "Bearer admin-token"}
HARM = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
_KINDS: dict[int, Any] = {404: NotFound, 503: Busy}


class FakeClient:
    """Asks a hub without a server, as its admin."""

    shown = "http://hub"

    def __init__(self, vesta: VestaHub) -> None:
        self._vesta = vesta

    def post(self, path: str, told: dict[str, Any]) -> bytes:
        return self._read(self._vesta.call("POST", path, content=msgspec.json.encode(told), headers=ADMIN))

    def get(self, path: str, query: dict[str, str]) -> bytes:
        return self._read(self._vesta.get(path, params=query, headers=ADMIN))

    @staticmethod
    def _read(answer: Any) -> bytes:
        if answer.status_code != 200:
            raise _KINDS[answer.status_code](answer.json()["error"]["message"])
        body: bytes = answer.content
        return body


def make_database(file: Path, rows: dict[str, list[tuple[Any, bytes]]], machines: list[tuple[Any, ...]]) -> Path:
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE machines (id TEXT, name TEXT, ip_address TEXT)")
        database.executemany("INSERT INTO machines VALUES (?, ?, ?)", machines)
        for name, stored in rows.items():
            table = '"' + name.replace('"', '""') + '"'
            database.execute(f"CREATE TABLE {table} (timestamp INTEGER, data BLOB)")
            database.executemany(f"INSERT INTO {table} VALUES (?, ?)", stored)
    database.close()
    return file


def stamp(at: datetime) -> int:
    return int(at.strftime("%Y%m%d%H%M%S"))


def pack(value: object) -> bytes:
    return bz2.compress(pickle.dumps(value))


def stored_rows(count: int = 30) -> list[tuple[int, bytes]]:
    return [
        (stamp(BEGIN + timedelta(minutes=number)), pack(make_post(2, temperature=40 + number)))
        for number in range(count)
    ]


@pytest.fixture
def here() -> ImportContext:
    return ImportContext((BEGIN + timedelta(days=1)).timestamp(), UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(tmp_path / "history.db", now=(BEGIN + timedelta(days=1)).timestamp)
    yield opened
    opened.close()


@pytest.fixture
def vesta(tmp_path: Path, store: EmbeddedStore) -> VestaHub:
    hub = VestaHub(tmp_path, history=store)
    hub.clock.now = (BEGIN + timedelta(days=1)).timestamp()
    return hub


def carry(plan: ImportPlan, vesta: VestaHub) -> list[tuple[str, str]]:
    return [(one.kind, one.outcome) for one in apply_steps(plan.steps, ImportTarget(FakeClient(vesta)))]  # type: ignore[arg-type]


def test_hosts_and_history_are_taken_once(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    machines = [("abc1", "gpu1", "192.0.2.1"), ("abc2", "größe", "192.0.2.2")]
    file = make_database(tmp_path / "gpu_states.db", {"gpu1": stored_rows(), "größe": stored_rows(5)}, machines)
    plan = read(file, here)
    assert plan.left == []
    assert [step.what for step in plan.steps[:2]] == [
        "take the sender of gpu1 (192.0.2.1)",
        "keep 30 samples of gpu1, 2026-11-10 12:00 to 2026-11-10 12:29",
    ]
    desk = ImportTarget(FakeClient(vesta))  # type: ignore[arg-type]
    assert {one.outcome for one in check_steps(plan.steps, desk)} == {"new"}
    assert len(vesta.register) == 0
    assert carry(plan, vesta) == [("host", "new"), ("history", "new")] * 2
    store.flush()
    assert carry(read(file, here), vesta) == [("host", "there"), ("history", "there")] * 2

    start = BEGIN.timestamp()
    answer = store.series(SeriesQuery("temperature_celsius", start - 60, start + 1800, 500, host="gpu1", by="gpu"))
    assert [series.gpu for series in answer.series] == ["GPU-0", "GPU-1"]
    values = {round(point[1]) for point in answer.series[0].points if point[1] is not None}
    assert values == set(range(40, 70))
    (run,) = store.runs(RunsQuery(start=start, end=start + 3600, host="gpu1")).runs
    assert (run.user, run.pid, run.gpus) == ("alice", 4711, ["GPU-0", "GPU-1"])


def test_what_the_old_server_stored_since_is_added(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore
) -> None:
    machines = [("abc1", "gpu1", "")]
    first = make_database(tmp_path / "a.db", {"gpu1": stored_rows(10)}, machines)
    later = make_database(tmp_path / "b.db", {"gpu1": stored_rows(20)}, machines)
    carry(read(first, here), vesta)
    store.flush()
    assert carry(read(later, here), vesta) == [("host", "there"), ("history", "new")]
    store.flush()
    start = BEGIN.timestamp()
    answer = store.series(SeriesQuery("temperature_celsius", start - 60, start + 1800, 500, host="gpu1", by="gpu"))
    values = {round(point[1]) for point in answer.series[0].points if point[1] is not None}
    assert values == set(range(40, 60))


def test_an_imported_sender_goes_on_with_its_id(tmp_path: Path, here: ImportContext, vesta: VestaHub) -> None:
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(5)}, [("abc1", "gpu1", "192.0.2.1")])
    carry(read(file, here), vesta)
    assert vesta.states()["gpu1"]["ip_address"] == "192.0.2.1"
    assert vesta.post("abc1", make_post())["status"] == "OK"
    assert vesta.states()["gpu1"]["status"] == "running"


def test_every_row_that_cannot_be_taken_is_told_and_hides_no_other(tmp_path: Path, here: ImportContext) -> None:
    good = stored_rows(3)
    bad = [
        (5, pack(make_post())),
        ("x", pack(make_post())),
        (20261399000000, pack(make_post())),
        (stamp(BEGIN + timedelta(days=9)), pack(make_post())),
        (stamp(BEGIN), b"junk"),
        (stamp(BEGIN), None),
        (stamp(BEGIN), b"x" * (2 << 20)),
        (stamp(BEGIN), pack(["junk"])),
        (stamp(BEGIN), bz2.compress(HARM)),
        (stamp(BEGIN), bz2.compress(b"\0" * 50_000_000)),
    ]
    machines = [
        ("abc1", "gpu1", "192.0.2.1"),
        ("NOT-HEX", "gpu2", ""),
        ("abc3", "", ""),
        ("abc4", None, None),
        ("abc5", "no_table", ""),
        ("abc1", "gpu1", ""),
    ]
    file = make_database(tmp_path / "x.db", {"gpu1": [*good, *bad]}, machines)  # type: ignore[list-item]
    plan = read(file, here)
    assert [step.what for step in plan.steps] == [
        "take the sender of gpu1 (192.0.2.1)",
        "keep 3 samples of gpu1, 2026-11-10 12:00 to 2026-11-10 12:02",
        "take the sender of no_table (no address)",
    ]
    told = [f"{left.place}: {left.reason}" for left in plan.left]
    assert len([line for line in told if line.startswith("gpu1, row ")]) == len(bad)
    assert "machines, row 2: 'NOT-HEX' is no id of a sender" in told
    assert "machines, row 6: gpu1 is listed twice" in told
    assert "machines, no_table: there is no table of what was stored of it" in told
    assert any("does more than hold values" in line for line in told)


def test_many_bad_rows_are_counted(tmp_path: Path, here: ImportContext) -> None:
    file = make_database(tmp_path / "x.db", {"gpu1": [(5, b"")] * 500}, [("abc1", "gpu1", "")])
    plan = read(file, here)
    assert len(plan.left) == 21
    assert plan.left[-1].reason == "480 more rows cannot be taken"


def test_values_that_json_does_not_know_end_no_import(tmp_path: Path, here: ImportContext, vesta: VestaHub) -> None:
    strange = make_post(1, gpu_name="\udcff", temperature=float("nan"), used_memory=10**400) | {"\udcff": {}}
    file = make_database(tmp_path / "x.db", {"gpu1": [(stamp(BEGIN), pack(strange))]}, [("abc1", "gpu1", "")])
    assert carry(read(file, here), vesta) == [("host", "new"), ("history", "new")]


@pytest.mark.parametrize("newest", [{}, make_post(1, total_memory=None)])
def test_a_newest_row_that_tells_no_memory_is_not_taken_again(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, store: EmbeddedStore, newest: dict[str, Any]
) -> None:
    rows = [*stored_rows(3), (stamp(BEGIN + timedelta(minutes=9)), pack(newest))]
    file = make_database(tmp_path / "x.db", {"gpu1": rows}, [("abc1", "gpu1", "")])
    carry(read(file, here), vesta)
    store.flush()
    assert carry(read(file, here), vesta) == [("host", "there"), ("history", "there")]


@pytest.mark.parametrize("name", ["../../etc", "<script>", "a b"])
def test_a_name_that_no_sender_gets_here_is_told_before_anything_is_done(
    tmp_path: Path, here: ImportContext, name: str
) -> None:
    plan = read(make_database(tmp_path / "x.db", {}, [("abc1", name, "")]), here)
    assert plan.steps == []
    assert plan.left[0].reason == f"'{name}' is no name that a sender gets here: it registers anew when it posts"


@pytest.mark.parametrize("name", ["x'; DROP TABLE machines;--", 'a"b', "sqlite_master", "1gpu", "a b", "machines"])
def test_sql_in_names_is_a_name(tmp_path: Path, here: ImportContext, vesta: VestaHub, name: str) -> None:
    rows = {} if name in {"sqlite_master", "machines"} else {name: stored_rows(2)}
    file = make_database(tmp_path / "x.db", rows, [("abc1", name, ""), ("abc2", "gpu2", "")])
    carry(read(file, here), vesta)
    assert vesta.register.get("abc2") is not None
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM machines").fetchone() == (2,)
    database.close()


def test_a_view_in_place_of_a_table_is_not_read(tmp_path: Path, here: ImportContext) -> None:
    file = make_database(tmp_path / "x.db", {}, [("abc1", "gpu1", "")])
    with sqlite3.connect(file) as database:
        database.execute(
            "CREATE VIEW gpu1 AS WITH RECURSIVE t(timestamp, data) AS (SELECT 1, x'' UNION ALL SELECT 1, x'' FROM t) "
            "SELECT * FROM t"
        )
    database.close()
    assert [left.reason for left in read(file, here).left] == ["there is no table of what was stored of it"]


def test_times_are_those_of_the_old_servers_clock(tmp_path: Path) -> None:
    here = ImportContext((BEGIN + timedelta(days=1)).timestamp(), timezone(timedelta(hours=9)))
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(1)}, [("abc1", "gpu1", "")])
    assert read(file, here).steps[1].times[0] == (BEGIN - timedelta(hours=9)).timestamp()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [b"", b"junk", b"\xff\xfe", b"- a\n- b\n", b"a: b\n", b"SQLite format 3\0junk", b"{" * 5000, b"a: !!python/x"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, here: ImportContext, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(UsageError):
        read(file, here)


def test_a_database_of_something_else_is_refused(tmp_path: Path, here: ImportContext) -> None:
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE a (b)")
    database.close()
    with pytest.raises(UsageError, match="no table `machines`"):
        read(tmp_path / "x.db", here)


def test_settings_become_a_piece_of_ours(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(
        "IP: 192.0.2.1\nPORT_NUM: 8080\nTOKEN: hunter2\nBIND_HOST: 0.0.0.0\nVALID_NETWORK: 192.0.2.0/24\n"
        "DB_NAME: gpu_states.db\nDB_DIR: data\nTIMESTAMP_FORMAT: YMD\nPAGE_PER_HOST_NUM: 8\nTERM_WIDTH: 100\n"
        "SORT_BY: ip\nSLACK_WEBHOOK: https://hooks.example/secret\nDOWN_TH: 90\nSAVE_INTERVAL: 60\n"
    )
    plan = read(file, here)
    assert yaml.safe_load(plan.settings) == {
        "compat": {
            "vesta": {
                "token": "…",
                "read_from": ["192.0.2.0/24"],
                "down_after": "90s",
                "timestamp_format": "YMD",
                "sort_by": "ip",
                "term_width": 100,
            }
        },
        "listen": ":8080",
        "read": "open",
        "history": {"every": "60s"},
        "notify": {
            "channels": {
                "slack": {
                    "url_file": "/etc/gpudeck/slack-webhook.url",
                    "events": ["hub_started", "host_down", "host_up", "host_seen"],
                }
            }
        },
    }
    assert plan.left == []
    assert any("gpudeck import vesta data/gpu_states.db" in note for note in plan.notes)
    told = plan.settings + "".join(plan.notes)
    assert "hunter2" not in told
    assert "hooks.example" not in told


def test_settings_that_make_no_sense_are_told_with_their_line(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text("TOKEN: x\nPORT_NUM: many\nSORT_BY: colour\nDOWN_TH: -1\nVALID_NETWORK: lan\nUNHEARD_OF: 1\n")
    plan = read(file, here)
    assert sorted(left.place for left in plan.left) == [f"line {number}" for number in range(2, 7)]
    assert yaml.safe_load(plan.settings)["compat"] == {"vesta": {"token": "…", "read_from": ["127.0.0.1"]}}


ALL_KEYS = """
IP: 192.0.2.1
PORT_NUM: 8080
TOKEN: hunter2
SERVER_NAME: lab
BIND_HOST: 0.0.0.0
SSL_CERT: /etc/ssl/lab.pem
SSL_KEY: /etc/ssl/lab.key
PAGE_PER_HOST_NUM: 8
NVIDIA_SMI_PARSE_VER: 2
MAIN_PAGE_TITLE: The lab
MAIN_PAGE_DESCRIPTION: our GPUs
TABLE_PAGE_TITLE: Table
TABLE_PAGE_DESCRIPTION: our GPUs
TIMESTAMP_FORMAT: ymd
SORT_BY: ip_address
SAVE_INTERVAL: 0
SERVER_SLEEP_TIME: 5
WS_RECEIVE_TIMEOUT: 1
SLACK_BOT_SLEEP_TIME: 1
SLACK_WEBHOOK: https://hooks.example/secret
SLACK_BOT_TOKEN: xoxb-secret
SLACK_BOT_POST_CHANNEL: C012AB3CD
VALID_NETWORK: 127.0.0.1
SCHEDULE_FUNCTION:
  - 'schedule.every().day.at("07:30").do(self.send_hosts_statuses, "REPORT")'
  - schedule.every(2).hours.do(self.send_hosts_statuses)
  - schedule.every().monday.at('09:00').do(self.send_server_status)
  - __import__("os").system("true")
SERVER_UP_MSG: "up at {ip}:{port}"
REGISTER_UPLINK_MSG: "new: `{}`"
RE_UPLINK_MSG: "back: `{host_name}`"
HOST_DOWN_MSG: "lost `{}` for {} sec"
SERVER_INFO_MSG: hello
SLACKBOT_MEMBER_JOINED_CHANNEL_MSG: hello
KEYWORD_CMD_PREFIX: "!"
KEYWORD_PRINT_HOSTS: Machines
KEYWORD_PRINT_ALL_HOSTS: ALL
KEYWORD_PRINT_ALL_HOSTS_CMD: ALL_cmd
KEYWORD_PRINT_ALL_HOSTS_DETAIL: ""
KEYWORD_PRINT_HOST_INFO: WHERE
KEYWORD_PRINT_HELP: help me
QUIET: false
DEBUG: false
"""


def test_every_setting_of_vesta_is_taken_or_named_in_one_line(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(ALL_KEYS)
    plan = read(file, here)
    assert plan.left == []
    named = [left.reason.partition(":")[0] for left in plan.over]
    assert sorted(named) == sorted(
        (
            *("IP", "SERVER_NAME", "PAGE_PER_HOST_NUM", "NVIDIA_SMI_PARSE_VER", "MAIN_PAGE_TITLE"),
            *("MAIN_PAGE_DESCRIPTION", "TABLE_PAGE_TITLE", "TABLE_PAGE_DESCRIPTION", "SERVER_SLEEP_TIME"),
            *("WS_RECEIVE_TIMEOUT", "SLACK_BOT_SLEEP_TIME", "SERVER_INFO_MSG"),
            *("SLACKBOT_MEMBER_JOINED_CHANNEL_MSG", "KEYWORD_CMD_PREFIX", "KEYWORD_PRINT_HELP", "QUIET", "DEBUG"),
        )
    )
    config = tmp_path / "gpudeck.yaml"
    config.write_text(plan.settings.replace("…", "0000"))
    settings, _ = load_settings(config)
    assert settings.compat.vesta == VestaSettings("0000", ["127.0.0.1/32"], timestamp_format="YMD", sort_by="ip")
    assert settings.history == HistorySettings()
    assert settings.tls == TlsSettings("/etc/ssl/lab.pem", "/etc/ssl/lab.key")
    assert settings.notify.channels["slack"].texts == {
        "hub_started": "up at 192.0.2.1:8080",
        "host_seen": "new: `{host}`",
        "host_up": "back: `{host}`",
        "host_down": "lost `{host}` for 60 sec",
    }
    assert settings.chat.slack is not None
    assert (settings.chat.slack.channel, settings.chat.slack.keywords) == ("C012AB3CD", {"machines": "hosts"})
    assert sum("For a crontab, the scheduled report" in note for note in plan.notes) == 1
    assert not {"hunter2", "secret"} & set(re.findall(r"\w+", plan.settings + str(plan.notes) + str(plan.over)))


def test_placeholders_of_the_example_are_no_secrets_of_slack(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(
        'TOKEN: "0000"\nSLACK_WEBHOOK: "https://hooks.slack.com/services/<your web hook>"\n'
        'SLACK_BOT_TOKEN: your BOT token\nSLACK_BOT_POST_CHANNEL: your channel\nHOST_DOWN_MSG: "{} {}"\n'
        "SCHEDULE_FUNCTION: ['schedule.every().day.at(\"00:00\").do(self.send_hosts_statuses)']\n"
    )
    plan = read(file, here)
    assert (plan.left, len(plan.over)) == ([], 5)
    assert yaml.safe_load(plan.settings).keys() == {"compat", "listen", "read"}


@pytest.mark.parametrize(("told", "every"), [("0", None), ("60", "60s"), ("3600", "300s"), ("0.5", "1s")])
def test_how_often_is_saved(tmp_path: Path, here: ImportContext, told: str, every: str | None) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(f"SAVE_INTERVAL: {told}\n")
    plan = read(file, here)
    assert plan.left == []
    assert yaml.safe_load(plan.settings).get("history", {}).get("every") == every


def test_what_is_not_set_is_as_vesta_has_it(tmp_path: Path) -> None:
    settings = VestaSettings("0000")
    assert (settings.timestamp_format, settings.sort_by, settings.term_width) == ("MDY", "ip", 80)
    assert settings.down_after == 60.0


@pytest.mark.parametrize(
    ("told", "networks"),
    [
        ("127.0.0.1", ["127.0.0.1/32"]),
        (r"^192\.168\.", ["192.168.0.0/16"]),
        ("192.168.1.", ["192.168.1.0/24"]),
        (r"10\.0\.0\.\d{1,3}$", ["10.0.0.0/24"]),
        ("10.0.0.*", ["10.0.0.0/24"]),
        ("(127.0.0.1|192.168.[0-9]+.[0-9]+)", ["127.0.0.1/32", "192.168.0.0/16"]),
        ("192.0.2.0/24, ::1", ["192.0.2.0/24", "::1/128"]),
        (["192.0.2.0/24", "^10[.]"], ["10.0.0.0/8", "192.0.2.0/24"]),
        (".*", None),
        ("", None),
        (r"\d+\.\d+\.\d+\.\d+", None),
    ],
)
def test_valid_network_restricts_readers(
    tmp_path: Path, here: ImportContext, told: str | list[str], networks: list[str] | None
) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(yaml.safe_dump({"TOKEN": "x", "VALID_NETWORK": told}))
    plan = read(file, here)
    assert yaml.safe_load(plan.settings)["compat"]["vesta"].get("read_from") == networks
    assert (plan.left, any("read_from restricts" in note for note in plan.notes)) == ([], networks is not None)


@pytest.mark.parametrize(
    "told",
    [r"\.1$", "lan", r"^(?!10\.)", "((a?){99}){99}", "(1?)*", "[", "1" * 600, "1.2.3.4.5", r"172\.(1[6-9]|2\d)\..*"],
)
def test_a_valid_network_that_is_no_networks_lets_this_machine_read_and_says_so(
    tmp_path: Path, here: ImportContext, told: str
) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text(yaml.safe_dump({"TOKEN": "x", "VALID_NETWORK": told}))
    plan = read(file, here)
    assert yaml.safe_load(plan.settings)["compat"]["vesta"]["read_from"] == ["127.0.0.1"]
    assert plan.left[0].reason.startswith("VALID_NETWORK has to be networks such as 192.0.2.0/24")


def test_without_a_valid_network_this_machine_reads_as_there(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text("TOKEN: x\n")
    assert yaml.safe_load(read(file, here).settings)["compat"]["vesta"]["read_from"] == ["127.0.0.1"]


def test_an_empty_token_takes_nobodys_post(tmp_path: Path, here: ImportContext) -> None:
    file = tmp_path / "local_settings.yaml"
    file.write_text("PORT_NUM: 8080\nTOKEN: ''\n")
    plan = read(file, here)
    assert [(left.place, left.reason.split(",")[0]) for left in plan.left] == [("line 2", "TOKEN is empty")]
    assert any("the one that you give to the senders" in note for note in plan.notes)


def test_yaml_that_grows_when_it_is_written_out_is_not_written_out(tmp_path: Path, here: ImportContext) -> None:
    grown = "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise("abcdefghijkl")
    )
    file = tmp_path / "local_settings.yaml"
    file.write_text(f"a: &a [x]\n{grown}VALID_NETWORK: *l\nDB_DIR: *l\nPORT_NUM: *l\n")
    plan = read(file, here)
    assert {left.reason.split()[0] for left in plan.left} >= {"VALID_NETWORK", "PORT_NUM"}


def test_only_admins_import(vesta: VestaHub) -> None:
    path = "/api/v1/compat/vesta/import"
    assert vesta.call("POST", path, content=b"{}").status_code == 401
    for role in ("viewer", "user", "agent"):
        headers = {"Authorization": f"Bearer {role}-token"}
        assert vesta.call("POST", path, content=b"{}", headers=headers).status_code == 403
    assert vesta.call("GET", path, headers=ADMIN).status_code == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"junk", 400),
        (b'{"id": "XYZ", "name": "a"}', 400),
        (b"[" * 50_000, 400),
        (b'{"id": "abc", "name": "a", "interval": 0, "rows": []}', 400),
        (b" " * (2 << 20), 413),
    ],
)
def test_imports_that_make_no_sense_are_refused(vesta: VestaHub, body: bytes, status: int) -> None:
    answer = vesta.call("POST", "/api/v1/compat/vesta/import", content=body, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"].keys()) == (status, {"code", "message", "hint"})


def test_the_importer_waits_for_a_history_that_is_busy(
    tmp_path: Path, here: ImportContext, vesta: VestaHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, True])
    vesta.has_room = lambda: next(answers, True)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    file = make_database(tmp_path / "x.db", {"gpu1": stored_rows(5)}, [("abc1", "gpu1", "")])
    assert carry(read(file, here), vesta) == [("host", "new"), ("history", "new")]
    assert len(waits) == 2
