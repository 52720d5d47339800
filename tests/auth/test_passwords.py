"""Passwords: their rules, their hashes, and the same work for everybody."""

import asyncio
import threading

import pytest
from argon2 import PasswordHasher, Type, extract_parameters

from fakes.passwords import CountingHasher, quick_hasher
from fakes.waiting import wait_until
from gpudeck.auth.accounts import HASHES_AT_ONCE, MAX_PASSWORD_LENGTH, Passwords
from gpudeck.model.errors import UsageError

GOOD = "correct horse battery"


@pytest.fixture
def passwords() -> Passwords:
    return Passwords(quick_hasher())


@pytest.mark.parametrize(
    ("password", "told"),
    [
        ("", "fewer than 10"),
        ("ninechars", "fewer than 10"),
        ("x" * (MAX_PASSWORD_LENGTH + 1), "more than 1024"),
        ("Ada.Lovelace", "the account's name"),
        ("lone half \ud800", "cannot be stored"),
        ("\0" * 10, "control characters"),
        ("correct\thorse", "control characters"),
        ("1212121212123", "fewer than 4 different"),
    ],
)
def test_a_bad_password_is_refused_with_the_rule_it_breaks(passwords: Passwords, password: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        passwords.check(password, "ada.lovelace")
    assert "10 to 1024 characters" in refused.value.hint


@pytest.mark.parametrize("password", ["tencharact", "word" * (MAX_PASSWORD_LENGTH // 4), "παράδειγμα", "ada.lovelace2"])
def test_a_good_password_passes(passwords: Passwords, password: str) -> None:
    passwords.check(password, "ada.lovelace")
    assert asyncio.run(passwords.verify(asyncio.run(passwords.hash(password)), password))


def test_a_refusal_never_tells_the_password(passwords: Passwords) -> None:
    with pytest.raises(UsageError) as refused:
        passwords.check("hunter2", "ada")
    assert "hunter2" not in str(refused.value)


def test_a_password_is_found_right_and_another_wrong(passwords: Passwords) -> None:
    kept = asyncio.run(passwords.hash(GOOD))
    assert GOOD not in kept
    assert asyncio.run(passwords.verify(kept, GOOD))
    assert not asyncio.run(passwords.verify(kept, f"{GOOD} "))


def test_two_hashes_of_one_password_differ(passwords: Passwords) -> None:
    assert asyncio.run(passwords.hash(GOOD)) != asyncio.run(passwords.hash(GOOD))


def test_hashes_are_argon2id_of_the_recommended_cost() -> None:
    parameters = extract_parameters(asyncio.run(Passwords().hash(GOOD)))
    assert parameters.type is Type.ID
    assert parameters.memory_cost >= 64 * 1024
    assert parameters.time_cost >= 3


def test_letters_composed_in_another_way_are_the_same_password(passwords: Passwords) -> None:
    kept = asyncio.run(passwords.hash("une clé très longue"))
    assert asyncio.run(passwords.verify(kept, "une cle\u0301 tre\u0300s longue"))


@pytest.mark.parametrize("password", ["x" * (MAX_PASSWORD_LENGTH + 1), "lone half \ud800"])
def test_what_cannot_be_a_password_is_wrong_and_not_hashed(passwords: Passwords, password: str) -> None:
    kept = asyncio.run(passwords.hash(GOOD))
    assert not asyncio.run(passwords.verify(kept, password))
    with pytest.raises(UsageError):
        asyncio.run(passwords.hash(password))


@pytest.mark.parametrize("kept", ["", "nonsense", "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$"])
def test_a_damaged_hash_is_no_password_and_no_failure(passwords: Passwords, kept: str) -> None:
    assert not asyncio.run(passwords.verify(kept, GOOD))


def test_nobodys_password_costs_what_everybodys_does() -> None:
    hasher = CountingHasher()
    passwords = Passwords(hasher)
    kept = asyncio.run(passwords.hash(GOOD))
    asyncio.run(passwords.verify(kept, "something else"))
    asyncio.run(passwords.verify(None, "something else"))
    asyncio.run(passwords.verify(kept, "x" * (MAX_PASSWORD_LENGTH + 1)))
    asyncio.run(passwords.waste_time())
    assert hasher.verified == [extract_parameters(kept)] * 4


@pytest.mark.parametrize("password", ["", GOOD])
def test_nobodys_password_is_never_right(passwords: Passwords, password: str) -> None:
    assert not asyncio.run(passwords.verify(None, password))


def test_a_hash_of_another_cost_is_outdated(passwords: Passwords) -> None:
    older = Passwords(PasswordHasher(time_cost=2, memory_cost=8, parallelism=1))
    assert passwords.is_outdated(asyncio.run(older.hash(GOOD)))
    assert not passwords.is_outdated(asyncio.run(passwords.hash(GOOD)))


class BlockingHasher(PasswordHasher):
    """Counts how many are at work, and lets none end before `go`."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.go = threading.Event()
        self.at_work = 0
        self.most = 0
        self._lock = threading.Lock()

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002 - as argon2 calls it
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        self.go.wait(20)
        with self._lock:
            self.at_work -= 1
        return super().verify(hash, password)


def test_no_more_than_two_are_compared_at_once_even_when_callers_give_up() -> None:
    hasher = BlockingHasher()
    passwords = Passwords(hasher)

    async def playing() -> None:
        impatient = [asyncio.create_task(passwords.waste_time()) for _ in range(HASHES_AT_ONCE)]
        await asyncio.to_thread(wait_until, lambda: hasher.at_work == HASHES_AT_ONCE, "both threads at work")
        for task in impatient:
            task.cancel()
        await asyncio.gather(*impatient, return_exceptions=True)
        patient = [asyncio.create_task(passwords.waste_time()) for _ in range(6)]
        await asyncio.sleep(0)
        hasher.go.set()
        await asyncio.gather(*patient)

    asyncio.run(playing())
    assert hasher.most == HASHES_AT_ONCE
