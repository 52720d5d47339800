"""Ask a hub over HTTP. Blocks; raises Unreachable when the hub does not answer like a hub."""

import msgspec
import urllib3

from gpudeck import __version__
from gpudeck.model.errors import GpudeckError, Unreachable
from gpudeck.model.hub_url import check_hub_url, mask_password

_HINT = "Is it running? `gpudeck up` starts one; --hub or $GPUDECK_HUB names another."


class Client:
    """A hub at `url`. Answers come as the bytes the hub sent: callers that show JSON pass them on unchanged."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url = check_hub_url(url)
        self._shown = mask_password(self.url)
        self._pool = urllib3.PoolManager(retries=False, timeout=timeout)

    def fleet(self) -> bytes:
        """The whole fleet as JSON (see model.view.Fleet)."""
        return self._get("/api/v1/fleet")

    def _get(self, path: str) -> bytes:
        headers = {"User-Agent": f"gpudeck/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"}
        try:
            answer = self._pool.request("GET", self.url + path, headers=headers)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"no hub answers at {self._shown}.", _HINT) from error
        if answer.status != 200:
            raise self._refusal(answer.status, answer.data)
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            raise self._no_hub()
        return answer.data

    def _refusal(self, status: int, body: bytes) -> GpudeckError:
        if status == 404:  # every hub knows the fleet: this is another server, or a path beside the hub's
            return self._no_hub()
        try:
            error = msgspec.json.decode(body)["error"]
            return GpudeckError(str(error["message"]), str(error.get("hint", "")))
        except (msgspec.DecodeError, KeyError, TypeError):
            return Unreachable(f"{self._shown} answered {status}, not as a gpudeck hub would.", _HINT)

    def _no_hub(self) -> Unreachable:
        return Unreachable(f"{self._shown} answers, but is no gpudeck hub.", "Check the address, and the path in it.")
