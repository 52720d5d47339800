"""A service in a real Consul: hosts come, fail, go; Consul itself goes and comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from discovery.servers import json_server
from fakes.consul import SERVICE, ConsulProcess, running_consul
from fakes.waiting import until
from gpudeck.discovery.consul import Consul, ConsulSettings
from gpudeck.discovery.service import ProviderRefresh
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.target import Target


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulProcess]:
    with running_consul(tmp_path_factory.mktemp("consul")) as consul:
        yield consul


@pytest.fixture
def consul(shared: ConsulProcess) -> Iterator[ConsulProcess]:
    """The Consul of all tests here, without hosts."""
    yield shared
    for node in ("gpu01", "gpu02", "gpu_bad_"):
        shared.deregister(node)


class Watch:
    """A refresh of the service, and what it says now."""

    def __init__(self, settings: ConsulSettings) -> None:
        self.refresh = ProviderRefresh(Consul(settings), lambda: None)

    @property
    def targets(self) -> dict[str, Target]:
        return {target.name: target for target in self.refresh.targets}

    @property
    def trouble(self) -> str | None:
        return self.refresh.trouble or None

    async def until(self, condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
        """Far less than `WAIT`: a query that is not woken by the change comes too late."""
        await until(condition, what, seconds)


@contextlib.asynccontextmanager
async def watching(settings: ConsulSettings) -> AsyncIterator[Watch]:
    watch = Watch(settings)
    watch.refresh.start()
    try:
        await until(lambda: watch.refresh.has_answered or watch.trouble, "the first answer")
        yield watch
    finally:
        await watch.refresh.stop()


def test_host_appears_changes_and_vanishes_when_consul_says_so(consul: ConsulProcess) -> None:
    async def playing() -> None:
        async with watching(ConsulSettings(SERVICE, consul.url)) as watch:
            assert watch.targets == {}
            consul.register("gpu01")
            await watch.until(lambda: set(watch.targets) == {"gpu01"}, "gpu01")
            consul.register("gpu02", port=7443)
            await watch.until(lambda: set(watch.targets) == {"gpu01", "gpu02"}, "gpu02")
            consul.register("gpu01", port=7081)
            await watch.until(lambda: watch.targets["gpu01"].port == 7081, "the new port")
            consul.deregister("gpu01")
            await watch.until(lambda: set(watch.targets) == {"gpu02"}, "the end of gpu01")

    asyncio.run(playing())


def test_last_host_vanishes_after_a_second_look(consul: ConsulProcess) -> None:
    async def playing() -> None:
        consul.register("gpu01")
        async with watching(ConsulSettings(SERVICE, consul.url)) as watch:
            assert set(watch.targets) == {"gpu01"}
            consul.deregister("gpu01")
            await watch.until(lambda: not watch.targets, "the end of gpu01", 20)

    asyncio.run(playing())


def test_failing_check_takes_a_host_away_only_where_that_is_wanted(consul: ConsulProcess) -> None:
    async def playing() -> None:
        consul.register("gpu01")
        consul.register("gpu02")
        every = ConsulSettings(SERVICE, consul.url, only_passing=False)
        async with watching(ConsulSettings(SERVICE, consul.url)) as passing, watching(every) as anyhow:
            consul.register("gpu01", passing=False)
            await passing.until(lambda: set(passing.targets) == {"gpu02"}, "the end of gpu01")
            assert set(anyhow.targets) == {"gpu01", "gpu02"}
            consul.register("gpu01")
            await passing.until(lambda: set(passing.targets) == {"gpu01", "gpu02"}, "the return of gpu01")

    asyncio.run(playing())


def find(settings: ConsulSettings) -> tuple[list[Target], list[str]]:
    async def finding() -> tuple[list[Target], list[str]]:
        provider = Consul(settings)
        try:
            return await provider.find(), provider.problems
        finally:
            await provider.close()

    return asyncio.run(finding())


def test_host_is_described_by_its_node_and_its_service(consul: ConsulProcess) -> None:
    consul.register(
        "gpu01",
        node_meta={"rack": "b3", "row": "1", "consul-network-segment": ""},
        meta={"row": "2"},
        address="10.1.1.1",
    )
    consul.register("gpu02", port=0)
    origin = f"consul {SERVICE}"
    assert find(ConsulSettings(SERVICE, consul.url)) == (
        [
            Target(
                name="gpu01",
                via="pull",
                address="10.1.1.1",
                port=7080,
                labels={"rack": "b3", "row": "2"},
                origin=origin,
            ),
            Target(name="gpu02", via="pull", address="10.0.0.9", origin=origin),
        ],
        [],
    )


def test_all_tags_have_to_be_there(consul: ConsulProcess) -> None:
    consul.register("gpu01", tags=["a", "b"])
    consul.register("gpu02", tags=["a"])
    names = {
        tags: [target.name for target in find(ConsulSettings(SERVICE, consul.url, list(tags)))[0]]
        for tags in (("a",), ("a", "b"), ("c",))
    }
    assert names == {("a",): ["gpu01", "gpu02"], ("a", "b"): ["gpu01"], ("c",): []}


def test_datacenter_is_asked_for(consul: ConsulProcess) -> None:
    consul.register("gpu01")
    assert len(find(ConsulSettings(SERVICE, consul.url, datacenter="dc1"))[0]) == 1
    with pytest.raises(Temporary, match=r"answers 500 \(text/plain\)"):
        find(ConsulSettings(SERVICE, consul.url, datacenter="mars"))


def test_node_whose_name_no_host_can_have_is_told_and_hides_no_neighbour(consul: ConsulProcess) -> None:
    consul.register("gpu_bad_")
    consul.register("gpu01")
    targets, problems = find(ConsulSettings(SERVICE, consul.url))
    assert [target.name for target in targets] == ["gpu01"]
    assert [problem.partition(": ")[2] for problem in problems] == ["'gpu_bad_' is no name of a host."]


def test_last_list_counts_while_consul_is_away(tmp_path: Path) -> None:
    async def playing() -> None:
        with running_consul(tmp_path) as consul:
            consul.register("gpu01")
            async with watching(ConsulSettings(SERVICE, consul.url)) as watch:
                await watch.until(lambda: set(watch.targets) == {"gpu01"}, "gpu01")
                consul.kill()
                await watch.until(lambda: watch.trouble, "the trouble", 20)
                assert set(watch.targets) == {"gpu01"}
                await asyncio.to_thread(consul.start)
                consul.register("gpu01")
                consul.register("gpu02")
                await watch.until(lambda: set(watch.targets) == {"gpu01", "gpu02"}, "the new list", 40)
                assert watch.trouble is None

    asyncio.run(playing())


def test_token_opens_what_is_closed_to_others(tmp_path: Path) -> None:
    secret = "5fd1c0e0-0000-4000-8000-00000000beef"
    (tmp_path / "token").write_text(f"{secret}\n")
    (tmp_path / "wrong").write_text("5fd1c0e0-0000-4000-8000-00000000dead\n")
    with running_consul(tmp_path, secret) as consul:
        consul.register("gpu01")
        open_to_us = ConsulSettings(SERVICE, consul.url, token_file=str(tmp_path / "token"))
        assert [target.name for target in find(open_to_us)[0]] == ["gpu01"]
        with pytest.raises(Refused, match=r"answers 403: the token is not accepted\. Check the token file\.") as caught:
            find(ConsulSettings(SERVICE, consul.url, token_file=str(tmp_path / "wrong")))
        assert "dead" not in str(caught.value)


def test_service_that_the_token_may_not_read_is_refused() -> None:
    """Consul 1.11 and newer tell so in a header, and answer an empty list."""

    async def playing() -> None:
        async with json_server(b"[]", "X-Consul-Index: 1", "X-Consul-Results-Filtered-By-ACLs: true") as url:
            provider = Consul(ConsulSettings("gpu", url))
            with pytest.raises(Refused, match="Consul does not show consul gpu: the token may not read it"):
                await provider.find()
            await provider.close()

    asyncio.run(playing())


@pytest.mark.parametrize(
    ("indexes", "asked"),
    [
        (["7", "9", "3", "4"], ["", "7", "9", ""]),
        (["7", "", "5"], ["", "7", ""]),
        (["7", "0", "5"], ["", "7", ""]),
        (["7", "-1", "9" * 30, "5"], ["", "7", "", ""]),
    ],
)
def test_index_that_goes_back_or_is_none_begins_anew(indexes: list[str], asked: list[str]) -> None:
    async def playing() -> list[str]:
        seen: list[str] = []
        answers = iter(indexes)
        async with json_server(b"[]", header=lambda: f"X-Consul-Index: {next(answers)}", seen=seen) as url:
            provider = Consul(ConsulSettings("gpu", url))
            for _ in indexes:
                await provider.find()
            await provider.close()
        return seen

    seen = asyncio.run(playing())
    assert [query.partition("index=")[2].partition("&")[0] for query in seen] == asked


def test_after_a_failure_the_next_question_is_answered_at_once() -> None:
    async def playing() -> list[str]:
        seen: list[str] = []
        statuses = iter(["200 OK", "500 Oops", "200 OK"])
        async with json_server(b"[]", "X-Consul-Index: 7", status=lambda: next(statuses), seen=seen) as url:
            provider = Consul(ConsulSettings("gpu", url))
            await provider.find()
            with pytest.raises(Temporary, match="answers 500"):
                await provider.find()
            await provider.find()
            await provider.close()
        return seen

    assert ["index=7" in question for question in asyncio.run(playing())] == [False, True, False]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'"x"', b"[" * 100_000, b"\xff"])
def test_what_is_no_consul_is_temporary(body: bytes) -> None:
    async def playing() -> None:
        async with json_server(body) as url:
            provider = Consul(ConsulSettings("gpu", url))
            with pytest.raises(Temporary, match=r"answers no list of instances in JSON\. Is that the address of a Con"):
                await provider.find()
            await provider.close()

    asyncio.run(playing())


def test_instance_that_makes_no_sense_is_told_and_hides_no_neighbour() -> None:
    body = b"""[7, {}, {"Node": {"Node": "a", "Address": "x y"}},
      {"Node": {"Node": "b"}, "Service": {"Port": 70000}}, {"Node": {"Node": "c", "Meta": {"x": 7}}},
      {"Node": {"Node": "d", "Meta": null}, "Service": {"Port": 1}}]"""

    async def playing() -> tuple[list[Target], int]:
        async with json_server(body) as url:
            provider = Consul(ConsulSettings("gpu", url))
            targets = await provider.find()
            await provider.close()
        return targets, len(provider.problems)

    assert asyncio.run(playing()) == ([Target(name="d", via="pull", port=1, origin="consul gpu")], 5)
