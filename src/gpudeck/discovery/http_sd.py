"""An address as Prometheus asks it with http_sd_configs: an inventory or a script that answers JSON."""

import asyncio

import msgspec

from gpudeck.discovery.base import Findings
from gpudeck.discovery.endpoint import Endpoint
from gpudeck.discovery.settings import HttpSdSettings
from gpudeck.discovery.target_groups import read_groups
from gpudeck.fetch import show_url
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target


class HttpSd:
    """The hosts that a server answers, asked at an interval."""

    def __init__(self, settings: HttpSdSettings) -> None:
        self._shown = show_url(settings.url)
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
        self._findings = await asyncio.to_thread(self._read, answer.body)  # a fifth of a second for 20,000 hosts
        return self._findings.targets

    async def close(self) -> None:
        await self._endpoint.close()

    def _read(self, body: bytes) -> Findings:
        findings = Findings()
        try:
            read_groups(msgspec.json.decode(body), self.origin, self._settings.via, findings)
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
            raise Temporary(f"{self._shown} answers no list of targets in JSON: {reason}.") from error
        return findings


def make(settings: HttpSdSettings) -> HttpSd:
    """The provider as the registry makes it."""
    return HttpSd(settings)
