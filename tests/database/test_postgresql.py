"""A PostgreSQL server that goes and comes back, or does not let the hub in: what is said, and that the hub goes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from fakes.ports import free_port
from fakes.postgres import PostgresServer, running_postgres
from fakes.waiting import wait_until
from gpudeck.database import postgresql
from gpudeck.database.engine import Database, open_database
from gpudeck.model.errors import Temporary, UsageError

ADD_ROW = "INSERT INTO audit (at, who, action) VALUES (1, 'me', 'test')"


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that these tests kill, and start again."""
    with running_postgres() as server:
        yield server


def test_server_that_is_gone_is_named_and_used_again_when_it_is_back(mortal: PostgresServer) -> None:
    async def playing(address: str) -> tuple[str, list[int]]:
        async with opened(address) as database:
            await asyncio.gather(*(ask(database, "SELECT count(pg_sleep(0.1))") for _ in range(5)))
            mortal.kill()
            with pytest.raises(Temporary) as raised:
                await ask(database, "SELECT 1")
            mortal.start()
            return str(raised.value), [await ask(database, "SELECT 1") for _ in range(10)]

    assert asyncio.run(playing(mortal.make_schema())) == (
        f"the database postgresql://127.0.0.1:{mortal.port}/postgres cannot be reached: connection refused. "
        "Look at the server, and at what is between it and this machine.",
        [1] * 10,
    )


def test_transaction_in_which_the_server_dies_is_undone(mortal: PostgresServer) -> None:
    async def playing(address: str) -> int:
        async with opened(address) as database:
            with pytest.raises(Temporary, match=r"postgres broke the connection\. Look at the server"):
                await write_while(database, mortal)
            mortal.start()
            return await ask(database, "SELECT count(*) FROM audit")

    assert asyncio.run(playing(mortal.make_schema())) == 0


async def write_while(database: Database, dying: PostgresServer) -> None:
    async with database.begin() as connection:
        await connection.execute(text(ADD_ROW))
        dying.kill()


def test_connections_that_the_server_ended_are_replaced(mortal: PostgresServer) -> None:
    async def playing(address: str) -> list[int]:
        async with opened(address) as database:
            await asyncio.gather(*(ask(database, "SELECT count(pg_sleep(0.1))") for _ in range(5)))
            async with database.begin() as connection:
                await connection.execute(text(END_OTHERS))
            return [await ask(database, "SELECT 1") for _ in range(10)]

    assert asyncio.run(playing(mortal.make_schema())) == [1] * 10


