"""Writing in the background: nothing is lost while the database is away, and the log says so once."""

import asyncio
import logging

import pytest

from fakes.waiting import until
from gpudeck.database.background import BackgroundWriter
from gpudeck.model.errors import Temporary


class Flaky:
    """Fails as long as there is an `error`."""

    def __init__(self, *, every: float = 60.0) -> None:
        self.error: Exception | None = None
        self.tries = self.written = self.cleaned = self.rescued = 0
        self.writer = BackgroundWriter(
            self.write,
            failing="notes wait: %s",
            recovered="notes are kept again",
            every=every,
            retry=0.001,
            housekeeping=self.clean,
            after_failure=self.rescue,
        )

    async def write(self) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.written += 1

    async def clean(self) -> None:
        self.cleaned += 1

    async def rescue(self) -> None:
        self.rescued += 1

    async def until(self, attribute: str, count: int) -> None:
        await until(lambda: getattr(self, attribute) >= count, f"{attribute} {count} times")


@pytest.mark.parametrize(("error", "failure"), [(Temporary("away"), "unavailable"), (KeyError("x"), "bug")])
def test_a_write_that_fails_is_repeated_until_it_succeeds(
    error: Exception, failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def work() -> None:
        flaky = Flaky()
        flaky.error = error
        flaky.writer.start()
        await flaky.until("rescued", 3)
        assert (flaky.writer.failure, flaky.written, flaky.cleaned) == (failure, 0, 0)
        flaky.error = None
        await flaky.until("cleaned", 1)
        assert flaky.writer.failure is None
        assert await flaky.writer.stop() is None

    asyncio.run(work())
    lines = [record.message for record in caplog.records]
    assert lines[0].startswith("notes wait: ")
    assert lines[-1] == "notes are kept again"
    assert failure == "bug" or len(lines) == 2


def test_it_writes_when_woken_and_once_more_at_the_end() -> None:
    async def work() -> None:
        flaky = Flaky()
        flaky.writer.start()
        await flaky.until("cleaned", 1)
        flaky.writer.wake()
        await flaky.until("cleaned", 2)
        assert await flaky.writer.stop() is None
        assert (flaky.written, flaky.cleaned) == (3, 2)

    asyncio.run(work())


def test_what_cannot_be_written_at_the_end_is_told_to_the_caller() -> None:
    async def work() -> None:
        flaky = Flaky()
        flaky.error = Temporary("away")
        assert await flaky.writer.stop() is flaky.error

    asyncio.run(work())
