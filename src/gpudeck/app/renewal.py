"""Reading an agent's settings again while it runs: other ones count where they can be used, or else those before."""

import logging
from collections.abc import Callable

from gpudeck.agent.settings import AgentSettings
from gpudeck.app.supervisor import Supervisor
from gpudeck.model.errors import UsageError

log = logging.getLogger(__name__)


class Renewal:
    """`read` gives the settings as they are written now, `rehearse` tries new ones beside those that count. Both raise
    UsageError."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        read: Callable[[], AgentSettings],
        rehearse: Callable[[AgentSettings, AgentSettings], None],
    ) -> None:
        self._supervisor = supervisor
        self._read = read
        self._rehearse = rehearse

    def look(self, before: AgentSettings) -> AgentSettings | None:
        """Settings that count from now on; None where those from before stay. Whoever starts with them says ready."""
        self._supervisor.reloading()
        try:
            wanted = self._read()
            if wanted != before:
                self._rehearse(wanted, before)
                log.info("the settings have changed: starting again with the new ones")
                return wanted
        except UsageError as error:
            log.error("the settings from before stay, as the new ones cannot be used: %s", error)  # noqa: TRY400
            self._supervisor.ready("runs with older settings: those in its file cannot be used")
            return None
        log.info("the settings have not changed")
        self._supervisor.ready()
        return None
