"""What `gpudeck hosts test` says of a host that its hub does not read by itself."""

from typing import Any

import msgspec
import pytest

from fakes.fleets import make
from gpudeck.model.target import Target
from gpudeck.model.view import Host, HostList
from gpudeck.ops.host_test import Step, try_host
from sources.scrape_pages import send, web_server


def steps_of(**host: Any) -> list[Step]:
    """The steps for a host of which the hub answers this."""
    body = msgspec.json.encode(HostList([make(Host, name="gpu01", **host)]))
    with web_server(lambda handler: send(handler, body, Content_Type="application/json")) as port:
        return list(try_host(Target(name="gpu01", via="push"), {}, f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("problems", "told"),
    [
        ([], "no report yet. On gpu01, run the line that gpudeck hosts add printed, or gpudeck doctor."),
        (["its agent runs elsewhere"], "its agent runs elsewhere"),
    ],
)
def test_host_that_never_reported_says_what_the_hub_knows_of_it(problems: list[str], told: str) -> None:
    assert steps_of(status="never_seen", problems=problems)[-1] == Step("report", False, told)
