"""Which hosts may be on the hub's own machine."""

import asyncio

import pytest

from gpudeck.app.plan import make_poll_methods
from gpudeck.discovery.managed import ORIGIN
from gpudeck.discovery.registry import DiscoverySettings
from gpudeck.discovery.static import HostEntry, read_option
from gpudeck.model.errors import PluginError, Refused
from gpudeck.model.target import Target, Via
from gpudeck.settings import Settings

WAYS: tuple[Via, ...] = ("pull", "scrape", "ssh", "gpumonitor", "gpu-monitor")


def failure(target: Target, *allowed: str) -> PluginError:
    """Why a host cannot be read. Nobody listens on port 1."""

    async def read() -> None:
        settings = Settings(discovery=DiscoverySettings(allow_addresses=list(allowed)))
        source = make_poll_methods(settings)[target.via].make(target)
        try:
            await source.read(0.0)
        finally:
            await source.close()

    with pytest.raises(PluginError) as caught:
        asyncio.run(read())
    return caught.value


@pytest.mark.parametrize("via", WAYS)
def test_added_and_discovered_hosts_are_not_read_at_local_addresses(via: Via) -> None:
    entry = HostEntry("gpu01", via=via, address="127.0.0.1", port=1)
    (target,) = entry.targets(ORIGIN)
    error = failure(target)
    assert isinstance(error, Refused)
    assert str(error).startswith("gpu01 has the loopback address 127.0.0.1,")
    assert "efuse" in str(failure(target, "127.0.0.0/8"))


@pytest.mark.parametrize("via", WAYS)
def test_hosts_that_the_operator_names_are_read_anywhere(via: Via) -> None:
    (static,) = HostEntry("gpu01", via=via, address="127.0.0.1", port=1).targets("a.yaml", is_operators=True)
    (option,) = read_option("127.0.0.1:1", "--ssh", via)
    for target in (static, option):
        assert "loopback" not in str(failure(target))


def test_a_jump_host_that_an_added_host_brings_along_is_checked_too() -> None:
    target = Target(name="gpu01", via="ssh", address="10.255.255.1", jump="127.0.0.1:1")
    assert "127.0.0.1 has the loopback address" in str(failure(target))
