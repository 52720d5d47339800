"""Tokens in files of the hub: what moves into the database, and what the database follows."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from gpudeck.auth.service import ADMIN_NAME, AGENTS_NAME, TokenFiles
from gpudeck.auth.tokens import SECRET_LENGTH, Token, Tokens
from gpudeck.database.engine import Database, open_database
from gpudeck.model.errors import Temporary, UsageError


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Of a hub that has made its two files."""
    folder = tmp_path / "hub"
    folder.mkdir()
    write(folder / "agent.token", "agents secret")
    write(folder / "admin.token", "admins secret")
    return folder


@pytest.fixture
def tokens(database: Database) -> Tokens:
    return Tokens(database, FakeClock())


def write(file: Path, secret: str) -> None:
    """As somebody who replaces the file, so that its change shows however coarse the file system's clock is."""
    begun = file.with_name("begun")
    begun.write_text(f"{secret}\n")
    begun.replace(file)


def take_over(tokens: Tokens, data_dir: Path, **others: Any) -> TokenFiles:
    files = TokenFiles(tokens, data_dir, **others)
    asyncio.run(files.load())
    return files


def live(tokens: Tokens) -> list[tuple[str, str, str | None]]:
    listed = [token for token in asyncio.run(tokens.list()) if token.is_live(tokens.now())]
    return sorted((token.name, token.role, token.hosts) for token in listed)


def find(tokens: Tokens, secret: str) -> Token:
    found = tokens.find(secret)
    assert found is not None
    return found


def test_tokens_in_files_are_rows_like_any_other(tokens: Tokens, data_dir: Path) -> None:
    take_over(tokens, data_dir)
    assert (find(tokens, "agents secret").role, find(tokens, "agents secret").hosts) == ("agent", None)
    assert find(tokens, "admins secret").role == "admin"
    assert live(tokens) == [(AGENTS_NAME, "agent", None), (ADMIN_NAME, "admin", None)]
    assert (data_dir / "agent.token").read_text() == "agents secret\n"


def test_next_start_changes_nothing(tokens: Tokens, data_dir: Path) -> None:
    take_over(tokens, data_dir)
    before = asyncio.run(tokens.list())
    take_over(Tokens(tokens.database, FakeClock(2e9)), data_dir)
    assert asyncio.run(tokens.list()) == before


def test_token_of_all_agents_may_lie_elsewhere(tokens: Tokens, data_dir: Path) -> None:
    write(data_dir / "elsewhere", "another secret")
    take_over(tokens, data_dir, agent_file=data_dir / "elsewhere")
    assert find(tokens, "another secret").name == AGENTS_NAME
    assert tokens.find("agents secret") is None


def test_row_follows_its_file_over_a_restart(tokens: Tokens, data_dir: Path) -> None:
    take_over(tokens, data_dir)
    write(data_dir / "agent.token", "new secret")
    take_over(tokens, data_dir)
    assert tokens.find("agents secret") is None
    assert find(tokens, "new secret").name == AGENTS_NAME
    assert len(asyncio.run(tokens.list())) == 2


def test_row_follows_its_file_while_the_hub_runs(tokens: Tokens, data_dir: Path) -> None:
    files = take_over(tokens, data_dir)
    write(data_dir / "admin.token", "new secret")
    asyncio.run(files.follow())
    assert tokens.find("admins secret") is None
    assert find(tokens, "new secret").role == "admin"


def test_another_hub_sees_that_a_row_followed_its_file(tokens: Tokens, data_dir: Path) -> None:
    files = take_over(tokens, data_dir)
    other = Tokens(tokens.database, tokens.now)
    asyncio.run(other.load())
    tokens.now.advance(60)  # type: ignore[attr-defined]
    write(data_dir / "agent.token", "new secret")
    asyncio.run(files.follow())
    asyncio.run(other.refresh())
    assert other.find("agents secret") is None
    assert find(other, "new secret").name == AGENTS_NAME


