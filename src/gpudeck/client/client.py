"""Ask a hub over HTTP. Blocks; raises Unreachable when the hub does not answer like a hub."""

import msgspec
import urllib3

from gpudeck import __version__
from gpudeck.model.errors import GpudeckError, Unreachable
from gpudeck.model.hub_url import check_hub_url

_HINT = "Is it running? `gpudeck up` starts one; --hub or $GPUDECK_HUB names another."


class Client:
    """A hub at `url`. Answers come as the bytes the hub sent: callers that show JSON pass them on unchanged."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url = check_hub_url(url)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout)

    def fleet(self) -> bytes:
        """The whole fleet as JSON (see model.view.Fleet)."""
        return self._get("/api/v1/fleet")

    def _get(self, path: str) -> bytes:
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"}
        try:
            answer = self._pool.request("GET", self.url + path, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"no hub answers at {self.url}.", _HINT) from error
        if answer.status != 200:
            raise self._refusal(answer.status, answer.data)
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            raise Unreachable(f"{self.url} answers, but not as a gpudeck hub.", _HINT)
        return answer.data

    def _refusal(self, status: int, body: bytes) -> GpudeckError:
        try:
            error = msgspec.json.decode(body)["error"]
            return GpudeckError(str(error["message"]), str(error.get("hint", "")))
        except (msgspec.DecodeError, KeyError, TypeError):
            return Unreachable(f"{self.url} answered {status}, not as a gpudeck hub would.", _HINT)
