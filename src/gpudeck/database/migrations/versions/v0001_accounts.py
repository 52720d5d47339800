"""Accounts, sessions, tokens, and what was done."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Time = sa.Float(53)


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("password_hash", sa.Text, nullable=True),
        sa.Column("is_disabled", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("last_login_at", _Time, nullable=True),
        sa.CheckConstraint("role IN ('viewer', 'user', 'admin')", name="role"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("account_id", _Id, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("seen_at", _Time, nullable=False),
        sa.Column("address", sa.String(64), nullable=False, server_default=""),
        sa.Column("user_agent", sa.String(256), nullable=False, server_default=""),
    )
    op.create_index("ix_sessions_account_id", "sessions", ["account_id"])
    op.create_table(
        "tokens",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("hosts", sa.String(256), nullable=True),
        sa.Column("account_id", _Id, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=True),
        sa.Column("created_at", _Time, nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False, server_default=""),
        sa.Column("expires_at", _Time, nullable=True),
        sa.Column("last_used_at", _Time, nullable=True),
        sa.Column("revoked_at", _Time, nullable=True),
        sa.CheckConstraint("role IN ('agent', 'viewer', 'user', 'admin', 'calendar')", name="role"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("id", _Id, primary_key=True, autoincrement=True),
        sa.Column("at", _Time, nullable=False),
        sa.Column("who", sa.String(160), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(256), nullable=False, server_default=""),
        sa.Column("outcome", sa.String(16), nullable=False, server_default="done"),
        sa.Column("address", sa.String(64), nullable=False, server_default=""),
        sa.Column("details", sa.Text, nullable=False, server_default=""),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
