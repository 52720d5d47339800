"""An address as Prometheus asks it with http_sd_configs: an inventory or a script that answers JSON."""

import asyncio

import msgspec

from gpudeck.discovery.base import Findings
from gpudeck.discovery.endpoint import Endpoint
from gpudeck.discovery.long_lists import read_list
from gpudeck.discovery.settings import HttpSdSettings
from gpudeck.discovery.target_groups import read_groups
from gpudeck.fetch import show_url
from gpudeck.model.errors import Temporary
from gpudeck.model.target import Target, Via


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
        self._findings = await asyncio.to_thread(
            read_list, read_targets, answer.body, self.origin, self._settings.via, self._shown
        )
        return self._findings.targets

    async def close(self) -> None:
        await self._endpoint.close()


def read_targets(body: bytes, origin: str, via: Via, shown: str) -> Findings:
    """The hosts in an answer. Raises Temporary, which names the address `shown`."""
    findings = Findings()
    try:
        read_groups(msgspec.json.decode(body), origin, via, findings)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise Temporary(f"{shown} answers no list of targets in JSON: {reason}.") from error
    return findings


def make(settings: HttpSdSettings) -> HttpSd:
    """The provider as the registry makes it."""
    return HttpSd(settings)
