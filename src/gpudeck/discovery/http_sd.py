"""An address as Prometheus asks it with http_sd_configs: an inventory or a script that answers JSON."""

import msgspec

from gpudeck.discovery.base import Findings
from gpudeck.discovery.endpoint import Endpoint
from gpudeck.discovery.settings import HttpSdSettings
from gpudeck.discovery.target_groups import read_groups
from gpudeck.model.errors import Temporary
from gpudeck.model.hub_url import mask_password
from gpudeck.model.target import Target


class HttpSd:
    """The hosts that a server answers, asked at an interval."""

    def __init__(self, settings: HttpSdSettings) -> None:
        self._shown = mask_password(settings.url)
        self.origin = f"http_sd {self._shown}"
        self.pause = settings.interval
        self._settings = settings
        self._endpoint = Endpoint(
            settings.token_file, settings.ca_file, lambda token: {"Authorization": f"Bearer {token}"}
        )
        self._findings = Findings()

    @property
    def problems(self) -> list[str]:
        return self._findings.problems

    async def find(self) -> list[Target]:
        answer = await self._endpoint.get(self._settings.url)
        findings = Findings()
        try:
            read_groups(msgspec.json.decode(answer.body), self.origin, self._settings.via, findings)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
            raise Temporary(f"{self._shown} answers no list of targets in JSON: {reason}.") from error
        self._findings = findings
        return findings.targets

    async def close(self) -> None:
        await self._endpoint.close()


def make(settings: HttpSdSettings) -> HttpSd:
    """The provider as the registry makes it."""
    return HttpSd(settings)
