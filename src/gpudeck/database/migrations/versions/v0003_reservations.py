"""Who has which GPUs for themselves, and when."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Time = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("fleet", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("user", sa.String(160), nullable=False),
        sa.Column("start", _Time, nullable=False),
        sa.Column("end", _Time, nullable=False),
        sa.Column("note", sa.String(1000), nullable=False, server_default=""),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("created_by", sa.String(160), nullable=False),
        sa.Column("changed_at", _Time, nullable=False),
        sa.Column("used_at", _Time, nullable=True),
        sa.Column("released_at", _Time, nullable=True),
        sa.Column("release_reason", sa.String(256), nullable=True),
        sa.CheckConstraint("kind IN ('booking', 'hold')", name="kind"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_reservations_fleet_end", "reservations", ["fleet", "end"])
    op.create_table(
        "reservation_gpus",
        sa.Column("reservation_id", _Id, sa.ForeignKey("reservations.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("uuid", sa.String(256), primary_key=True),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("label", sa.String(32), nullable=False),
    )
    op.create_index("ix_reservation_gpus_uuid", "reservation_gpus", ["uuid"])
