"""Argon2 that costs next to nothing, for tests that hash many passwords."""

from argon2 import Parameters, PasswordHasher, extract_parameters


def quick_hasher() -> PasswordHasher:
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class CountingHasher(PasswordHasher):
    """`verified` has the cost of each comparison, `hashed` counts the hashes that were made."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified: list[Parameters] = []
        self.hashed = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # noqa: A002 - as argon2 calls it
        self.verified.append(extract_parameters(hash if isinstance(hash, str) else hash.decode()))
        return super().verify(hash, password)

    def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
        self.hashed += 1
        return super().hash(password, salt=salt)
