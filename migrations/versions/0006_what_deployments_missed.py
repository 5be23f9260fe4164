"""What deployments missed, and the jobs and the budget that come of it.

Revision 0006, after 0005. Jobs from before were users'; projects spend nothing on misses until they say so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("idle_trials", "idle_spent", "idle_day"):
        op.add_column("projects", sa.Column(name, sa.Integer(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("origin", sa.String(16), server_default="user", nullable=False))
    op.add_column("jobs", sa.Column("only", sa.JSON(none_as_null=True), nullable=True))
    op.create_index("ix_tasks_project_workload", "tasks", ["project", "workload"], unique=False)
    op.add_column("candidates", sa.Column("source", sa.String(), nullable=True))
    op.create_table(
        "misses",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("rank", sa.Float(precision=53), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("default_secs", sa.Float(precision=53), nullable=True),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("job", sa.String(), nullable=True),
        sa.Column("reported_at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_misses_job"),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_misses_project"),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name="fk_misses_target_key"),
        sa.PrimaryKeyConstraint("project", "target_key", "workload", name="pk_misses"),
    )
    op.create_index("ix_misses_project_rank", "misses", ["project", "rank"], unique=False)
    for name, columns, where in (
        ("ix_misses_due", ["project", "target_key", "stage", "rank"], "stage IN ('waiting', 'transferred')"),
        ("ix_misses_at_work", ["job"], "stage IN ('transferring', 'tuning')"),
    ):
        op.create_index(
            name, "misses", columns, unique=False, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    op.create_table(
        "miss_reports",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_digest", sa.String(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("unknown", sa.String(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name="fk_miss_reports_project"),
        sa.PrimaryKeyConstraint("project", "key", name="pk_miss_reports"),
    )
    op.create_index("ix_miss_reports_project_at", "miss_reports", ["project", "at"], unique=False)


def downgrade() -> None:
    op.drop_table("miss_reports")
    op.drop_table("misses")
    op.drop_column("candidates", "source")
    op.drop_index("ix_tasks_project_workload", table_name="tasks")
    for name in ("only", "origin"):
        op.drop_column("jobs", name)
    for name in ("idle_day", "idle_spent", "idle_trials"):
        op.drop_column("projects", name)
