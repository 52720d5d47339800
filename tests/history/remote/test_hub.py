"""A hub whose samples go to a store of the site: what hosts report comes back as history."""

import json
import urllib.request
from pathlib import Path

from fakes.hubs import HubProcess, running_hub
from fakes.prometheus import running_store
from fakes.reports import make_busy_gpu, make_envelope
from fakes.waiting import wait_until
from gpudeck.wire import encode


def push(hub: HubProcess, sequence: int) -> None:
    token = hub.token_file.read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack", "Content-Encoding": "zstd"}
    envelope = make_envelope(sequence=sequence, gpus=[make_busy_gpu()])
    request = urllib.request.Request(f"{hub.url}/api/v1/reports", encode(envelope), headers)
    urllib.request.urlopen(request, timeout=10).close()


def ask(hub: HubProcess, question: str) -> dict[str, object]:
    answer: dict[str, object] = json.loads(hub.get(question))
    return answer


def test_history_of_a_hub_comes_out_of_the_store(tmp_path: Path) -> None:
    with running_store("victoria-metrics") as server:
        config = tmp_path / "gpudeck.yaml"
        config.write_text(
            f"demo: never\nhistory: {{kind: prometheus, write_url: '{server.write_url}', "
            f"read_url: '{server.read_url}', every: 1s}}\n"
        )
        with running_hub(tmp_path, "--config", str(config)) as hub:
            push(hub, 1)

            def is_there() -> bool:
                server.show_all()
                answer = ask(hub, "/api/v1/history?fleet=1&metric=gpus_busy&start=-2m")
                return bool(answer["series"][0]["points"])  # type: ignore[index]

            wait_until(is_there, "the sample's way to the store and back", 60)
            heat = ask(hub, "/api/v1/history/heat?metric=temperature_celsius&start=-1h")
            runs = ask(hub, "/api/v1/runs")
            shown = ask(hub, "/api/v1/history?host=gpu01&metric=temperature_celsius&start=-2m")
    assert [row["name"] for row in heat["rows"]] == ["gpu01"]  # type: ignore[attr-defined,union-attr]
    assert [run["user"] for run in runs["runs"]] == ["alice"]  # type: ignore[attr-defined,union-attr]
    assert shown["series"][0]["label"] == "gpu01"  # type: ignore[index]
