"""Workers tell where their seconds went.

Revision 0019, after 0018. No worker has told yet; its next report does. Down, what they told is lost.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("seconds", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "seconds")
