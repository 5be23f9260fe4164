"""Look-ups say where a schedule is from, what comes near it, and whether anything has changed.

Revision 0005, after 0004. Bests from before are tuned, by a worker that is not known; workloads from before have no
signature until they are tuned again; every project begins at generation 0.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("generation", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("best", sa.Column("origin", sa.String(16), server_default="tuned", nullable=False))
    op.add_column("best", sa.Column("source", sa.String(), nullable=True))
    op.add_column("best", sa.Column("worker", sa.String(), nullable=True))
    op.create_index("ix_best_project_workload", "best", ["project", "workload"], unique=False)
    op.add_column("workloads", sa.Column("signature", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("workloads", sa.Column("anchor", sa.String(), nullable=True))
    op.add_column("workloads", sa.Column("size", sa.Float(precision=53), nullable=True))
    op.create_index("ix_workloads_project_anchor_size", "workloads", ["project", "anchor", "size"], unique=False)
    op.create_index("ix_devices_device_class", "devices", ["device_class"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_devices_device_class", table_name="devices")
    op.drop_index("ix_workloads_project_anchor_size", table_name="workloads")
    for name in ("size", "anchor", "signature"):
        op.drop_column("workloads", name)
    op.drop_index("ix_best_project_workload", table_name="best")
    for name in ("worker", "source", "origin"):
        op.drop_column("best", name)
    op.drop_column("projects", "generation")
