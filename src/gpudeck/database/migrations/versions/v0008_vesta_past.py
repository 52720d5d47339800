"""How much of a vesta server's past was imported."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "vesta_past",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("start", sa.Float(53), nullable=False),
        sa.Column("end", sa.Float(53), nullable=False),
    )
