"""Background tasks of an event loop."""

import asyncio
from typing import Any


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel these tasks and wait until they have ended, whatever they raise."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
