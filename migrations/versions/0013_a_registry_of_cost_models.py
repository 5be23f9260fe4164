"""Cost models are compared before one replaces another.

Revision 0013, after 0012. The newest version of each project and kind of target serves on, as it did; the others were
replaced. Down, the newest version is used again, whatever its marks; which version served when is forgotten.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_STATES = ("serving", "shadow")
_REASON = "the newest when versions began to be compared"


def _added() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("origin", sa.String(16), server_default="trained", nullable=False),
        sa.Column("state", sa.String(16), server_default="replaced", nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("judge", sa.String(), nullable=True),
        sa.Column("seen", _NUMBER, server_default="0", nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("shadow", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("held_out_tasks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("shadow_tasks", sa.JSON(none_as_null=True), nullable=True),
    )


def upgrade() -> None:
    for column in _added():
        op.add_column("cost_models", column)
    op.create_table(
        "cost_model_changes",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("replaced", sa.Integer(), nullable=True),
        sa.Column("rollback", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=True),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_cost_model_changes_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cost_model_changes")),
    )
    columns = ["project", "target_kind", "id"]
    op.create_index(op.f("ix_cost_model_changes_project_target_kind_id"), "cost_model_changes", columns)
    op.execute(
        "UPDATE cost_models SET state = 'serving', seen = (SELECT coalesce(max(seq), 0) FROM records), "
        f"reason = '{_REASON}' WHERE version = (SELECT max(version) FROM cost_models AS other "
        "WHERE other.project = cost_models.project AND other.target_kind = cost_models.target_kind)"
    )
    op.execute(
        "INSERT INTO cost_model_changes (project, target_kind, version, rollback, reason, at) "
        f"SELECT project, target_kind, version, false, '{_REASON}', created_at FROM cost_models WHERE state = 'serving'"
    )
    for state in _STATES:
        where = sa.text(f"state = '{state}'")
        op.create_index(
            f"uq_cost_models_{state}",
            "cost_models",
            ["project", "target_kind"],
            unique=True,
            postgresql_where=where,
            sqlite_where=where,
        )


def downgrade() -> None:
    for state in _STATES:
        op.drop_index(f"uq_cost_models_{state}", "cost_models")
    op.drop_table("cost_model_changes")
    for column in reversed(_added()):
        op.drop_column("cost_models", column.name)
