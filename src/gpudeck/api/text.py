"""The fleet as text over HTTP: rendered once for all who ask for the same in the same second, and in a thread."""

import asyncio

import msgspec

from gpudeck.views.text import render_fleet

_MOST_KEPT = 64


class TextViews:
    """Keeps what was rendered from a document until there is another one. One event loop owns it."""

    def __init__(self) -> None:
        self._document = b""
        self._made: dict[tuple[bool, int | None], asyncio.Task[bytes]] = {}

    async def render(self, document: bytes, *, detail: bool, width: int | None) -> bytes:
        if document is not self._document or len(self._made) >= _MOST_KEPT:
            self._document, self._made = document, {}
        key = (detail, width)
        if key not in self._made:
            self._made[key] = asyncio.create_task(asyncio.to_thread(_render, document, detail, width))
        # Whoever goes away while it is being made must not take it from the others.
        return await asyncio.shield(self._made[key])


def _render(document: bytes, detail: bool, width: int | None) -> bytes:
    return render_fleet(msgspec.json.decode(document), detail=detail, width=width).encode()
