"""A provider that does what a test tells it, and a way to wait for what it leads to."""

import asyncio
from collections.abc import Sequence

from gpudeck.model.target import Target

Step = list[str] | list[Target] | BaseException


class ScriptedProvider:
    """Answers with one step after the other: names, targets or an error. After the last it waits until told another."""

    def __init__(self, *steps: Step, origin: str = "list", pause: float = 60.0) -> None:
        self.origin = origin
        self.pause = pause
        self.problems: Sequence[str] = ()
        self.is_closed = False
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        for step in steps:
            self.then(step)

    def then(self, step: Step) -> None:
        self._steps.put_nowait(step)

    async def find(self) -> list[Target]:
        step = await self._steps.get()
        if isinstance(step, BaseException):
            raise step
        return [self._target(entry) for entry in step]

    async def close(self) -> None:
        self.is_closed = True

    def _target(self, entry: str | Target) -> Target:
        return Target(name=entry, origin=self.origin) if isinstance(entry, str) else entry
