"""Hosts as they are typed on a command line: `gpu01,ada@gpu[02-04,07]:2222`."""

from collections.abc import Sequence

from gpudeck.discovery.addresses import read_place
from gpudeck.discovery.ranges import expand
from gpudeck.model.errors import UsageError
from gpudeck.model.target import Target, Via


def read_hosts(text: str, origin: str, via: Via = "ssh") -> list[Target]:
    """The hosts that an option names, in its order. Raises UsageError, which begins with `origin`."""
    targets: dict[str, Target] = {}
    for word in _split(text):
        try:
            place = read_place(word)
            names = [place.host] if place.address else expand(place.host)
        except ValueError as error:
            raise UsageError(f"{origin}: {error}.") from error
        for name in names:
            targets[name] = Target(
                name=name,
                via=via,
                address=place.address,
                port=place.port,
                user=place.user,
                origin=origin,
                is_operators=True,
            )
    if not targets:
        raise UsageError(f"{origin} names no host.", "Write it as gpu01,gpu02 or gpu[01-16].")
    return list(targets.values())


class OptionHosts:
    """The hosts of an option, as a provider: they stay as long as the hub runs."""

    pause = 3600.0

    def __init__(self, targets: Sequence[Target]) -> None:
        self.origin = targets[0].origin
        self.problems: list[str] = []
        self._targets = list(targets)

    async def find(self) -> list[Target]:
        return self._targets

    async def close(self) -> None:
        """Nothing is open."""


def _split(text: str) -> list[str]:
    """At commas and spaces, but not within brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth <= 0 and (letter == "," or letter.isspace()):
            words.append("")
        else:
            words[-1] += letter
    return [word for word in words if word]
