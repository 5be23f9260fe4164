"""A job continues the trace of its submission.

Revision 0015, after 0014. Jobs that exist are in no trace. Down, the traces of jobs that are under way end.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "traceparent")
