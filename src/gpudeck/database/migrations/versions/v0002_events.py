"""What happened in the fleet."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("fleet", sa.String(16), primary_key=True),
        sa.Column("id", sa.String(21), primary_key=True),
        sa.Column("at", sa.Float(53), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("host", sa.String(256), nullable=True),
        sa.Column("host_id", sa.String(384), nullable=True),
        sa.Column("gpu", sa.String(256), nullable=True),
        sa.Column("label", sa.String(32), nullable=True),
        sa.Column("user", sa.String(256), nullable=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False, server_default=""),
    )
    op.create_index("ix_events_at", "events", ["at"])
    op.create_index("ix_events_fleet_kind_id", "events", ["fleet", "kind", "id"])
    op.create_index("ix_events_fleet_host_id_id", "events", ["fleet", "host_id", "id"])
    op.create_index("ix_events_fleet_host_id", "events", ["fleet", "host", "id"])
    op.create_index("ix_events_fleet_gpu_id", "events", ["fleet", "gpu", "id"])
