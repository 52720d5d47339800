"""Several spans of a vesta host's past may have been imported, with holes between them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "vesta_spans",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("start", sa.Float(53), primary_key=True),
        sa.Column("end", sa.Float(53), nullable=False),
    )
    op.execute(sa.text('INSERT INTO vesta_spans (id, start, "end") SELECT id, start, "end" FROM vesta_past'))
    op.drop_table("vesta_past")
