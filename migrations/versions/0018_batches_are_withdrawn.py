"""Whether the coordinator wants no more results of a batch that workers measure.

Revision 0018, after 0017. Going up, all are wanted; going down, what is measured then is measured to its end.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("withdrawn", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("batches", "withdrawn")
