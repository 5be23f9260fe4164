"""A job may be paused.

Revision 0011, after 0010. No job that exists is. Down, jobs that are paused go on: their candidates are leased again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("paused_at", sa.Float(precision=53), nullable=True))


def downgrade() -> None:
    op.execute("UPDATE candidates SET priority = -1 - priority WHERE priority < 0")
    op.drop_column("jobs", "paused_at")
