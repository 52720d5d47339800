"""What was posted or imported of each vesta host, at its own times."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "vesta_samples",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("at", sa.Float(53), primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
