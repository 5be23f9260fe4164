"""Sessions of the dashboard, and schedules that a user pinned.

Revision 0012, after 0011. No schedule is pinned at first. Down, everybody is signed out, and what was pinned is served until
something faster is confirmed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_FLOAT = sa.Float(precision=53)


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("once", sa.Boolean(), nullable=False),
        sa.Column("created_at", _FLOAT, nullable=False),
        sa.Column("expires_at", _FLOAT, nullable=False),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name=op.f("fk_sessions_token")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("digest", name=op.f("uq_sessions_digest")),
    )
    for column in ("token", "expires_at"):
        op.create_index(op.f(f"ix_sessions_{column}"), "sessions", [column])
    op.add_column("best", sa.Column("pinned_at", _FLOAT, nullable=True))


def downgrade() -> None:
    op.drop_column("best", "pinned_at")
    op.drop_table("sessions")
