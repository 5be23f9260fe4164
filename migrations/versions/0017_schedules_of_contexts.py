"""Which schedule of a workload won inside models, a row for each context.

Revision 0017, after 0016. Going up, nothing was tuned inside a model yet; going down, the best alone is served again.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "in_context",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("device_class", sa.String(), nullable=False),
        sa.Column("context", sa.String(), nullable=False),
        sa.Column("record", sa.String(), nullable=False),
        sa.Column("toolchain", sa.String(), nullable=False),
        sa.Column("instead", sa.String(), nullable=False),
        sa.Column("neighbours", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("before_secs", sa.Float(precision=53), nullable=False),
        sa.Column("after_secs", sa.Float(precision=53), nullable=False),
        sa.Column("confirmed_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_in_context_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_in_context_target_key")),
        sa.ForeignKeyConstraint(
            ["project", "record"], ["records.project", "records.id"], name=op.f("fk_in_context_project_record")
        ),
        sa.PrimaryKeyConstraint(
            "project",
            "target_key",
            "workload",
            "measure_version",
            "device_class",
            "context",
            "record",
            name=op.f("pk_in_context"),
        ),
    )


def downgrade() -> None:
    op.drop_table("in_context")
