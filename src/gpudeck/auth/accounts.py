"""Accounts in the hub's database. Passwords are stored as hashes only."""

import asyncio
import hashlib
import logging
import os
import secrets
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from msgspec import Struct
from sqlalchemy import ColumnElement, Executable, Row, Select, delete, func, insert, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck.auth.settings import NAME_WORDS, ROLES, AccountRole, read_name
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model import clock
from gpudeck.model.errors import UsageError

MIN_PASSWORD_LENGTH = 10
MAX_PASSWORD_LENGTH = 1024
MIN_DIFFERENT = 4
HASHES_AT_ONCE = 2
"""Each takes 64 MiB and all it can get of several cores for some hundredths of a second."""

_HINT = f"It needs {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters; four random words are a good one."

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_NICENESS = 10
SECRET_LENGTH = 43
"""Characters of 256 random bits."""


class Passwords:
    """Hashes and compares, in threads of its own: no more than two at once, also when a caller stops waiting.

    The same letters count as the same password however a keyboard composes them.
    """

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        # Each works with several threads, which would keep the hub's own from the processors in a flood of logins.
        self._threads = ThreadPoolExecutor(HASHES_AT_ONCE, "password", initializer=lambda: os.nice(_NICENESS))
        self._placeholder = _hash_of_nothing(self._hasher)

    def check(self, password: str, name: str) -> None:
        """Raises UsageError when the account of that name cannot have that password."""
        problems = (
            (len(password) < MIN_PASSWORD_LENGTH, f"has fewer than {MIN_PASSWORD_LENGTH} characters"),
            (len(password) > MAX_PASSWORD_LENGTH, f"has more than {MAX_PASSWORD_LENGTH} characters"),
            (password.casefold() == name.casefold(), "is the account's name"),
            (any(unicodedata.category(letter) == "Cc" for letter in password), "has control characters"),
            (len(set(password)) < MIN_DIFFERENT, f"has fewer than {MIN_DIFFERENT} different characters"),
            (_prepare(password) is None, "has characters that cannot be stored"),
        )
        for is_there, problem in problems:
            if is_there:
                raise UsageError(f"the password {problem}.", _HINT)

    async def hash(self, password: str) -> str:
        """What to keep of a password that `check` let pass. Raises UsageError for what cannot be one."""
        prepared = _prepare(password)
        if prepared is None:
            raise UsageError("the password is too long, or holds characters that cannot be stored.", _HINT)
        return await self._run(lambda: self._hasher.hash(prepared))

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Whether it is that password. It never is where there is no hash, and takes as long to say so."""
        prepared = _prepare(password)
        if password_hash is None or prepared is None:
            await self.waste_time()
            return False
        return await self._run(lambda: self._matches(password_hash, prepared))

    async def waste_time(self) -> None:
        """As much work as comparing a password, for names that do not exist."""
        await self._run(lambda: self._matches(self._placeholder, b""))

    def is_outdated(self, password_hash: str) -> bool:
        """Whether it was made with other parameters than new ones are: it should be made anew at the next chance."""
        return self._hasher.check_needs_rehash(password_hash)

    def _matches(self, password_hash: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(password_hash, password)
        except VerifyMismatchError:
            return False
        except (InvalidHashError, VerificationError) as error:
            log.warning("a password's hash in the database cannot be used: %s", type(error).__name__)
            return False

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _prepare(password: str) -> bytes | None:
    """The bytes that are hashed; None for text that is longer than any password, or that is no text."""
    if len(password) > MAX_PASSWORD_LENGTH:
        return None
    try:
        return unicodedata.normalize("NFC", password).encode()
    except UnicodeEncodeError:
        return None


def _hash_of_nothing(hasher: PasswordHasher) -> str:
    """A hash of the usual form and cost that no password has: both of its halves are random."""
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, tag = (
        b64encode(secrets.token_bytes(size)).rstrip(b"=").decode() for size in (hasher.salt_len, hasher.hash_len)
    )
    return f"$argon2id$v=19${cost}${salt}${tag}"


def make_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """What is kept of it. Fast on purpose: 2^256 of them cannot be tried. Takes any text."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


_table = schema.accounts
_IS_ENABLED_ADMIN = (_table.c.role == "admin") & (_table.c.is_disabled == 0)
_LAST_ADMIN_HINT = "Make another account an admin first: a hub needs one."


