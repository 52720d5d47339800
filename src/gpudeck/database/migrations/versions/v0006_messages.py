"""Messages on their way, what people do not want to hear of, and what they want to be told."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Time = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("fleet", sa.String(16), nullable=False),
        sa.Column("key", sa.String(256), nullable=False),
        sa.Column("destination", sa.String(128), nullable=False),
        sa.Column("channel", sa.String(32), nullable=False),
        sa.Column("account", sa.String(64), nullable=True),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("due_at", _Time, nullable=False),
        sa.Column("claimed_until", _Time, nullable=True),
        sa.Column("done_at", _Time, nullable=True),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("trouble", sa.String(256), nullable=False, server_default=""),
        sa.CheckConstraint("state IN ('waiting', 'sent', 'failed')", name="state"),
        sa.UniqueConstraint("fleet", "key", "destination"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_channel_state_due_at", "outbox", ["channel", "state", "due_at"])
    op.create_table(
        "mutes",
        sa.Column("account", sa.String(64), primary_key=True),
        sa.Column("rule", sa.String(64), primary_key=True),
    )
    op.create_table(
        "watches",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("fleet", sa.String(16), nullable=False),
        sa.Column("user", sa.String(160), nullable=False),
        sa.Column("account", sa.String(64), nullable=True),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=True),
        sa.Column("model", sa.String(256), nullable=True),
        sa.Column("host", sa.String(256), nullable=True),
        sa.Column("same_host", sa.Integer, nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("expires_at", _Time, nullable=False),
        sa.Column("fired_at", _Time, nullable=True),
        sa.Column("found", sa.Text, nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_watches_fleet_expires_at", "watches", ["fleet", "expires_at"])
