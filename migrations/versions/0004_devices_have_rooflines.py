"""Devices have rooflines: what a worker's device can do at most, and the least time of a task that follows.

Revision 0004, after 0003. Workers from before have none until they register again; tasks from before have no bound.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("roofline", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("tasks", sa.Column("bound_secs", sa.Float(precision=53), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "bound_secs")
    op.drop_column("workers", "roofline")