class Account(Struct, frozen=True):
    """A user who may log in. Without a password only a proxy can log them in. `last_login_at` is None until they
    log in for the first time. Times are Unix seconds."""

    id: int
    name: str
    role: AccountRole
    is_disabled: bool
    has_password: bool
    created_at: float
    last_login_at: float | None


Also = Callable[[Account], Iterable[Executable]]
"""What is written with a change of an account, such as its entry in the audit log: all of it or nothing."""


def _nothing(_: Account) -> Iterable[Executable]:
    return ()


class Accounts:
    """All of them. Names are taken in any case and kept in lower case. Each change is one transaction with `also`.

    What changes an account raises UsageError when there is none of that name, and when it would leave the hub without
    any admin who is enabled. Everything raises Temporary when the database does not answer.
    """

    def __init__(self, database: Database, passwords: Passwords, now: clock.Clock = clock.wall) -> None:
        self.database = database
        self._passwords = passwords
        self._now = now
        self._watchers: list[Callable[[int], None]] = []

    def watch(self, changed: Callable[[int], None]) -> None:
        """Call `changed` with the id of each account that is changed or removed from here, as soon as it is."""
        self._watchers.append(changed)

    async def add(
        self, name: str, role: AccountRole, password: str | None, also: Also = _nothing, *, logs_in: bool = False
    ) -> Account:
        """Raises UsageError for a name that is taken or cannot be one, and for a bad password. `logs_in`: its first
        session begins with it."""
        name, now = check_name(name), self._now()
        values = {"role": check_role(role), "created_at": now, "last_login_at": now if logs_in else None}
        if password is not None:
            self._passwords.check(password, name)
            values["password_hash"] = await self._passwords.hash(password)
        try:
            async with self.database.begin() as connection:
                await connection.execute(insert(_table).values(name=name, **values))
                return await _complete(connection, name, also)
        except IntegrityError as error:
            raise UsageError(f"there is an account {name} already.", "Choose another name.") from error

    async def find(self, name: str) -> Account | None:
        return (await self.find_with_hash(name))[0]

    async def find_with_hash(self, name: str) -> tuple[Account | None, str | None]:
        """The account and the hash of its password, as far as there are any."""
        # A name that cannot be one is looked for as well: that takes as long as looking for another.
        row = (await self.database.execute(_named(read_name(name) or ""))).one_or_none()
        return (None, None) if row is None else (read_account(row), row.password_hash)

    async def list(self) -> list[Account]:
        """By name."""
        return [read_account(row) for row in await self.database.execute(select(_table).order_by(_table.c.name))]

    async def is_last_admin(self, account: Account) -> bool:
        admins = await self.database.execute(select(_table.c.id).where(_IS_ENABLED_ADMIN).limit(2))
        return list(admins.scalars()) == [account.id]

    async def count(self) -> int:
        return int((await self.database.execute(select(func.count()).select_from(_table))).scalar_one())

    async def remove(self, name: str, also: Also = _nothing) -> Account:
        """With it go its sessions and its tokens. Returns what it was."""
        async with self.database.begin() as connection:
            account = await _get(connection, name)
            await _check_admin_is_left(connection, account, "removed")
            await connection.execute(delete(_table).where(_table.c.id == account.id))
            for statement in also(account):
                await connection.execute(statement)
        self._notify(account)
        return account

    async def change(
        self,
        name: str,
        *,
        role: AccountRole | None = None,
        is_disabled: bool | None = None,
        password: str | None = None,
        also: Also = _nothing,
    ) -> Account:
        """All of it or nothing; what is None stays. Returns what it is now. Raises UsageError for what will not do.

        A new password ends the account's sessions. A disabled account is logged out everywhere, and nobody until
        they are enabled again.
        """
        values = await self._read_change(name, role, is_disabled, password)
        async with self.database.begin() as connection:
            account = await _get(connection, name)
            if is_disabled:
                await _check_admin_is_left(connection, account, "disabled")
            if role not in {None, "admin"}:
                await _check_admin_is_left(connection, account, f"made a {role}")
            # The account first: a login at the same time waits for its row, and is refused then.
            if values:
                await connection.execute(update(_table).where(_table.c.id == account.id).values(values))
            if is_disabled is not None or password is not None:
                await _end_sessions(connection, account)
            if is_disabled is not None:
                # The latest word counts, also more than an earlier one of the directory; `also` may write a new one.
                blocks = schema.provider_blocks
                await connection.execute(delete(blocks).where(blocks.c.account_id == account.id))
            changed = await _complete(connection, name, also)
        self._notify(account)
        return changed

    async def _read_change(
        self, name: str, role: str | None, is_disabled: bool | None, password: str | None
    ) -> dict[str, object]:
        """The new values of the columns; everything is checked before the first hash is made."""
        values: dict[str, object] = {}
        if role is not None:
            values["role"] = check_role(role)
        if is_disabled is not None:
            values["is_disabled"] = int(is_disabled)
        if password is not None:
            self._passwords.check(password, name)
            values["password_hash"] = await self._passwords.hash(password)
        return values

    async def note_login(
        self, account: Account, password_hash: str | None, renewed: str | None = None, also: Also = _nothing
    ) -> Account | None:
        """Record a login with the password of that hash, and a newer hash of it if there is one; None: a provider
        vouches for the user.

        Returns None if the account was removed or disabled meanwhile, or its password changed.
        """
        values = {"last_login_at": self._now()} | ({"password_hash": renewed} if renewed else {})
        async with self.database.begin() as connection:
            changed = await connection.execute(update(_table).where(_is_still(account, password_hash)).values(values))
            return await _complete(connection, account.name, also) if changed.rowcount else None

    async def replace_password(
        self, account: Account, password_hash: str, password: str, also: Also = _nothing
    ) -> Account | None:
        """A new password, if the account's still is the one of that hash; else None. All its sessions end."""
        self._passwords.check(password, account.name)
        values = {"password_hash": await self._passwords.hash(password)}
        async with self.database.begin() as connection:
            changed = await connection.execute(update(_table).where(_is_still(account, password_hash)).values(values))
            if not changed.rowcount:
                return None
            await _end_sessions(connection, account)
            replaced = await _complete(connection, account.name, also)
        self._notify(account)
        return replaced

    def _notify(self, account: Account) -> None:
        for changed in self._watchers:
            changed(account.id)


