"""What stands in the page before it asks for anything: never more than its reader may see, and never a script."""

import json
from typing import Any

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.api.login import Me
from gpudeck.api.page import MAX_BYTES, embed_initial_state
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import EVERYTHING, HIDDEN, Visibility
from gpudeck.wire import encode

HTML = b"<!doctype html><body><div></div></body></html>"
ADA = Me("account", "viewer", "ada", [], True, False, False, False, True, False, False)


def make_hub(*envelopes: Any) -> Hub:
    hub = Hub(now=FakeClock())
    for envelope in envelopes:
        hub.ingest.take(encode(envelope), "application/msgpack", "zstd")
    hub.stream.tick()
    return hub


def look(hub: Hub, visibility: Visibility | None = EVERYTHING, me: Me = ADA) -> dict[str, Any]:
    html = embed_initial_state(HTML, me, hub, visibility).decode()
    text = html.partition('<template id="first-look">')[2].partition("</template>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_is_the_fleet_as_the_api_tells_it() -> None:
    hub = make_hub(make_envelope("gpu01"), make_envelope("gpu02"))
    told = json.loads(hub.stream.document())
    fleet = look(hub)["fleet"]
    assert fleet.pop("is_whole") is True
    assert fleet == told


def test_it_says_who_looks() -> None:
    assert look(make_hub())["me"]["name"] == "ada"


def test_who_may_not_see_the_fleet_gets_none_of_it() -> None:
    assert look(make_hub(make_envelope("gpu01")), visibility=None)["fleet"] is None


def test_command_lines_are_shown_as_everywhere() -> None:
    hub = make_hub(make_envelope("gpu01", gpus=[make_busy_gpu()]))
    process = look(hub, Visibility("none"))["fleet"]["hosts"][0]["gpus"][0]["processes"][0]
    assert (process["command"], process["reasons"]["command"]) == (None, HIDDEN)


def test_a_large_fleet_is_cut_and_keeps_its_totals_and_what_is_free() -> None:
    busy = [make_envelope(f"busy{i:03}", gpus=[make_busy_gpu(n) for n in range(8)]) for i in range(100)]
    fleet = look(make_hub(*busy, make_envelope("zfree", gpus=[make_gpu()])))["fleet"]
    assert fleet["totals"]["hosts"] == 101
    assert fleet["hosts"][0]["name"] == "zfree"
    assert fleet["is_whole"] is False
    assert len(json.dumps(fleet)) < 2 * MAX_BYTES


def test_no_name_can_become_part_of_the_page() -> None:
    hub = make_hub()
    name = "</template><script>alert(1)</script>&lt;"
    hub.fleet.set_problems("test", [name])
    html = embed_initial_state(HTML, ADA, hub, EVERYTHING)
    assert html.count(b"<script") == 0
    assert html.count(b"</template>") == 1
    assert look(hub)["fleet"]["problems"] == [name]
