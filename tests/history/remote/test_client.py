"""Questions to a store that misbehaves, and names that want to be part of the question."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.history.remote.client import PromClient, PromReader
from gpudeck.history.remote.promql import any_of, quoted, select
from gpudeck.history.settings import HistorySettings
from gpudeck.history.time_range import Grid
from gpudeck.model.errors import Temporary
from history.remote.servers import Answer, in_turn, scripted_server

GRID = Grid(1_790_000_000, 10, 3)
EMPTY: Answer = (200, {}, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}')


def read(answer: Answer, path: str = "") -> list[object]:
    with scripted_server(in_turn(answer)) as server:
        client = PromClient(server.url + path, HistorySettings(), seconds=5.0)
        return [PromReader(client).values("up", GRID), *server.asked]


def test_question_goes_below_the_path_of_a_cluster() -> None:
    found, asked = read(EMPTY, "/select/0/prometheus/")
    assert found == []
    assert asked.path == "/select/0/prometheus/api/v1/query_range"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            (503, {}, b'{"status":"error","errorType":"timeout","error":"query timed out in \\"x\\""}'),
            "answers 503.",
        ),
        (
            (
                422,
                {"Content-Type": "application/json"},
                b'{"status":"error","error":"query processing would load too many samples"}',
            ),
            "answers 422 (application/json).",
        ),
        ((404, {"Content-Type": "text/html; x"}, b"<html><title>hunter2</title></html>"), "answers 404 (text/html)."),
        ((302, {"Location": "http://elsewhere/"}, b""), "answers 302"),
        ((200, {}, b"<html>log in</html>"), "does not answer as a Prometheus would"),
        ((200, {}, b'{"data": {"result": [{"metric": {}, "values": [["x", 3]]}]}}'), "does not answer"),
        ((200, {}, b'{"data": {"result": [{"metric": {}, "values": [[1789996409.999, "many"]]}]}}'), "does not answer"),
        ((500, {}, b"x" * 100_000), "answers 500."),
    ],
)
def test_store_in_trouble_is_temporary_and_its_words_are_not_told(answer: Answer, told: str) -> None:
    with pytest.raises(Temporary) as trouble:
        read(answer)
    assert told in str(trouble.value)
    assert len(str(trouble.value)) < 200


def test_answer_that_is_too_large_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.history.remote.client.MAX_BYTES", 1000)
    with pytest.raises(Temporary, match="more than"):
        read((200, {}, b" " * 200_000))


def test_store_that_is_not_there_is_temporary() -> None:
    with scripted_server(in_turn(EMPTY)) as server:
        url = server.url
    with pytest.raises(Temporary, match="refused"):
        PromReader(PromClient(url, HistorySettings(), seconds=5.0)).values("up", GRID)


def test_values_are_put_into_the_steps_that_they_are_of() -> None:
    rows = b'[{"metric": {"gpu": "a"}, "values": [[1789996409.999, "1.5"], [1789996429.999, "2"], [99, "7"]]}]'
    ((labels, values),) = read((200, {}, b'{"data": {"result": ' + rows + b"}}"))[0]  # type: ignore[misc]
    assert labels == {"gpu": "a"}
    assert values == pytest.approx([1.5, float("nan"), 2], nan_ok=True)


def test_a_long_answer_is_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.history.remote.client.PIECE_BYTES", 100)
    decoded: list[int] = []
    decode = PromReader.decode

    def count(reader: PromReader, body: bytes) -> object:
        decoded.append(len(body))
        return decode(reader, body)

    monkeypatch.setattr(PromReader, "decode", count)
    names = [f"{number}" for number in range(20)] + [']},{"metric":{}', '"},{"', "a},{b", "", "\\", '\\"},{\\"']
    labels = [{"gpu": name, "host": name} for name in names]
    rows = [{"metric": each, "values": [[1789996409.999, str(at)]]} for at, each in enumerate(labels)]
    whole = {"status": "success", "data": {"resultType": "matrix", "result": rows}, "warnings": ["x"]}
    found = read((200, {}, msgspec.json.encode(whole)))[0]
    assert [(each, values[0]) for each, values in found] == [(each, at) for at, each in enumerate(labels)]  # type: ignore[misc, attr-defined]
    assert len(decoded) > 10
    assert max(decoded) < 400


def test_a_row_of_more_steps_than_were_asked_for_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudeck.history.remote.client.MAX_ROW_BYTES", 100)
    row = b'{"metric":{},"values":[' + b",".join([b'[1789996409.999,"1"]'] * 10) + b"]}"
    with pytest.raises(Temporary, match="does not answer as a Prometheus would"):
        read((200, {}, b'{"data":{"result":[' + row + b"]}}"))


@given(st.text())
def test_text_never_leaves_its_quotes(text: str) -> None:
    shown = quoted(text)
    inside = shown[1:-1]
    assert shown[0] == shown[-1] == '"'
    assert "\n" not in inside
    unescaped = inside.replace("\\\\", "")
    assert '"' not in unescaped.replace('\\"', "")
    assert not unescaped.endswith("\\")


def test_selectors_want_what_the_hub_wrote() -> None:
    assert select("x", {"gpu": 'a"b'}) == 'x{host_id!="",gpu="a\\"b"}'
    assert any_of("gpu", ["a.b", "c|d"]) == r'gpu=~"a\\.b|c\\|d"'
