"""Reading a host over SSH: a real sshd, the real shell, and captured answers of nvidia-smi."""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.sshd import IS_HERE, WHY_NOT, Sshd, running_sshd
from fakes.waiting import wait_until
from gpudeck.collectors.host import boot_id, machine_id
from gpudeck.model.errors import PluginError, Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.ssh import SshSource, make

pytestmark = pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)
H200 = "GPU-5f1e8a30-0c5d-4b7e-9a61-2d3c4b5a6978"


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd") as server:
        yield server


def open_source(sshd: Sshd, **settings: object) -> SshSource:
    source = make(sshd.settings(**settings))(sshd.target())
    assert isinstance(source, SshSource)
    return source


def read(sshd: Sshd, times: int = 1, **settings: object) -> list[FetchedReport]:
    async def go() -> list[FetchedReport]:
        source = open_source(sshd, **settings)
        try:
            return [await source.read(time.time()) for _ in range(times)]
        finally:
            await source.close()

    return asyncio.run(go())


def failure(sshd: Sshd, **settings: object) -> PluginError:
    with pytest.raises(PluginError) as caught:
        read(sshd, 1, **settings)
    return caught.value


def test_report_is_sealed_as_that_of_an_agent_on_the_same_machine(sshd: Sshd) -> None:
    (arrival,) = read(sshd)
    envelope = arrival.envelope
    assert (envelope.host, envelope.sequence, envelope.interval_seconds) == ("gpu01", 1, 5.0)
    assert (envelope.boot_id, envelope.host_id) == (boot_id(), machine_id())
    assert envelope.agent_version == ""
    assert [gpu.uuid for gpu in envelope.report.gpus or []] == [H200]
    assert envelope.report.metrics["cpu_count"] == os.cpu_count()


def test_host_tells_its_own_clock(sshd: Sshd) -> None:
    before = time.time()
    (arrival,) = read(sshd)
    assert arrival.sent_at is not None
    assert before - 1 < arrival.sent_at < time.time() + 1
    assert arrival.envelope.collected_at == arrival.sent_at


def test_readings_of_one_source_count_up_within_one_run_over_one_login(sshd: Sshd) -> None:
    first, second, third = read(sshd, times=3)
    assert [arrival.envelope.sequence for arrival in (first, second, third)] == [1, 2, 3]
    assert len({arrival.envelope.run_id for arrival in (first, second, third)}) == 1
    assert sshd.logins() == 1
    assert "cpu_percent" in third.envelope.report.metrics


def test_labels_of_the_target_reach_the_report(sshd: Sshd) -> None:
    async def go() -> FetchedReport:
        source = make(sshd.settings())(sshd.target(labels={"rack": "7"}))
        try:
            return await source.read(time.time())
        finally:
            await source.close()

    assert asyncio.run(go()).envelope.report.labels["rack"] == "7"


def test_host_without_nvidia_smi_still_tells_its_own_figures(sshd: Sshd) -> None:
    (sshd.folder / "bin/nvidia-smi").unlink()
    (arrival,) = read(sshd)
    report = arrival.envelope.report
    assert report.metrics["cpu_count"] == os.cpu_count()
    assert (report.gpus, report.gpus_reason) == (None, "There is no nvidia-smi on this machine.")
    assert report.problems == []


def test_driver_that_hangs_costs_the_gpus_alone_and_leaves_nothing_behind(sshd: Sshd) -> None:
    async def go() -> list[FetchedReport]:
        source = open_source(sshd, deadline=4.0)
        try:
            good = await source.read(time.time())
            sshd.fake_nvidia_smi("sleep 3600")
            hung = await source.read(time.time())
            sshd.fake_nvidia_smi(f'exec {Path(__file__).parents[1]}/captures/nvidia-smi/nvidia-smi "$@"')
            return [good, hung, await source.read(time.time())]
        finally:
            await source.close()

    good, hung, again = (arrival.envelope.report for arrival in asyncio.run(go()))
    assert [gpu.uuid for gpu in hung.gpus or []] == [H200]
    assert [gpu.missing for gpu in hung.gpus or []] == [
        "nvidia-smi did not answer within 2 s: the driver hangs. Look at the kernel log (dmesg)."
    ]
    assert hung.metrics["memory_total_bytes"] == good.metrics["memory_total_bytes"]
    assert [gpu.missing for gpu in again.gpus or []] == [None]
    assert sshd.logins() == 1
    wait_until(lambda: not sshd.processes(), "the end of everything on the host")


