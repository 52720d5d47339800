"""What `gpudeck hosts test` says of a host that its hub does not read by itself."""

from typing import Any

import msgspec
import pytest

from fakes.fleets import make
from gpudeck.app.host_test import Step, try_host
from gpudeck.model.target import Target
from gpudeck.model.view import Host, HostList
from gpudeck.settings import Settings
from sources.scrape_pages import send, web_server


def steps_of(**host: Any) -> list[Step]:
    """The steps for a host of which the hub answers this."""
    body = msgspec.json.encode(HostList([make(Host, name="gpu01", **host)]))
    with web_server(lambda handler: send(handler, body, Content_Type="application/json")) as port:
        return list(try_host(Settings(), Target(name="gpu01", via="push"), f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("problems", "told"),
    [
        ([], "has not reported yet: is its agent running, with this hub's address and its token?"),
        (["its agent runs elsewhere"], "its agent runs elsewhere"),
    ],
)
def test_host_that_never_reported_says_what_the_hub_knows_of_it(problems: list[str], told: str) -> None:
    assert steps_of(status="never", problems=problems)[-1] == Step("report", False, told)
