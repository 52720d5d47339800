"""What of the fleet a viewer may see: command lines are not for everybody everywhere.

A view is changed in place all the time and shared by all: whatever is hidden is left out of a copy.
"""

from typing import Literal

from msgspec import Struct

from gpudeck.hub.metrics import View

HIDDEN = "not shown to you: see `commands` in the hub's settings"


class Sight(Struct, frozen=True):
    """Whose command lines are seen: all, none, or only those of the people with these `logins` on the hosts."""

    commands: Literal["all", "none", "own"] = "all"
    logins: frozenset[str] = frozenset()

    def host(self, view: View) -> View:
        """A host, or what changed of one, as this viewer may see it."""
        if self.commands == "all" or not view.get("gpus"):
            return view
        return {**view, "gpus": [self.gpu(gpu) for gpu in view["gpus"]]}

    def gpu(self, view: View) -> View:
        """A GPU, or what changed of one."""
        if self.commands == "all" or not view.get("processes"):
            return view
        return {**view, "processes": [self._process(process) for process in view["processes"]]}

    def shows_commands_of(self, user: str | None) -> bool:
        """Whether what that person started is seen with its command line."""
        return self.commands == "all" or (self.commands == "own" and user in self.logins)

    def _process(self, process: View) -> View:
        if process["command"] is None or self.shows_commands_of(process["user"]):
            return process
        return {**process, "command": None, "reasons": {**process["reasons"], "command": HIDDEN}}


EVERYTHING = Sight()
