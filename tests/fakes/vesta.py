"""A hub that answers as a server of vesta, without a server; and what was captured of the real one."""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from fakes.api_app import make_app, make_auth
from fakes.clock import FakeClock
from gpudeck.api.access import Authenticator, Commands
from gpudeck.api.app import ForeignRoutes
from gpudeck.api.services import ApiServices
from gpudeck.compat.settings import VestaSettings
from gpudeck.compat.vesta.routes import VestaImportRoute, VestaRoutes
from gpudeck.compat.vesta.store import Samples, VestaRegister
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import Store
from gpudeck.model.clock import RetentionClock
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import AdmissionGate

CAPTURES = Path(__file__).parent.parent / "captures" / "vesta"
TOKEN = "0123-token"
CAPTURED_AT = 1_794_724_677.5
"""When the captured server took the first post: 2026-11-15 06:37:57 UTC."""


def captured_posts() -> list[bytes]:
    """The bodies that a real sender posted."""
    exchange = (CAPTURES / "sender-exchange.txt").read_bytes()
    return [found.rstrip(b"\n") for found in re.findall(rb'^\{"gpu:0".*$', exchange, re.MULTILINE)]


def captured_body(name: str) -> str:
    """What a real server answered, without its head."""
    return re.split(r"\r?\n\r?\n", (CAPTURES / name).read_bytes().decode(), maxsplit=1)[1]


class VestaHub:
    """The ASGI application of a hub on a clock of its own. `start` again is what a restart of the hub is."""

    def __init__(
        self,
        folder: Path,
        *,
        is_readable: bool = True,
        commands: Commands = "everyone",
        history: Store | None = None,
        keeps: float = 10 * 365 * 86_400.0,
        **settings: Any,
    ) -> None:
        """`keeps` is how many seconds the history keeps anything."""
        self.clock = FakeClock(CAPTURED_AT)
        self.settings = VestaSettings(**{"token": TOKEN, "timestamp_format": "DMY"} | settings)
        folder.mkdir(exist_ok=True)
        self.address = "127.0.0.1"
        self.has_room: Callable[[], bool] = lambda: True
        self._auth = make_auth(folder, with_tokens=not (folder / FILE_NAME).exists())
        self.keeps = keeps
        self._history = history
        self._options: dict[str, Any] = {"is_readable": is_readable, "commands": commands, "history": history}
        self.start()

    def start(self) -> None:
        self.hub = Hub(now=self.clock)
        retention = RetentionClock(now=self.clock, monotonic=self.clock)
        self.register = VestaRegister(self._auth.database, self.clock, forget_after=30 * 86_400.0, retention=retention)
        asyncio.run(self.register.load())
        self.app = make_app(self.hub, auth=self._auth, foreign_routes=self._side_doors, **self._options)

    def _side_doors(self, house: ApiServices, keeper: Authenticator) -> Sequence[ForeignRoutes]:
        samples = Samples(self._auth.database)
        self.senders = VestaRoutes(
            house.hub,
            self.register,
            samples,
            self.settings,
            identify=keeper.identify,
            policy=house.policy,
            now=self.clock,
        )
        imports = VestaImportRoute(
            self.register,
            samples,
            house.history,
            has_room=self._ask_room,
            settle=self._settle,
            keeps=self.keeps,
            identify=keeper.identify,
            now=self.clock,
        )
        return [self.senders, imports]

    def limit(self, settings: LimitsSettings, prefix: str = "", **options: Any) -> AdmissionGate:
        """From here on the door is behind limits, on the same clock; a refusal comes at once."""
        options = {"now": self.clock, "hold": 0.0} | options
        limited = AdmissionGate(self.app, settings, senders=[self.senders], prefix=prefix, **options)  # type: ignore[arg-type]
        self.app = limited  # type: ignore[assignment]
        return limited

    def _ask_room(self) -> bool:
        return self.has_room()

    def _settle(self) -> bool:
        return self._history is None or bool(getattr(self._history, "flush", lambda: True)())

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(self.address, 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def add(self, name: str, token: str = TOKEN) -> dict[str, Any]:
        """Register as a sender does."""
        answer: dict[str, Any] = self.get("/register/", params={"host_name": name, "token": token}).json()
        return answer

    def post(self, host_id: str, body: Any, token: str = TOKEN) -> dict[str, Any]:
        """Post as a sender does: JSON that is written already, or what is to be written."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.call("POST", f"/update/host/{host_id}?token={token}", content=content)
        assert answer.status_code == 200
        told: dict[str, Any] = answer.json()
        return told

    def report(self, name: str, body: Any) -> str:
        """Register and post; the id."""
        host_id = str(self.add(name)["id"])
        assert self.post(host_id, body) == {"status": "OK", "status_code": 200}
        return host_id

    def states(self, path: str = "/states/") -> dict[str, Any]:
        answer = self.get(path)
        assert answer.status_code == 200
        told: dict[str, Any] = answer.json()
        return told


def make_post(gpus: int = 1, **changes: Any) -> dict[str, Any]:
    """A post of so many GPUs, each with one process; `changes` are of each GPU."""
    return {
        f"gpu:{number}": {
            "device_num": number,
            "uuid": f"GPU-{number}",
            "gpu_name": "GeForce GTX 1080 Ti",
            "temperature": 80,
            "total_memory": 11169,
            "available_memory": 3151,
            "used_memory": 8018,
            "timestamp": "2026/11/15 06:37:57.091",
            "gpu_volatile": 92,
            "processes": [{"pid": "4711", "name": "train", "user": "alice", "used_memory": 6400}],
        }
        | changes
        for number in range(gpus)
    }
