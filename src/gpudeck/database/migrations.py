"""Bring the tables of a database up to those of `schema.py`.

New tables are made from `schema.py` itself and need nothing here but the next number as `NEWEST`. A change of a table
that exists is a step in `STEPS`, never changed once released; on SQLite columns and constraints change in
`op.batch_alter_table`, checks by making the table again. There is no way back: an older gpudeck refuses the database,
and needs the backup from before.
"""

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    and_,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy import column as sql_column

from gpudeck.database.errors import Outdated
from gpudeck.database.schema import metadata
from gpudeck.model.errors import UsageError, Wrong

if TYPE_CHECKING:
    from alembic.operations import Operations

log = logging.getLogger(__name__)

NEWEST = "0015"
"""The version of the tables in `schema.py`: a number, so that a newer gpudeck's is known as such."""
VERSION_TABLE = "gpudeck_version"
"""Where the number stands."""
MIGRATED = "the tables of the database went from version %s to %s"

_LOCK = int.from_bytes(b"gpudeck")
"""PostgreSQL knows locks by number."""
_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))


def is_newest(connection: Connection, place: str) -> bool:
    """Whether there is nothing to migrate. Raises UsageError for a database that this gpudeck does not understand."""
    found = _read_version(connection)
    if found is not None and not "0000" < found <= NEWEST:
        raise UsageError(
            f"the database {place} is from a newer gpudeck: its tables have version {found}, this one knows {NEWEST}.",
            "Install that gpudeck again, or put back the backup from before it.",
        )
    return found == NEWEST


def refuse_older(connection: Connection, place: str) -> None:
    """Raises Outdated for tables of an older gpudeck, which may be in use by its hub. No tables at all are fine."""
    found = _read_version(connection)
    if found is not None and found < NEWEST:
        raise Outdated(
            f"the database {place} has tables of version {found}, this gpudeck needs {NEWEST}, and a hub of the older "
            "version may be using them.",
            "Restart the hub with this gpudeck, which updates them (`systemctl restart gpudeck-hub`), and try again.",
        )


def migrate(connection: Connection, place: str, keep: Callable[[str], object] | None = None) -> None:
    """Do, in the transaction that the connection is in, what is missing. Of hubs that start at once one does it.

    `keep` is called with the version before anything changes, where there is something to lose; what it raises stops
    the migration. On SQLite a transaction is alone from its beginning; on PostgreSQL a lock holds the others until this
    one ends.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if is_newest(connection, place):
        return
    before = _read_version(connection)
    if before is None:
        _refuse_strangers(connection, place)
    elif keep is not None:
        keep(before)
    upgrade(connection, before or "")
    check_references(connection)
    # A database that was empty is no news.
    log.log(logging.INFO if before else logging.DEBUG, MIGRATED, before or "none", NEWEST)


def _read_version(connection: Connection) -> str | None:
    """None for a database without tables of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    return version


def _refuse_strangers(connection: Connection, place: str) -> None:
    strangers = sorted(metadata.tables.keys() & set(inspect(connection).get_table_names()))
    if strangers:
        raise UsageError(
            f"the database {place} has tables that are not gpudeck's: {', '.join(strangers)}.",
            "Give gpudeck a database of its own.",
        )


def upgrade(connection: Connection, before: str) -> None:
    tables = inspect(connection).get_table_names()
    due = [change for version, table, change in STEPS if before < version and table in tables]
    if due:
        from alembic.migration import MigrationContext  # noqa: PLC0415 - takes long, and most starts do without
        from alembic.operations import Operations  # noqa: PLC0415

        operations = Operations(MigrationContext.configure(connection))
        for change in due:
            change(operations)
    metadata.create_all(connection)
    _version.create(connection, checkfirst=True)
    connection.execute(_version.delete())
    connection.execute(_version.insert().values(version_num=NEWEST))


def _rename_reservation_kinds(op: "Operations") -> None:
    kinds, connection = {"booking": "reservation", "hold": "claim"}, op.get_bind()
    old, new = (f"kind IN ('{first}', '{second}')" for first, second in (kinds.keys(), kinds.values()))
    if connection.dialect.name == "postgresql":
        op.drop_constraint("ck_reservations_kind", "reservations")
        _replace_values(op, "reservations", "kind", kinds)
        op.create_check_constraint("ck_reservations_kind", "reservations", text(new))
        return
    # SQLite cannot change a check: the table is made again, with its indexes and the last id it gave out.
    found = "SELECT sql FROM sqlite_master WHERE tbl_name = 'reservations' AND sql IS NOT NULL ORDER BY type DESC"
    made = [sql.replace(old, new) for sql in connection.execute(text(found)).scalars()]
    last = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = 'reservations'")).scalar()
    op.execute("CREATE TEMP TABLE before_0012 AS SELECT * FROM reservations")
    _replace_values(op, "before_0012", "kind", kinds)
    op.drop_table("reservations")
    for sql in (*made, "INSERT INTO reservations SELECT * FROM before_0012", "DROP TABLE before_0012"):
        op.execute(sql)
    if last is not None:
        op.execute("DELETE FROM sqlite_sequence WHERE name = 'reservations'")
        op.execute(text("INSERT INTO sqlite_sequence VALUES ('reservations', :last)").bindparams(last=last))


