"""A schedule is served also where the untuned baseline ran out of time, and has none.

Revision 0007, after 0006. Down, those schedules are forgotten: older services cannot tell of them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_SECS = sa.Float(precision=53)


def upgrade() -> None:
    with op.batch_alter_table("best") as table:
        table.alter_column("baseline_secs", existing_type=_SECS, nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM best WHERE baseline_secs IS NULL")
    with op.batch_alter_table("best") as table:
        table.alter_column("baseline_secs", existing_type=_SECS, nullable=False)
