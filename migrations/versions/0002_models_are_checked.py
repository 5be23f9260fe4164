"""Models are checked: whether an uploaded model was read, what came out, or why not.

Revision 0002, after 0001. Models from before are unchecked; the coordinator looks at them like at new ones.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Column by column: SQLite copies a table to change it in any other way, and jobs point to this one.
    op.add_column("models", sa.Column("state", sa.String(16), server_default="unchecked", nullable=False))
    op.add_column("models", sa.Column("ingested", sa.String(), nullable=True))
    op.add_column("models", sa.Column("error", sa.String(), nullable=True))
    op.add_column("models", sa.Column("error_code", sa.String(), nullable=True))
    op.add_column("models", sa.Column("checked_at", sa.Float(precision=53), nullable=True))
    op.create_index(
        "ix_models_unchecked",
        "models",
        ["project", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'unchecked'"),
        sqlite_where=sa.text("state = 'unchecked'"),
    )


def downgrade() -> None:
    op.drop_index("ix_models_unchecked", table_name="models")
    for name in ("checked_at", "error_code", "error", "ingested", "state"):
        op.drop_column("models", name)