def test_revoked_token_of_a_file_stays_revoked_until_the_file_changes(
    tokens: Tokens, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(tokens, data_dir)
    asyncio.run(tokens.revoke(find(tokens, "agents secret").id))
    take_over(tokens, data_dir)
    assert tokens.find("agents secret") is None
    assert f"the token in {data_dir / 'agent.token'} was revoked" in caplog.text
    write(data_dir / "agent.token", "new secret")
    take_over(tokens, data_dir)
    assert find(tokens, "new secret").name == AGENTS_NAME
    assert tokens.find("agents secret") is None


def test_token_made_by_hand_and_put_into_the_file_stays_what_it_is(
    tokens: Tokens, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_over(tokens, data_dir)
    token, secret = asyncio.run(tokens.create("rack 3", "agent", hosts="gpu3*"))
    write(data_dir / "agent.token", secret)
    take_over(tokens, data_dir)
    assert find(tokens, secret) == token
    assert tokens.find("agents secret") is None
    assert caplog.records == []


def test_agents_token_in_the_admins_file_makes_nobody_admin(
    tokens: Tokens, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(data_dir / "admin.token", "agents secret")
    take_over(tokens, data_dir)
    assert find(tokens, "agents secret").role == "agent"
    assert "is one of the role agent, not admin" in caplog.text
    assert "agents secret" not in caplog.text


def test_token_somebody_called_like_the_files_row_is_left_alone(tokens: Tokens, data_dir: Path) -> None:
    namesake, secret = asyncio.run(tokens.create(AGENTS_NAME, "agent", hosts="gpu01", created_by="alice"))
    take_over(tokens, data_dir)
    write(data_dir / "agent.token", "new secret")
    take_over(tokens, data_dir)
    assert find(tokens, secret) == namesake


def test_file_that_is_gone_changes_nothing(tokens: Tokens, data_dir: Path) -> None:
    files = take_over(tokens, data_dir)
    (data_dir / "agent.token").unlink()
    asyncio.run(files.follow())
    assert find(tokens, "agents secret").name == AGENTS_NAME


@pytest.mark.parametrize("content", ["", "x" * (SECRET_LENGTH + 1), "é"])
def test_file_without_a_token_stops_a_start_but_not_a_hub(
    tokens: Tokens, data_dir: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    files = take_over(tokens, data_dir)
    write(data_dir / "agent.token", content)
    for _ in range(3):
        asyncio.run(files.follow())
    assert len(caplog.records) == 1
    assert find(tokens, "agents secret").name == AGENTS_NAME
    with pytest.raises(UsageError, match=r"agent\.token"):
        take_over(tokens, data_dir)


def test_change_that_the_database_could_not_take_is_tried_again(
    tokens: Tokens, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = take_over(tokens, data_dir)
    write(data_dir / "agent.token", "new secret")
    with monkeypatch.context() as patch:
        patch.setattr(tokens.database, "begin", refuse)
        asyncio.run(files.follow())
    assert tokens.find("new secret") is None
    asyncio.run(files.follow())
    assert find(tokens, "new secret").name == AGENTS_NAME


def refuse() -> None:
    raise Temporary("the database does not answer.")


def test_moved_folder_of_a_hub_with_its_own_database_keeps_its_rows(tmp_path: Path, data_dir: Path) -> None:
    assert asyncio.run(_start_hub(data_dir)) == 2
    moved = data_dir.rename(tmp_path / "moved")
    write(moved / "agent.token", "new secret")
    assert asyncio.run(_start_hub(moved)) == 2


async def _start_hub(data_dir: Path) -> int:
    """How many tokens a hub has whose database lies in its data folder."""
    database = await open_database(None, data_dir)
    tokens = Tokens(database, FakeClock())
    await TokenFiles(tokens, data_dir).load()
    count = len(await tokens.list())
    await database.close()
    return count


def test_hubs_that_share_a_database_have_rows_of_their_own(
    tmp_path: Path, data_dir: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "kind", "postgresql")
    tokens = Tokens(database, FakeClock())
    take_over(tokens, data_dir)
    other = tmp_path / "other"
    other.mkdir()
    write(other / "agent.token", "others secret")
    write(other / "admin.token", "admins secret")
    take_over(tokens, other)
    assert find(tokens, "agents secret").id != find(tokens, "others secret").id
    assert len(asyncio.run(tokens.list())) == 3


@pytest.mark.parametrize("database_address", ["postgresql"], indirect=True)
def test_hubs_that_are_given_the_same_token_and_start_at_once_agree(database: Database, data_dir: Path) -> None:
    hubs = [Tokens(database, FakeClock()) for _ in range(4)]

    async def start() -> None:
        await asyncio.gather(*(TokenFiles(tokens, data_dir).load() for tokens in hubs))

    asyncio.run(start())
    assert {find(tokens, "agents secret").id for tokens in hubs} == {find(hubs[0], "agents secret").id}
    assert len(asyncio.run(hubs[0].list())) == 2
