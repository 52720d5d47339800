"""Alerts and silences."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("fleet", sa.String(16), primary_key=True),
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("host", sa.String(256), nullable=True),
        sa.Column("host_id", sa.String(384), nullable=False),
        sa.Column("is_open", sa.Integer, nullable=False),
        sa.Column("fired_at", sa.Float(53), nullable=False),
        sa.Column("resolved_at", sa.Float(53), nullable=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_alerts_fleet_is_open", "alerts", ["fleet", "is_open"])
    op.create_index("ix_alerts_resolved_at", "alerts", ["resolved_at"])
    op.create_table(
        "alert_silences",
        sa.Column("fleet", sa.String(16), primary_key=True),
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("end", sa.Float(53), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
