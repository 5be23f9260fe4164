"""An operator's token is of no project.

Revision 0010, after 0009. Tokens that exist keep project and scope: an admin manages those of its own project from now
on. Down, operators' tokens are forgotten: older services know no such scope, and no token without a project.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NAME = "ck_tokens_project"
_RULE = "(project IS NULL) = (scope = 'operator')"


def upgrade() -> None:
    with op.batch_alter_table("tokens") as table:
        table.alter_column("project", existing_type=sa.String(), nullable=True)
        table.create_check_constraint(op.f(_NAME), _RULE)


def downgrade() -> None:
    op.execute("DELETE FROM tokens WHERE scope = 'operator'")
    with op.batch_alter_table("tokens") as table:
        table.drop_constraint(op.f(_NAME), type_="check")
        table.alter_column("project", existing_type=sa.String(), nullable=False)
