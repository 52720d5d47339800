"""What changes an account is done as a whole or not at all, on SQLite and PostgreSQL: the account, its sessions and
tokens, and the entry in the audit log."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from fakes.api_app import make_app
from fakes.clock import FakeClock
from fakes.passwords import quick_hasher
from gpudeck.auth.accounts import Passwords
from gpudeck.auth.auth import Auth
from gpudeck.auth.settings import AuthSettings
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.fleet.hub import Hub

PASSWORD = "correct horse battery"
TABLES = (schema.accounts, schema.sessions, schema.tokens, schema.audit)
ORIGIN = "http://hub.example"


class Stage:
    """A hub with the admin root, and ada who is logged in and has a token."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.database = database
        self.auth = Auth(database, AuthSettings(), passwords=Passwords(quick_hasher()), now=self.clock)
        self.app: Any = make_app(Hub(now=self.clock), auth=self.auth, is_readable=False)

    def fill(self) -> "Stage":
        for name, role in (("root", "admin"), ("ada", "user")):
            asyncio.run(self.auth.accounts.add(name, role, PASSWORD))  # type: ignore[arg-type]
        self.auth.note_account()
        self.cookies = {name: self.log_in(name).cookies for name in ("root", "ada")}
        self.call("ada", "POST", "/api/v1/tokens", {"name": "adas", "role": "user"})
        return self

    def log_in(self, name: str) -> httpx.Response:
        return self.call(None, "POST", "/api/v1/login", {"name": name, "password": PASSWORD})

    def call(self, name: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            cookies = self.cookies[name] if name is not None else None
            transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 40000), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=cookies) as http:
                return await http.request(method, path, headers={"origin": ORIGIN}, json=body)

        return asyncio.run(ask())

    def rows(self) -> dict[str, list[Any]]:
        async def read() -> dict[str, list[Any]]:
            async with self.database.begin() as connection:
                return {
                    table.name: list(await connection.execute(select(table).order_by(*table.primary_key)))
                    for table in TABLES
                }

        return asyncio.run(read())

    @contextmanager
    def failing_at(self, number: int) -> Iterator[None]:
        """The database fails at that statement which writes."""
        count, engine = itertools.count(), self.database.engine.sync_engine

        def fail(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith(("INSERT", "UPDATE", "DELETE")) and next(count) == number:
                raise OperationalError(statement, {}, Exception("disk I/O error"))

        event.listen(engine, "before_cursor_execute", fail)
        try:
            yield
        finally:
            event.remove(engine, "before_cursor_execute", fail)


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database)


ACTIONS: dict[str, Callable[[Stage], httpx.Response]] = {
    "log in": lambda stage: stage.log_in("ada"),
    "add account": lambda stage: stage.call(
        "root", "POST", "/api/v1/accounts", {"name": "mia", "role": "user", "password": PASSWORD}
    ),
    "change account": lambda stage: stage.call(
        "root", "PATCH", "/api/v1/accounts/ada", {"role": "viewer", "is_disabled": True, "password": "another good one"}
    ),
    "remove account": lambda stage: stage.call("root", "DELETE", "/api/v1/accounts/ada"),
    "change password": lambda stage: stage.call(
        "ada", "POST", "/api/v1/me/password", {"old": PASSWORD, "new": "another good one"}
    ),
    "logout": lambda stage: stage.call("ada", "POST", "/api/v1/logout"),
    "logout everywhere": lambda stage: stage.call("ada", "POST", "/api/v1/logout-everywhere"),
    "create token": lambda stage: stage.call("ada", "POST", "/api/v1/tokens", {"name": "more", "role": "viewer"}),
    "revoke token": lambda stage: stage.call("ada", "DELETE", f"/api/v1/tokens/{stage.rows()['tokens'][-1].id}"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_database_that_fails_in_the_middle_leaves_all_or_nothing(stage: Stage, action: str) -> None:
    stage.fill()
    check_every_statement(stage, action, ACTIONS[action])


def check_every_statement(stage: Stage, action: str, act: Callable[[Stage], httpx.Response]) -> None:
    before = stage.rows()
    for number in itertools.count():
        with stage.failing_at(number):
            answer = act(stage)
        if answer.is_success:
            break
        assert answer.status_code >= 500
        stage.auth.login.throttle.note_success("ada", "192.0.2.7")  # each was a try, and none was a guess
        assert stage.rows() == before
    after = stage.rows()
    assert number >= 2
    assert [row.action for row in after["audit"][len(before["audit"]) :]] == [action]


def test_the_first_admin_is_made_and_logged_in_or_neither(stage: Stage) -> None:
    secret = asyncio.run(stage.auth.first_admin.make())
    body = {"secret": secret, "name": "root", "password": PASSWORD}
    check_every_statement(
        stage, "make first admin", lambda stage: stage.call(None, "POST", "/api/v1/first-admin", body)
    )
    (root,) = asyncio.run(stage.auth.accounts.list())
    assert root.last_login_at == stage.clock()
    assert len(asyncio.run(stage.auth.sessions.list(root.id))) == 1


def test_a_new_password_leaves_one_session(stage: Stage) -> None:
    stage.fill().log_in("ada")
    changed = ACTIONS["change password"](stage)
    ada = asyncio.run(stage.auth.accounts.find("ada"))
    assert ada is not None
    assert len(asyncio.run(stage.auth.sessions.list(ada.id))) == 1
    assert stage.call("ada", "GET", "/api/v1/fleet").status_code == 401
    stage.cookies["ada"] = changed.cookies
    assert stage.call("ada", "GET", "/api/v1/fleet").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/me/password", {"old": PASSWORD, "new": "short"}),
        ("/api/v1/me/password", {"old": PASSWORD, "new": "ada" * 3}),
        ("/api/v1/me/password", {"old": PASSWORD, "new": ""}),
    ],
)
def test_a_bad_new_password_starts_and_ends_no_session(stage: Stage, path: str, body: Any) -> None:
    stage.fill()
    before = stage.rows()
    answer = stage.call("ada", "POST", path, body)
    assert (answer.status_code, "set-cookie" in answer.headers) == (400, False)
    assert stage.rows() == before


def test_a_bad_password_of_a_first_admin_or_of_somebody_new_leaves_nothing(stage: Stage) -> None:
    secret = asyncio.run(stage.auth.first_admin.make())
    before = stage.rows()
    body = {"secret": secret, "name": "root", "password": "short"}
    assert stage.call(None, "POST", "/api/v1/first-admin", body).status_code == 400
    assert stage.rows() == before
    stage.fill()
    before = stage.rows()
    for method, path in (("POST", "/api/v1/accounts"), ("PATCH", "/api/v1/accounts/ada")):
        named = {"name": "mia"} if method == "POST" else {"role": "admin", "is_disabled": True}
        assert stage.call("root", method, path, named | {"password": "short"}).status_code == 400
    assert stage.rows() == before