END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'gpudeck' AND pid != pg_backend_pid()
"""


def test_hub_opens_few_connections_however_many_ask(mortal: PostgresServer) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'gpudeck'"

    async def playing(address: str) -> int:
        async with opened(address) as database:
            await asyncio.gather(*(ask(database, "SELECT count(pg_sleep(0.02))") for _ in range(40)))
            return await ask(database, count)

    assert asyncio.run(playing(mortal.make_schema())) == postgresql.POOL_SIZE


def test_question_that_takes_too_long_has_an_end_and_hurts_no_other(mortal: PostgresServer) -> None:
    async def playing(address: str) -> int:
        engine = postgresql.make_engine(address, answers_in=0.2)
        database = Database("postgresql", postgresql.name_place(address), engine, postgresql.explain)
        with pytest.raises(Temporary, match=r"does not answer in time\."):
            await ask(database, "SELECT count(pg_sleep(60))")
        answer = await ask(database, "SELECT 1")
        await database.close()
        return answer

    assert asyncio.run(playing(mortal.address())) == 1


def test_server_can_be_reached_by_its_socket_file(mortal: PostgresServer) -> None:
    async def playing(address: str) -> int:
        async with opened(address) as database:
            return await ask(database, "SELECT 1")

    address = f"postgresql://gpudeck@/postgres?host={mortal.socket_folder}&port={mortal.port}"
    assert asyncio.run(playing(address)) == 1


def test_server_that_nobody_runs_is_named() -> None:
    port = free_port()
    assert refusal(f"postgresql://me:geheim@127.0.0.1:{port}/gpudeck") == (
        f"the database postgresql://127.0.0.1:{port}/gpudeck cannot be reached: connection refused. "
        "Look at the server, and at what is between it and this machine."
    )


def test_host_that_nobody_knows_is_named() -> None:
    said = refusal("postgresql://me:geheim@no-such-host.invalid/gpudeck")
    assert said.startswith("the database postgresql://no-such-host.invalid/gpudeck has a host that is not known: ")
    assert said.endswith(" Check `database` in gpudeck.yaml.")


def test_database_that_is_not_there_is_named(mortal: PostgresServer) -> None:
    assert refusal(mortal.address("nowhere")) == (
        f'the database postgresql://127.0.0.1:{mortal.port}/nowhere answers: database "nowhere" does not exist. '
        "Make that database, or correct `database` in gpudeck.yaml."
    )


def test_wrong_password_is_told_without_it(mortal: PostgresServer) -> None:
    mortal.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    mortal.ask_passwords_of("guarded")
    assert refusal(f"postgresql://guarded:geheim@127.0.0.1:{mortal.port}/postgres") == (
        f"the database postgresql://127.0.0.1:{mortal.port}/postgres answers: "
        'password authentication failed for user "guarded". '
        "Check user and password of `database` in gpudeck.yaml, and pg_hba.conf of the server."
    )


def test_user_who_may_make_no_tables_is_told_what_to_do(mortal: PostgresServer) -> None:
    mortal.execute("CREATE ROLE weak LOGIN")
    name = mortal.make_database().rpartition("/")[2]
    mortal.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", name)
    assert refusal(f"postgresql://weak@127.0.0.1:{mortal.port}/{name}") == (
        f"the database postgresql://127.0.0.1:{mortal.port}/{name} answers: permission denied for schema public. "
        "Make that user the owner of the database."
    )


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("sslmode=require", "rejected SSL upgrade"),
        ("sslmode=verify-full&sslrootcert=/nowhere.pem", "a file that its address names is not there"),
        ("nonsense=1", 'unrecognized configuration parameter "nonsense"'),
    ],
)
def test_option_that_does_not_fit_is_told(mortal: PostgresServer, option: str, said: str) -> None:
    address = f"{mortal.address()}?{option}"
    assert said in refusal(address)
    assert said in refusal(address, may_be_away=True), "waiting would not help"


def test_hub_waits_for_a_server_that_is_away_and_makes_the_tables_when_it_is_back(mortal: PostgresServer) -> None:
    async def playing(address: str) -> int:
        mortal.kill()
        database = await open_database(address, Path("/nowhere"), may_be_away=True)
        watching = asyncio.create_task(database.watch())
        with pytest.raises(Temporary, match="cannot be reached: connection refused"):
            await ask(database, "SELECT 1")
        mortal.start()
        await asyncio.to_thread(wait_until, lambda: database.away is None, "a server that answers", 60)
        try:
            return await ask(database, "SELECT count(*) FROM audit")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await database.close()

    assert asyncio.run(playing(mortal.make_schema())) == 0


def test_host_name_that_is_not_known_may_be_known_later() -> None:
    async def playing() -> str:
        database = await open_database(
            "postgresql://me@no-such-host.invalid/gpudeck", Path("/nowhere"), may_be_away=True
        )
        assert database.away is not None
        await database.close()
        return database.away.trouble.reason

    assert asyncio.run(playing()).startswith("has a host that is not known")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:geheim",
        "postgresql://me:ge#heim@127.0.0.1/gpudeck",
        "postgresql://me:ge/heim@127.0.0.1/gpudeck",
        "postgresql://me:ge?heim@127.0.0.1/gpudeck",
        "postgresql://me:geheim@127.0.0.1:port/gpudeck",
        "postgresql://[::1/gpudeck",
        "postgresql://me@127.0.0.1/gpudeck?sslmode=geheim",
    ],
)
def test_address_that_makes_no_sense_is_told_without_any_of_it(address: str) -> None:
    assert refusal(address) == (
        "the setting `database` is no address of a PostgreSQL server. It looks like "
        "postgresql://user:password@host:5432/gpudeck; @ : / ? # % in a password are written as %40 %3A %2F %3F %23 "
        "%25."
    )


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("postgresql://me:geheim@db.example:5432/gpudeck", "postgresql://db.example:5432/gpudeck"),
        ("postgresql://me:ge@heim@db.example/gpudeck", "postgresql://db.example/gpudeck"),
        ("postgresql://me@db.example/gpudeck?password=ge@heim", "postgresql://db.example/gpudeck"),
        ("postgresql://db.example/gpudeck?password=geheim", "postgresql://db.example/gpudeck"),
        ("postgresql://a:1,b:2/gpudeck", "postgresql://a:1,b:2/gpudeck"),
        ("postgresql://[2001:db8::1]:5432/gpudeck", "postgresql://[2001:db8::1]:5432/gpudeck"),
        ("postgresql:///gpudeck?host=/run/postgresql", "postgresql:///gpudeck"),
        ("postgresql://me:ge#heim@db.example/gpudeck", "postgresql://…"),
        ("postgresql://me:geheim/gpudeck", "postgresql://…"),
        ("postgresql://me:ge?heim@db.example/gpudeck", "postgresql://…"),
        ("postgresql://me:ge heim/gpudeck", "postgresql://…"),
    ],
)
def test_place_never_has_a_part_of_the_password(address: str, place: str) -> None:
    assert postgresql.name_place(address) == place


@contextlib.asynccontextmanager
async def opened(address: str) -> AsyncIterator[Database]:
    database = await open_database(address, Path("/nowhere"))
    try:
        yield database
    finally:
        await database.close()


async def ask(database: Database, question: str) -> int:
    async with database.begin() as connection:
        return int((await connection.execute(text(question))).scalar_one())


def refusal(address: str, *, may_be_away: bool = False) -> str:
    async def playing() -> None:
        await (await open_database(address, Path("/nowhere"), may_be_away=may_be_away)).close()

    with pytest.raises(UsageError) as raised:
        asyncio.run(playing())
    return str(raised.value)
