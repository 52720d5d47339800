"""Hosts and their GPUs are remembered across restarts."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(384), primary_key=True),
        sa.Column("last_report_at", sa.Float(53), nullable=False),
        sa.Column("is_down", sa.Integer, nullable=False),
    )
    op.create_table(
        "host_facts",
        sa.Column("id", sa.String(384), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
