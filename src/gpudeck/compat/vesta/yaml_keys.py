"""The keys of vesta's settings file, each with its line."""

from collections.abc import Callable
from typing import Any

from gpudeck.compat.importing import Left, Plan


class Keys:
    """What makes no sense is told in the plan with its line. A key without a value is not there."""

    def __init__(self, values: dict[str, Any], lines: dict[str, int], plan: Plan) -> None:
        self._values = values
        self._lines = lines
        self._plan = plan

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def take(self, name: str, read: Callable[[Any], str], expected: str) -> str | None:
        """The value as it is written in gpudeck.yaml; None where there is none, or it makes no sense."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return read(_check_flat(value))
        except (ValueError, TypeError, OverflowError):
            self.refuse(name, f"has to be {expected}")
            return None

    def text(self, name: str) -> str:
        """A text, or what is written like one; empty where there is none."""
        value = self._values.get(name)
        return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""

    def texts(self, name: str) -> list[str]:
        """A list of texts, or one."""
        value = self._values.get(name)
        return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)][:100]

    def refuse(self, name: str, reason: str) -> None:
        """It cannot be taken as it is: `reason` goes on after its name."""
        self._plan.left.append(Left(f"line {self._lines[name]}", f"{name} {reason}"))

    def pass_over(self, name: str, reason: str) -> None:
        """It needs no taking: named in one line."""
        self._plan.over.append(Left(f"line {self._lines[name]}", f"{name}: {reason}"))


def _check_flat(value: Any) -> Any:
    """Raises ValueError for lists within lists: a few lines of YAML make millions of them."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        raise ValueError
    return value
