"""What served schedules saved, a row for each project and day.

Revision 0016, after 0015. Going up, nothing was saved yet; going down, what was counted is lost.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "savings",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("baseline_saved_secs", sa.Float(precision=53), nullable=False),
        sa.Column("default_runs", sa.BigInteger(), nullable=False),
        sa.Column("default_saved_secs", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_savings_project"),
        sa.PrimaryKeyConstraint("project", "day", name="pk_savings"),
    )


def downgrade() -> None:
    op.drop_table("savings")
