"""Visibility: which command lines a viewer may see."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess

HIDDEN = "not shown to you: see `commands` in the hub's settings"


class Visibility(Struct, frozen=True):
    """Visible command lines: all, none, or only those of users with these `logins` on the hosts."""

    commands: Literal["all", "none", "own"] = "all"
    logins: frozenset[str] = frozenset()

    def fleet(self, fleet: Fleet) -> Fleet:
        return fleet if self.commands == "all" else replace(fleet, hosts=[self.host(host) for host in fleet.hosts])

    def host(self, host: Host) -> Host:
        if self.commands == "all":
            return host
        return replace(host, gpus=[self.gpu(gpu) for gpu in host.gpus])

    def gpu(self, gpu: Gpu) -> Gpu:
        if self.commands == "all" or not gpu.processes:
            return gpu
        return replace(gpu, processes=self.processes(gpu.processes))

    def processes(self, processes: list[ShownProcess]) -> list[ShownProcess]:
        return [self._process(process) for process in processes]

    def shows_commands_of(self, user: str | None) -> bool:
        return self.commands == "all" or (self.commands == "own" and user in self.logins)

    def _process(self, process: ShownProcess) -> ShownProcess:
        if process.command is None or self.shows_commands_of(process.user):
            return process
        return replace(process, command=None, reasons={**process.reasons, "command": HIDDEN})


EVERYTHING = Visibility()