def check_name(name: str) -> str:
    """The name in lower case. Raises UsageError when no account can be called so."""
    checked = read_name(name)
    if checked is None:
        raise UsageError(f"{name[:80]!r} is no name for an account.", f"Use {NAME_WORDS}.")
    return checked


def check_role(role: str) -> str:
    if role not in ROLES:
        raise UsageError(f"{role[:80]!r} is no role of an account.", f"The roles are {', '.join(ROLES)}.")
    return role


def read_account(row: Row[Any]) -> Account:
    """The account in a row that has all columns of its table."""
    return Account(
        id=row.id,
        name=row.name,
        role=row.role,
        is_disabled=bool(row.is_disabled),
        has_password=row.password_hash is not None,
        created_at=row.created_at,
        last_login_at=row.last_login_at,
    )


def _named(name: str) -> Select[Any]:
    return select(_table).where(_table.c.name == name)


def _is_still(account: Account, password_hash: str | None) -> ColumnElement[bool]:
    """Neither removed nor disabled, and with that password if one is given."""
    is_right = true() if password_hash is None else _table.c.password_hash == password_hash
    return (_table.c.id == account.id) & (_table.c.is_disabled == 0) & is_right


async def _get(connection: AsyncConnection, name: str) -> Account:
    row = (await connection.execute(_named(read_name(name) or ""))).one_or_none()
    if row is None:
        raise UsageError(f"there is no account {name[:80]!r}.", "`gpudeck account list` shows those there are.")
    return read_account(row)


async def _complete(connection: AsyncConnection, name: str, also: Also) -> Account:
    """The account as it is now, with everything else that is to be written."""
    account = await _get(connection, name)
    for statement in also(account):
        await connection.execute(statement)
    return account


async def _check_admin_is_left(connection: AsyncConnection, account: Account, done: str) -> None:
    # Locked, so that of two admins who remove each other one stays.
    admins = select(_table.c.id).where(_IS_ENABLED_ADMIN).order_by(_table.c.id).with_for_update()
    if list((await connection.execute(admins)).scalars()) == [account.id]:
        raise UsageError(f"{account.name} is the last admin and cannot be {done}.", _LAST_ADMIN_HINT)


async def _end_sessions(connection: AsyncConnection, account: Account) -> None:
    await connection.execute(delete(schema.sessions).where(schema.sessions.c.account_id == account.id))
