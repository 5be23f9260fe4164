"""Workers tell their steadiness: how evenly they time the reference workload.

Revision 0003, after 0002. Workers from before have none until they report it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("steadiness", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("workers", sa.Column("noisy", sa.Boolean(), nullable=True))
    op.create_index(
        "ix_workers_active",
        "workers",
        ["project", "target_key"],
        unique=False,
        postgresql_where=sa.text("state = 'active'"),
        sqlite_where=sa.text("state = 'active'"),
    )


def downgrade() -> None:
    op.drop_index("ix_workers_active", table_name="workers")
    for name in ("noisy", "steadiness"):
        op.drop_column("workers", name)
