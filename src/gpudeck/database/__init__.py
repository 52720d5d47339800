"""The hub's tables and migrations, on SQLite or PostgreSQL; here are the errors of a database that cannot be used."""

from msgspec import Struct

from gpudeck.model.errors import Temporary, UsageError


class DatabaseTrouble(Struct, frozen=True):
    """`reason` goes on after the name of the database: "is locked by another process". `may_pass`: a hub that starts
    now starts without its database. `stops_all`: while it lasts a running hub tries no transaction."""

    reason: str
    next_step: str
    may_pass: bool = True
    stops_all: bool = True


class DatabaseOutage(Struct, frozen=True):
    """The database cannot be used, since `since` in Unix seconds. `trouble` names no place."""

    trouble: DatabaseTrouble
    since: float


class Outdated(UsageError):
    """The tables are those of an older gpudeck."""


class Unavailable(Temporary):
    """The database does not do what is asked of it now."""

    def __init__(self, place: str, trouble: DatabaseTrouble) -> None:
        super().__init__(f"the database {place} {trouble.reason}.", trouble.next_step)
        self.trouble = trouble
