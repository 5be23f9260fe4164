"""What the client says of how a model compares with the framework that it came from is kept with the model.

Revision 0008, after 0007.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("models") as table:
        table.add_column(sa.Column("comparison", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("models") as table:
        table.drop_column("comparison")