def test_driver_that_nothing_can_end_is_not_called_again(sshd: Sshd) -> None:
    """`timeout` is made powerless, as by a process that hangs in the kernel."""
    calls = sshd.folder / "calls"
    (sshd.folder / "bin/timeout").write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    (sshd.folder / "bin/timeout").chmod(0o755)
    sshd.fake_nvidia_smi(f"echo call >>{calls}; exec sleep 30")

    async def go() -> list[FetchedReport]:
        source = open_source(sshd, deadline=3.0)
        try:
            return [await source.read(time.time()) for _ in range(3)]
        finally:
            await source.close()

    first, second, third = (arrival.envelope.report for arrival in asyncio.run(go()))
    assert "did not answer in time" in (first.gpus_reason or "")
    assert "not called again" in (second.gpus_reason or "")
    assert "not called again" in (third.gpus_reason or "")
    assert third.metrics["cpu_count"] == os.cpu_count()
    assert calls.read_text().count("call") == 1


def test_gpus_from_before_a_restart_of_the_host_are_not_missed(sshd: Sshd) -> None:
    async def go() -> list[FetchedReport]:
        source = open_source(sshd)
        first = await source.read(time.time())
        sshd.card = "l40s-535.129.03"
        restarted = f'ForceCommand eval "$SSH_ORIGINAL_COMMAND" | sed "s/{boot_id()}/another-boot/"'
        await asyncio.to_thread(sshd.restart, restarted)
        second = await source.read(time.time())
        await source.close()
        return [first, second]

    first, second = asyncio.run(go())
    assert second.envelope.boot_id == "another-boot"
    assert H200 in {gpu.uuid for gpu in first.envelope.report.gpus or []}
    assert H200 not in {gpu.uuid for gpu in second.envelope.report.gpus or []}
    assert second.envelope.report.gpus


def test_host_that_goes_down_and_comes_back_is_read_again(sshd: Sshd) -> None:
    async def go() -> tuple[PluginError, FetchedReport]:
        source = open_source(sshd)
        await source.read(time.time())
        await asyncio.to_thread(sshd.stop)
        with pytest.raises(Temporary) as caught:
            await source.read(time.time())
        await asyncio.to_thread(sshd.start)
        arrival = await source.read(time.time())
        await source.close()
        return caught.value, arrival

    error, arrival = asyncio.run(go())
    assert str(error) == f"gpu01 (127.0.0.1:{sshd.port}) refuses connections: no sshd listens on port {sshd.port}."
    assert arrival.envelope.sequence == 2


def test_connection_that_died_between_two_readings_is_no_failure(sshd: Sshd) -> None:
    async def go() -> FetchedReport:
        source = open_source(sshd)
        await source.read(time.time())
        await asyncio.to_thread(sshd.kill_connections)
        arrival = await source.read(time.time())
        await source.close()
        return arrival

    assert asyncio.run(go()).envelope.sequence == 2
    assert sshd.logins() == 2


def test_connection_killed_in_the_middle_fails_once(sshd: Sshd) -> None:
    begun = sshd.folder / "begun"

    async def go() -> tuple[PluginError, FetchedReport]:
        source = open_source(sshd)
        sshd.fake_nvidia_smi(f"touch {begun}; exec sleep 5")
        reading = asyncio.ensure_future(source.read(time.time()))
        await asyncio.to_thread(wait_until, begun.exists, "the call of nvidia-smi")
        await asyncio.to_thread(sshd.kill_connections)
        with pytest.raises(Temporary) as caught:
            await reading
        sshd.fake_nvidia_smi("exit 0")
        arrival = await source.read(time.time())
        await source.close()
        return caught.value, arrival

    error, arrival = asyncio.run(go())
    assert "closed the connection" in str(error)
    assert arrival.envelope.report.metrics["cpu_count"] == os.cpu_count()


