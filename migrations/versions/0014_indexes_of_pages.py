"""Indexes for what pages ask: the newest records of a worker, and the fastest of a task.

Revision 0014, after 0013. The index of a task's records gets their seconds, so that the least is found without reading them
all. No row changes, up or down.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TASK = ("project", "workload", "target_key", "measure_version")


def upgrade() -> None:
    _index(*_TASK, "secs")
    op.drop_index(_named(*_TASK), "records")
    _index("project", "worker", "seq")


def downgrade() -> None:
    op.drop_index(_named("project", "worker", "seq"), "records")
    _index(*_TASK)
    op.drop_index(_named(*_TASK, "secs"), "records")


def _named(*columns: str) -> str:
    return op.f(f"ix_records_{'_'.join(columns)}")


def _index(*columns: str) -> None:
    op.create_index(_named(*columns), "records", list(columns))
