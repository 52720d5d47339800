"""The steps that imports have in common: a host to be watched, a booking to be made."""

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from gpudeck.client import Taken
from gpudeck.compat.importing import Desk, Left, Plan
from gpudeck.discovery.addresses import read_place
from gpudeck.discovery.ranges import NAME_WORDS, is_host_name, quote
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.reservation import BookedGpu

_THERE = "is there already"
"""What the hub says of a host that it has: see `Book` in `app.host_book`."""
_SCHEME = re.compile(r"[A-Za-z]+://")


class HostStep(Struct, frozen=True):
    """A host to be watched. `reach` are the fields of `POST /api/v1/hosts` beside its name."""

    name: str
    reach: dict[str, Any]

    kind = "host"

    @property
    def what(self) -> str:
        login = f"{self.reach['user']}@" if "user" in self.reach else ""
        address = self.reach.get("address", self.name if login else "")
        port = f" port {self.reach['port']}" if "port" in self.reach else ""
        place = f" ({login}{address}{port})".replace("( ", "(") if login or address or port else ""
        return f"watch {self.name} via {self.reach['via']}{place}"

    def find(self, desk: Desk) -> str | None:
        host = desk.hosts.get(self.name)
        return None if host is None else f"{self.name} is there, via {host.via or 'none yet'}"

    def apply(self, desk: Desk) -> str | None:
        try:
            desk.client.add_host({"name": self.name} | self.reach)
        except UsageError as error:
            # One that was added a moment ago is not among the hosts yet.
            if _THERE not in error.message:
                raise
            return error.message
        return None


class BookingStep(Struct, frozen=True):
    """A booking from now until `end`, Unix seconds. `label` is the number of the GPU on its host."""

    host: str
    label: str
    user: str
    end: float
    note: str
    until: str
    """`end` as it is shown."""

    kind = "booking"

    @property
    def what(self) -> str:
        return f"book {self.host}:{self.label} for {self.user} until {self.until}"

    def find(self, desk: Desk) -> str | None:
        same = (
            one.id
            for one in desk.reservations
            if one.user == self.user and abs(one.end - self.end) < 60 and self._is_among(one.gpus)
        )
        host = desk.hosts.get(self.host)
        if host is None:
            raise GpudeckError(f"the hub knows no host {self.host}.", "Have it watched first, then import again.")
        if all(gpu.label != self.label for gpu in host.gpus):
            raise GpudeckError(f"{self.host} has no GPU {self.label}.")
        number = next(same, None)
        if number is None:
            self._check_free(desk)
        return None if number is None else f"that is reservation {number}"

    def _check_free(self, desk: Desk) -> None:
        """A dry run names what is in the way as the real run does. All that the hub lists ends later than now."""
        for one in desk.reservations:
            if one.start < self.end and self._is_among(one.gpus):
                raise GpudeckError(f"{self.host}:{self.label} is reserved by {one.user}: reservation {one.id}.")

    def _is_among(self, gpus: list[BookedGpu]) -> bool:
        return any(gpu.host == self.host and gpu.label == self.label for gpu in gpus)

    def apply(self, desk: Desk) -> str | None:
        wanted = {"host": self.host, "indexes": [self.label], "end": self.end, "note": self.note, "user": self.user}
        try:
            desk.client.reserve(wanted)
        except Taken as error:
            raise GpudeckError(error.message) from error
        return None


def make_host_step(text: str, via: str, **reach: Any) -> HostStep:
    """The host that a word in a foreign file means: a name, an address, or a URL of which only the place counts. What
    the word itself says goes before `reach`. Raises ValueError."""
    word = _SCHEME.sub("", text.strip(), count=1).partition("/")[0]
    if word.count(":") > 1 and not word.startswith("["):
        word = f"[{word}]"
    place = read_place(word)
    if not is_host_name(place.host):
        raise ValueError(f"{quote(text)} is no name of a host: that is {NAME_WORDS}")
    told = {"address": place.address or None, "port": place.port, "user": place.user}
    return HostStep(place.host, {"via": via} | reach | {key: value for key, value in told.items() if value})


def add_hosts(plan: Plan, words: Iterable[tuple[str, str]], via: str, **reach: Any) -> None:
    """A step for each host once. `words` are places in the file with what stands there; `reach` is for all of them."""
    seen: set[str] = set()
    for place, word in words:
        try:
            step = make_host_step(word, via, **reach)
        except ValueError as error:
            plan.left.append(Left(place, str(error)))
            continue
        if step.name in seen:
            plan.over.append(Left(place, f"{step.name} stands there twice"))
            continue
        seen.add(step.name)
        plan.steps.append(step)