def test_cancelled_reading_leaves_nothing_open_and_the_next_one_works(sshd: Sshd) -> None:
    begun = sshd.folder / "begun"

    async def go() -> FetchedReport:
        source = open_source(sshd)
        sshd.fake_nvidia_smi(f"touch {begun}; exec sleep 1")
        reading = asyncio.ensure_future(source.read(time.time()))
        await asyncio.to_thread(wait_until, begun.exists, "the call of nvidia-smi")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.to_thread(wait_until, lambda: not sshd.processes(), "the end of everything on the host")
        arrival = await source.read(time.time())
        await source.close()
        return arrival

    assert asyncio.run(go()).envelope.sequence == 1
    assert sshd.logins() == 2


def test_banner_and_noise_of_the_login_are_left_out(sshd: Sshd) -> None:
    (sshd.folder / "banner").write_text("Authorized use only!\n" * 20)
    noisy = 'echo "#gpudeck is not installed"; echo Welcome; eval "$SSH_ORIGINAL_COMMAND"; echo Bye'
    sshd.restart(f"Banner {sshd.folder}/banner\nForceCommand {noisy}")
    (arrival,) = read(sshd)
    assert [gpu.uuid for gpu in arrival.envelope.report.gpus or []] == [H200]


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ("echo This account is currently not available.", "it answered 41 characters of something else."),
        ("head -c 100000 /dev/urandom", "did not run the command"),
        ("true", "it answered nothing."),
        ("echo go away >&2; exit 1", "it answered 8 characters of something else."),
        ('eval "$SSH_ORIGINAL_COMMAND" | head -n 9', "breaks off"),
    ],
)
def test_rubbish_instead_of_an_answer_is_a_temporary_failure_whose_words_are_for_the_log(
    sshd: Sshd, instead: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    sshd.restart(f"ForceCommand {instead}")
    with caplog.at_level(logging.INFO, "gpudeck"):
        error = failure(sshd)
    assert isinstance(error, Temporary)
    assert told in str(error)
    assert not {"available", "away"} & set(str(error).rstrip(".").split())
    assert ("it said: " in caplog.text) == ("did not run" in str(error))


def test_half_an_answer_gives_the_host_without_gpus(sshd: Sshd) -> None:
    sshd.restart('ForceCommand eval "$SSH_ORIGINAL_COMMAND" | sed "/#gpudeck details/,\\$d"')
    (arrival,) = read(sshd)
    assert arrival.envelope.report.metrics["cpu_count"] == os.cpu_count()
    assert "breaks off" in (arrival.envelope.report.gpus_reason or "")
    assert arrival.sent_at is None


def test_endless_output_is_cut_off(sshd: Sshd) -> None:
    sshd.restart("ForceCommand head -c 1000000000 /dev/zero")
    assert str(failure(sshd)) == "The host printed more than 4 MiB."
    wait_until(lambda: not sshd.processes(), "the end of everything on the host")


def test_silent_host_is_given_up_in_time(sshd: Sshd) -> None:
    sshd.restart("ForceCommand exec sleep 30")
    assert "is connected, but does not answer" in str(failure(sshd, deadline=3.0))


@pytest.mark.parametrize("shell", ["dash", "bash", "zsh", "ksh", "fish", "tcsh"])
def test_any_login_shell_runs_the_command(sshd: Sshd, shell: str) -> None:
    program = shutil.which(shell) or pytest.skip(f"{shell} is not installed")
    # What sshd does with the login shell of a user: it hands over the command after -c.
    sshd.restart(f'ForceCommand exec {program} -c "$SSH_ORIGINAL_COMMAND"')
    (arrival,) = read(sshd)
    assert [gpu.uuid for gpu in arrival.envelope.report.gpus or []] == [H200]
    assert arrival.sent_at is not None


@pytest.mark.parametrize("target", [Target(name="no name"), Target(name="gpu01", address="-oProxyCommand=reboot")])
def test_target_that_cannot_be_meant_is_wrong_use(sshd: Sshd, target: Target) -> None:
    with pytest.raises(UsageError):
        make(sshd.settings())(target)
