"""Of which alerts nobody is told for a while, who wanted that, and why."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from gpudeck.alerts.life import Life
from gpudeck.model.alert import Silence


class Silences:
    """Those that count now or later. One event loop owns it."""

    def __init__(self) -> None:
        self._kept: dict[str, Silence] = {}

    def load(self, silences: Iterable[Silence]) -> None:
        self._kept = {silence.id: silence for silence in silences}

    def put(self, silence: Silence) -> None:
        self._kept[silence.id] = silence

    def remove(self, silence_id: str) -> Silence | None:
        return self._kept.pop(silence_id, None)

    def all(self) -> list[Silence]:
        """By their end."""
        return sorted(self._kept.values(), key=lambda silence: (silence.end, silence.id))

    def take_ended(self, now: float) -> list[Silence]:
        """Those that are over by now, each once."""
        ended = [silence for silence in self._kept.values() if silence.end <= now]
        for silence in ended:
            del self._kept[silence.id]
        return ended

    def find(self, life: Life, now: float) -> Silence | None:
        """The one because of which nobody is told of that alert now; of several the one that lasts longest."""
        if not self._kept:
            return None
        fitting = [one for one in self._kept.values() if one.start <= now < one.end and fits(one, life)]
        return max(fitting, key=lambda silence: silence.end, default=None)


def fits(silence: Silence, life: Life) -> bool:
    return (
        (silence.rule is None or fnmatchcase(life.rule, silence.rule))
        and (silence.host is None or (life.host is not None and fnmatchcase(life.host, silence.host)))
        and silence.labels.items() <= life.all_labels().items()
    )


def describe(silence: Silence) -> str:
    """What it is about, in words."""
    labels = [f"{name}={value}" for name, value in sorted(silence.labels.items())]
    parts = [silence.rule and f"rule {silence.rule}", silence.host and f"host {silence.host}", *labels]
    return ", ".join(part for part in parts if part)
