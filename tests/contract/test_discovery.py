"""What every discovery provider keeps to. A new one is added to `MAKERS`, with a world that it can read."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.servers import json_server
from gpudeck.discovery.consul import ConsulSettings
from gpudeck.discovery.host_names import is_host_name
from gpudeck.discovery.inputs import Provider
from gpudeck.discovery.prometheus_sd import FileSdSettings, HttpSdSettings
from gpudeck.discovery.registry import PROVIDERS, DiscoverySettings, make_providers
from gpudeck.discovery.static import HostEntry, HostsFileSettings
from gpudeck.model.errors import PluginError
from gpudeck.model.target import WAYS, Target

GROUPS = b'[{"targets": ["gpu01:9400", "gpu02"], "labels": {"rack": "b3"}}]'
INSTANCES = (
    b'[{"Node": {"Node": "gpu01", "Address": "10.0.0.1"}, "Service": {"Port": 7080}}, {"Node": {"Node": "gpu02"}}]'
)

World = Callable[[bytes], AbstractAsyncContextManager[Provider]]


@contextlib.asynccontextmanager
async def made(settings: DiscoverySettings) -> AsyncIterator[Provider]:
    (provider,) = make_providers([], settings)
    try:
        yield provider
    finally:
        await provider.close()


@contextlib.asynccontextmanager
async def hosts_file(content: bytes) -> AsyncIterator[Provider]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hosts.txt"
        file.write_bytes(content)
        async with made(DiscoverySettings(hosts_files=[HostsFileSettings(str(file))])) as provider:
            yield provider


@contextlib.asynccontextmanager
async def file_sd(content: bytes) -> AsyncIterator[Provider]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.yml"
        file.write_bytes(content)
        async with made(DiscoverySettings(file_sd=[FileSdSettings([f"{folder}/*.yml"])])) as provider:
            yield provider


@contextlib.asynccontextmanager
async def http_sd(content: bytes) -> AsyncIterator[Provider]:
    async with json_server(content) as url, made(DiscoverySettings(http_sd=[HttpSdSettings(url)])) as provider:
        yield provider


@contextlib.asynccontextmanager
async def consul(content: bytes) -> AsyncIterator[Provider]:
    async with (
        json_server(content, "X-Consul-Index: 1") as url,
        made(DiscoverySettings(consul=[ConsulSettings("gpu", url)])) as provider,
    ):
        yield provider


MAKERS: dict[str, tuple[World, bytes]] = {
    "hosts_files": (hosts_file, b"gpu01:22\ngpu02 rack=b3\n"),
    "file_sd": (file_sd, GROUPS),
    "http_sd": (http_sd, GROUPS),
    "consul": (consul, INSTANCES),
}
GONE: dict[str, DiscoverySettings] = {
    "hosts_files": DiscoverySettings(hosts_files=[HostsFileSettings("/nowhere/hosts.txt")]),
    "file_sd": DiscoverySettings(file_sd=[FileSdSettings(["/nowhere/*.yml"])]),
    "http_sd": DiscoverySettings(http_sd=[HttpSdSettings("http://127.0.0.1:1/")]),
    "consul": DiscoverySettings(consul=[ConsulSettings("gpu", "http://127.0.0.1:1")]),
}
each = pytest.mark.parametrize("name", MAKERS)


def find(world: World, content: bytes) -> tuple[Provider, list[Target]]:
    async def finding() -> tuple[Provider, list[Target]]:
        async with world(content) as provider:
            return provider, await provider.find()

    return asyncio.run(finding())


def test_every_provider_is_here() -> None:
    assert set(PROVIDERS) == set(DiscoverySettings.__struct_fields__) - {"allow_addresses"}
    # Those of plugins are tested in tests/plugins.
    assert set(MAKERS) == set(GONE) == set(PROVIDERS) - {"plugins"}


@each
def test_hosts_are_found_with_valid_names_and_their_origin(name: str) -> None:
    provider, targets = find(*MAKERS[name])
    assert [target.name for target in targets] == ["gpu01", "gpu02"]
    assert provider.origin
    assert {target.origin for target in targets} == {provider.origin}
    assert {target.via for target in targets} <= set(WAYS)
    assert provider.pause >= 0
    assert list(provider.problems) == []


@each
def test_source_that_is_gone_is_an_error_for_the_admin(name: str) -> None:
    async def finding() -> str:
        async with made(GONE[name]) as provider:
            with pytest.raises(PluginError) as caught:
                await provider.find()
        return str(caught.value)

    told = asyncio.run(finding())
    assert told.endswith(".")
    assert told.isprintable()


@each
def test_nothing_is_opened_before_it_is_asked(name: str) -> None:
    assert len(make_providers([], GONE[name])) == 1


@each
def test_cancelled_question_leaves_the_provider_usable(name: str) -> None:
    async def finding() -> list[Target]:
        world, content = MAKERS[name]
        async with world(content) as provider:
            for _ in range(3):
                question = asyncio.create_task(provider.find())
                await asyncio.sleep(0)
                question.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await question
            return await provider.find()

    assert len(asyncio.run(finding())) == 2


@each
def test_closing_twice_is_fine(name: str) -> None:
    async def closing() -> list[Target]:
        world, content = MAKERS[name]
        async with world(content) as provider:
            found = await provider.find()
            await provider.close()
            await provider.close()
            return found

    assert len(asyncio.run(closing())) == 2


@each
@given(rubbish=st.binary(max_size=300) | st.text(alphabet='[]{}":,-ab1\n targes', max_size=60).map(str.encode))
def test_rubbish_is_hosts_with_valid_names_or_an_error_for_the_admin(name: str, rubbish: bytes) -> None:
    targets: list[Target] = []
    with contextlib.suppress(PluginError):
        targets = find(MAKERS[name][0], rubbish)[1]
    assert all(is_host_name(target.name) for target in targets)


@each
@given(st.integers(0, 200), st.binary(min_size=1, max_size=3))
def test_good_content_with_a_hole_is_read_or_an_error_for_the_admin(name: str, place: int, hole: bytes) -> None:
    world, content = MAKERS[name]
    targets: list[Target] = []
    with contextlib.suppress(PluginError):
        targets = find(world, content[:place] + hole + content[place + len(hole) :])[1]
    assert all(is_host_name(target.name) for target in targets)


def test_hosts_of_the_file_come_before_all_others() -> None:
    settings = DiscoverySettings(hosts_files=[HostsFileSettings("hosts.txt")], consul=[ConsulSettings("gpu")])
    providers = make_providers([HostEntry("gpu[01-02]")], settings, origin="our.yaml")
    assert [provider.origin for provider in providers] == ["our.yaml", "hosts.txt", "consul gpu"]
    targets = asyncio.run(providers[0].find())
    assert targets == [Target(name=name, origin="our.yaml", is_operators=True) for name in ("gpu01", "gpu02")]


def test_nothing_set_is_no_provider() -> None:
    assert make_providers([], DiscoverySettings()) == []
