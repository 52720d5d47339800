"""Every route that changes something leaves an entry in the audit log. One that has no example here fails."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar.routes import HTTPRoute

from fakes.api_app import make_alerts, make_app, make_auth
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.alerts.rule import FleetContext
from gpudeck.alerts.settings import AlertSettings, RuleChange
from gpudeck.api.access import SAFE_METHODS
from gpudeck.api.app import read_routes
from gpudeck.auth.audit import AuditEntry
from gpudeck.auth.settings import UserSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.history import judge_problem

PASSWORD = "correct horse battery"
ROUTES = {
    "POST /api/v1/login": "log in",
    "POST /api/v1/logout": "logout",
    "POST /api/v1/logout-everywhere": "logout everywhere",
    "POST /api/v1/me/password": "change password",
    "POST /api/v1/first-admin": "make first admin",
    "POST /api/v1/accounts": "add account",
    "PATCH /api/v1/accounts/{name}": "change account",
    "DELETE /api/v1/accounts/{name}": "remove account",
    "POST /api/v1/tokens": "create token",
    "DELETE /api/v1/tokens/{token_id}": "revoke token",
    "POST /api/v1/jobs/import": "import jobs",
    "POST /api/v1/hosts": "add host",
    "DELETE /api/v1/hosts": "remove hosts",
    "DELETE /api/v1/hosts/{host}": "remove host",
    "POST /api/v1/reservations": "reserve GPUs",
    "PATCH /api/v1/reservations/{number}": "change reservation",
    "DELETE /api/v1/reservations/{number}": "release reservation",
    "POST /api/v1/alerts/acknowledge": "acknowledge alert",
    "POST /api/v1/alerts/unacknowledge": "unacknowledge alert",
    "POST /api/v1/alerts/{key}/acknowledge": "acknowledge alert",
    "POST /api/v1/mutes": "add mute",
    "DELETE /api/v1/mutes/{key}": "end mute",
    "POST /api/v1/ask": "ask owner",
    "POST /api/v1/maintenance": "drain",
    "DELETE /api/v1/maintenance/{number}": "undrain",
    "PUT /api/v1/hosts/{host}/note": "note host",
    "POST /api/v1/keeps": "keep gpu",
    "DELETE /api/v1/keeps/{number}": "end keep",
    "POST /api/v1/queue": "join queue",
    "DELETE /api/v1/queue/{number}": "leave queue",
    "POST /api/v1/watches": "add watch",
    "DELETE /api/v1/watches/{number}": "remove watch",
    "PUT /api/v1/me/mutes": "choose mutes",
    "PUT /api/v1/me/views": "save views",
    "POST /api/v1/me/token": "create token",
    "DELETE /api/v1/me/token": "revoke token",
    "DELETE /api/v1/me/tokens/{token_id}": "revoke token",
    "DELETE /api/v1/me/sessions/{session_id}": "end session",
    "DELETE /api/v1/sessions/{session_id}": "end session",
    "POST /api/v1/device/{user_code}": "confirm login",
    "POST /api/v1/device/token": "create token",
}
"""What the entry calls it. Reports are no changes: what they leave behind is the fleet."""
QUESTIONS = {
    "POST /api/v1/reservations/preview": {"host": "gpu01", "for": "4h"},
    "POST /api/v1/device": {"name": "laptop"},
}
"""Those with a body that change nothing. Programs begin logins before anybody is known: confirming is the change."""

OF_PROVIDERS = {"POST /api/v1/login/oidc/{name}/logout", "POST /api/v1/login/trials"}
"""Those that need a provider: tests/auth/test_oidc_providers.py looks for their entries."""


class Site:
    """A hub with an admin, root, who is logged in; an account, ada; a token; and a host that was added."""

    def __init__(self, folder: Path) -> None:
        self.auth = make_auth(folder)
        self.hub = Hub(now=FakeClock())
        self.hub.fleet.apply(make_envelope(), via="push", now=self.hub.stream.time)
        at_once = AlertSettings(rules={"history_failing": RuleChange(wait=0.0)})
        self.alerts = make_alerts(self.auth.database, at_once)
        nowhere: Any = SimpleNamespace(put=lambda message: None)
        self.app: Any = make_app(
            self.hub, auth=self.auth, folder=folder, is_readable=False, alerts=self.alerts, outbox=nowhere
        )
        self.cookies = httpx.Cookies()

    def fill(self) -> "Site":
        asyncio.run(self.auth.accounts.add("root", "admin", PASSWORD))
        asyncio.run(self.auth.accounts.add("ada", "user", PASSWORD))
        self.call("POST /api/v1/login", {"name": "root", "password": PASSWORD})
        self.call("POST /api/v1/hosts", {"name": "gpu07", "via": "ssh"})
        return self

    def call(self, route: str, body: Any = None, token: str = "") -> httpx.Response:
        method, path = route.split(" ")
        headers = {"Authorization": f"Bearer {token}"} if token else {}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://hub.example", cookies=self.cookies
            ) as http:
                answer = await http.request(method, path, json=body, headers=headers)
                self.cookies = http.cookies
                return answer

        return asyncio.run(ask())

    def entries(self) -> list[AuditEntry]:
        return asyncio.run(self.auth.audit.list())


def first_admin(site: Site) -> httpx.Response:
    secret = asyncio.run(site.auth.first_admin.make())
    return site.call("POST /api/v1/first-admin", {"secret": secret, "name": "root", "password": PASSWORD})


def leaving_the_queue(site: Site) -> httpx.Response:
    site.fill().call("POST /api/v1/queue", {"key": "somebody's key"})
    return site.call("DELETE /api/v1/queue/1")


def no_longer_watching(site: Site) -> httpx.Response:
    site.fill().call("POST /api/v1/watches", {"gpus": 2})
    return site.call("DELETE /api/v1/watches/1")


def alert_of(site: Site) -> str:
    site.alerts.engine.begin(FleetContext(now=1.0, history=judge_problem("the disk is full")))
    site.alerts.engine.finish()
    (record,) = site.alerts.engine.firing()
    return record.id


def acknowledging(site: Site) -> httpx.Response:
    return site.fill().call(f"POST /api/v1/alerts/{alert_of(site)}/acknowledge")


def acknowledging_several(site: Site) -> httpx.Response:
    return site.fill().call("POST /api/v1/alerts/acknowledge", {"ids": [alert_of(site)]})


def withdrawing(site: Site) -> httpx.Response:
    ids = {"ids": [alert_of(site)]}
    site.fill().call("POST /api/v1/alerts/acknowledge", ids)
    return site.call("POST /api/v1/alerts/unacknowledge", ids)


def ending_a_mute(site: Site) -> httpx.Response:
    made = site.fill().call("POST /api/v1/mutes", {"host": "gpu*", "for": "2h", "reason": "moving"})
    return site.call(f"DELETE /api/v1/mutes/{made.json()['id']}")


def asking(site: Site) -> httpx.Response:
    idle = make_busy_gpu(user="bob", uuid="GPU-idle", idle_seconds=7200.0, metrics={"utilization_percent": 0})
    site.hub.fleet.apply(make_envelope(sequence=2, gpus=[idle]), via="push", now=site.hub.stream.time)
    site.auth.users.take({"bob": UserSettings(mail="bob@example.org")})
    return site.fill().call("POST /api/v1/ask", {"host": "gpu01", "gpu": "0"})


def ending_maintenance(site: Site) -> httpx.Response:
    made = site.fill().call("POST /api/v1/maintenance", {"host": "gpu01", "reason": "fans"})
    return site.call(f"DELETE /api/v1/maintenance/{made.json()['maintenance']['id']}")


KEEP = {"host": "gpu01", "gpu": "0", "for": "8h", "reason": "a demo"}


def ending_a_keep(site: Site) -> httpx.Response:
    made = site.fill().call("POST /api/v1/keeps", KEEP)
    return site.call(f"DELETE /api/v1/keeps/{made.json()['id']}")


def revoking_own_token(site: Site) -> httpx.Response:
    made = site.fill().call("POST /api/v1/me/token", {"name": "laptop"})
    site.cookies.clear()
    return site.call("DELETE /api/v1/me/token", token=made.json()["secret"])


def revoking_one_of_own_tokens(site: Site) -> httpx.Response:
    site.fill().call("POST /api/v1/me/token", {"name": "laptop"})
    (token,) = site.call("GET /api/v1/me/tokens").json()["tokens"]
    return site.call(f"DELETE /api/v1/me/tokens/{token['id']}")


def ending_a_session(path: str) -> Callable[[Site], httpx.Response]:
    def call(site: Site) -> httpx.Response:
        (session,) = site.fill().call("GET /api/v1/me/sessions").json()["sessions"]
        return site.call(f"DELETE {path}/{session['id']}")

    return call


def confirming(site: Site) -> httpx.Response:
    begun = site.fill().call("POST /api/v1/device", {"name": "laptop"}).json()
    return site.call(f"POST /api/v1/device/{begun['user_code']}", {"is_approved": True})


def redeeming(site: Site) -> httpx.Response:
    begun = site.fill().call("POST /api/v1/device", {"name": "laptop"}).json()
    site.call(f"POST /api/v1/device/{begun['user_code']}", {"is_approved": True})
    return site.call("POST /api/v1/device/token", {"device_code": begun["device_code"]})


def calling(route: str, body: Any = None) -> Callable[[Site], httpx.Response]:
    return lambda site: site.fill().call(route, body)


def reservation(route: str, body: Any = None) -> Callable[[Site], httpx.Response]:
    """Something about a reservation that is there."""

    def call(site: Site) -> httpx.Response:
        site.fill().call("POST /api/v1/reservations", {"host": "gpu01", "for": "4h"})
        return site.call(route, body)

    return call


EXAMPLES: dict[str, Callable[[Site], httpx.Response]] = {
    "POST /api/v1/login": calling("POST /api/v1/login", {"name": "ada", "password": PASSWORD}),
    "POST /api/v1/logout": calling("POST /api/v1/logout"),
    "POST /api/v1/logout-everywhere": calling("POST /api/v1/logout-everywhere"),
    "POST /api/v1/me/password": calling("POST /api/v1/me/password", {"old": PASSWORD, "new": "another horse"}),
    "POST /api/v1/first-admin": first_admin,
    "POST /api/v1/accounts": calling("POST /api/v1/accounts", {"name": "bob"}),
    "PATCH /api/v1/accounts/{name}": calling("PATCH /api/v1/accounts/ada", {"role": "viewer"}),
    "DELETE /api/v1/accounts/{name}": calling("DELETE /api/v1/accounts/ada"),
    "POST /api/v1/tokens": calling("POST /api/v1/tokens", {"name": "t", "role": "viewer"}),
    "DELETE /api/v1/tokens/{token_id}": calling("DELETE /api/v1/tokens/1"),
    "POST /api/v1/jobs/import": calling(
        "POST /api/v1/jobs/import", {"scheduler": "slurm", "jobs": [{"job": "7", "start": 1.0, "seconds": 60.0}]}
    ),
    "POST /api/v1/hosts": calling("POST /api/v1/hosts", {"name": "gpu08", "via": "ssh"}),
    "DELETE /api/v1/hosts": calling("DELETE /api/v1/hosts?name=gpu07"),
    "DELETE /api/v1/hosts/{host}": calling("DELETE /api/v1/hosts/gpu07"),
    "POST /api/v1/reservations": calling("POST /api/v1/reservations", {"host": "gpu01", "for": "4h"}),
    "PATCH /api/v1/reservations/{number}": reservation("PATCH /api/v1/reservations/1", {"note": "longer"}),
    "DELETE /api/v1/reservations/{number}": reservation("DELETE /api/v1/reservations/1"),
    "POST /api/v1/alerts/acknowledge": acknowledging_several,
    "POST /api/v1/alerts/unacknowledge": withdrawing,
    "POST /api/v1/alerts/{key}/acknowledge": acknowledging,
    "POST /api/v1/mutes": calling("POST /api/v1/mutes", {"rule": "gpu_hot", "for": "2h", "reason": "fans"}),
    "DELETE /api/v1/mutes/{key}": ending_a_mute,
    "POST /api/v1/ask": asking,
    "POST /api/v1/maintenance": calling("POST /api/v1/maintenance", {"host": "gpu01", "reason": "fans"}),
    "DELETE /api/v1/maintenance/{number}": ending_maintenance,
    "PUT /api/v1/hosts/{host}/note": calling("PUT /api/v1/hosts/gpu01/note", {"text": "loud"}),
    "POST /api/v1/keeps": calling("POST /api/v1/keeps", KEEP),
    "DELETE /api/v1/keeps/{number}": ending_a_keep,
    "POST /api/v1/queue": calling("POST /api/v1/queue", {"key": "somebody's key"}),
    "DELETE /api/v1/queue/{number}": leaving_the_queue,
    "POST /api/v1/watches": calling("POST /api/v1/watches", {"gpus": 2}),
    "DELETE /api/v1/watches/{number}": no_longer_watching,
    "PUT /api/v1/me/mutes": calling("PUT /api/v1/me/mutes", {"rules": ["gpu_idle"]}),
    "PUT /api/v1/me/views": calling("PUT /api/v1/me/views", {"views": [{"name": "mine", "href": "?q=ada"}]}),
    "POST /api/v1/me/token": calling("POST /api/v1/me/token", {"name": "laptop"}),
    "DELETE /api/v1/me/token": revoking_own_token,
    "DELETE /api/v1/me/tokens/{token_id}": revoking_one_of_own_tokens,
    "DELETE /api/v1/me/sessions/{session_id}": ending_a_session("/api/v1/me/sessions"),
    "DELETE /api/v1/sessions/{session_id}": ending_a_session("/api/v1/sessions"),
    "POST /api/v1/device/{user_code}": confirming,
    "POST /api/v1/device/token": redeeming,
}


def test_every_route_that_changes_something_has_an_example() -> None:
    app = read_routes()
    changing = {
        f"{method} {route.path_format}"
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - SAFE_METHODS
    }
    assert changing - QUESTIONS.keys() - OF_PROVIDERS == ROUTES.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("route", QUESTIONS)
def test_question_leaves_no_entry(tmp_path: Path, route: str) -> None:
    site = Site(tmp_path).fill()
    before = site.entries()
    assert site.call(route, QUESTIONS[route]).is_success
    assert site.entries() == before


@pytest.mark.parametrize("route", ROUTES)
def test_change_leaves_who_did_what_from_where(tmp_path: Path, route: str) -> None:
    site = Site(tmp_path)
    assert EXAMPLES[route](site).is_success
    # Whoever makes the first admin is logged in, too.
    entry = next(entry for entry in site.entries() if entry.action == ROUTES[route])
    assert (entry.outcome, entry.address) == ("done", "192.0.2.7")
    assert re.fullmatch(r"(root|ada)( \(token \d+\))?", entry.who)
    assert site.entries()[:2].count(entry) == 1


def test_log_in_that_is_refused_is_there_too(tmp_path: Path) -> None:
    site = Site(tmp_path).fill()
    site.call("POST /api/v1/login", {"name": "ada", "password": "another horse"})
    assert (site.entries()[0].action, site.entries()[0].outcome) == ("log in", "refused")


def test_a_gpu_that_cannot_be_kept_for_so_long_is_refused_with_the_reason(tmp_path: Path) -> None:
    refused = Site(tmp_path).fill().call("POST /api/v1/keeps", KEEP | {"for": "31d"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_length")