def _rename_personal_mutes(op: "Operations") -> None:
    _replace_values(op, "mutes", "rule", _RULES)
    op.create_table(
        "personal_mutes",
        Column("account", String(64), nullable=False),
        Column("rule", String(64), nullable=False),
        PrimaryKeyConstraint("account", "rule", name="pk_personal_mutes"),
    )
    op.execute("INSERT INTO personal_mutes (account, rule) SELECT account, rule FROM mutes")
    op.drop_table("mutes")


def _rename_silences(op: "Operations") -> None:
    _change_json(op, "alert_silences", "body", lambda mute: mute | {"rule": _rename_rule(mute.get("rule"))})
    op.create_table(
        "alert_mutes",
        Column("fleet", String(16), nullable=False),
        Column("id", String(16), nullable=False),
        Column("end", Float(53), nullable=False),
        Column("body", Text, nullable=False),
        PrimaryKeyConstraint("fleet", "id", name="pk_alert_mutes"),
    )
    op.execute('INSERT INTO alert_mutes (fleet, id, "end", body) SELECT fleet, id, "end", body FROM alert_silences')
    op.drop_table("alert_silences")


def _rename_in_alerts(op: "Operations") -> None:
    _replace_values(op, "alerts", "rule", _RULES)
    _change_json(op, "alerts", "body", lambda alert: _with_new_fields(alert, people="accounts", silenced_by="muted_by"))


def _rename_in_messages(op: "Operations") -> None:
    def change(message: dict[str, Any]) -> dict[str, Any]:
        subjects = [_with_new_fields(one, people="accounts") for one in message.get("subjects", ())]
        kind = "reservation" if message["kind"] == "booking" else message["kind"]
        return _with_new_fields(message, people="accounts") | {"kind": kind, "subjects": subjects}

    _change_json(op, "outbox", "message", change)


def _rename_event_kinds(op: "Operations") -> None:
    kinds = {"alert_silenced": "alert_muted", "alert_silence_ended": "alert_mute_ended", "twin": "duplicate_host"}
    _replace_values(op, "events", "kind", kinds)


def _rename_in_queue(op: "Operations") -> None:
    _change_json(op, "queue_requests", "granted", lambda granted: _with_new_fields(granted, hold="claim"))


_RULES = {
    "gpu_held_idle": "gpu_idle",
    "booking_conflict": "reservation_conflict",
    "booking_no_show": "reservation_no_show",
    "booking_overrun": "reservation_overrun",
}


def _rename_rule(rule: str | None) -> str | None:
    """A rule's name, or a pattern of names."""
    return rule and _RULES.get(rule, rule.replace("booking_", "reservation_"))


def _with_new_fields(values: dict[str, Any], **names: str) -> dict[str, Any]:
    renamed = {names.get(name, name): value for name, value in values.items()}
    return renamed | {"rule": _rename_rule(renamed["rule"])} if "rule" in renamed else renamed


def _replace_values(op: "Operations", name: str, column: str, values: Mapping[str, str]) -> None:
    for old, new in values.items():
        changed = table(name, sql_column(column))
        op.execute(changed.update().where(changed.c[column] == old).values({column: new}))


def _change_json(op: "Operations", name: str, column: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    connection = op.get_bind()
    kept = Table(name, MetaData(), autoload_with=connection)
    keys = list(kept.primary_key.columns)
    for *key, body in connection.execute(select(*keys, kept.c[column])).all():
        if body:
            same = and_(*(one == value for one, value in zip(keys, key, strict=True)))
            connection.execute(kept.update().where(same).values({column: json.dumps(change(json.loads(body)))}))


def _add_mig(name: str) -> Callable[["Operations"], None]:
    def change(op: "Operations") -> None:
        # SQLite would write an added column behind the constraints.
        recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
        with op.batch_alter_table(name, recreate=recreate, table_kwargs={"sqlite_autoincrement": True}) as batch:
            for column in ("mig", "allow_mig"):
                batch.add_column(Column(column, Integer, nullable=False, server_default="0"))

    return change


STEPS: tuple[tuple[str, str, Callable[["Operations"], None]], ...] = (
    ("0012", "reservations", _rename_reservation_kinds),
    ("0012", "mutes", _rename_personal_mutes),
    ("0012", "alert_silences", _rename_silences),
    ("0012", "alerts", _rename_in_alerts),
    ("0012", "outbox", _rename_in_messages),
    ("0012", "events", _rename_event_kinds),
    ("0012", "queue_requests", _rename_in_queue),
    ("0013", "queue_requests", _add_mig("queue_requests")),
    ("0013", "watches", _add_mig("watches")),
)
"""In their order: from which version on it is done, the table that it changes, and the change. A database without that
table gets its newest form from `schema.py`."""


def check_references(connection: Connection) -> None:
    """SQLite checks none during a migration: a table that is filled anew would take along all that refers to it."""
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        if broken:
            raise Wrong(f"the migration to version {NEWEST} would leave {len(broken)} rows that refer to nothing.")
