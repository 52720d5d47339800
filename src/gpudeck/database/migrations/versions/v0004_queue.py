"""Who waits for GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Time = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "queue_requests",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("fleet", sa.String(16), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("user", sa.String(160), nullable=False),
        sa.Column("account", sa.String(64), nullable=True),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=True),
        sa.Column("model", sa.String(256), nullable=True),
        sa.Column("host", sa.String(256), nullable=True),
        sa.Column("near", sa.String(256), nullable=True),
        sa.Column("same_host", sa.Integer, nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("last_seen_at", _Time, nullable=False),
        sa.Column("granted", sa.Text, nullable=True),
        sa.UniqueConstraint("fleet", "key"),
        sqlite_autoincrement=True,
    )
