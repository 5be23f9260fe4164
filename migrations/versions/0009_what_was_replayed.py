"""A schedule says what it was confirmed with to the driver, and where it was found first; effort is of a best.

Revision 0009, after 0008. Every best takes over what its workload and target were settled with; the driver of one that is a
record is that of the record's device, and of a baseline that won it is not known. Down, a workload and target are settled
with the most that any device class was.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_KEY = ("project", "target_key", "workload", "measure_version")
_EFFORT = sa.Float(precision=53)


def upgrade() -> None:
    op.add_column("best", sa.Column("driver", sa.String(), nullable=True))
    op.add_column("best", sa.Column("replayed_from", sa.JSON(none_as_null=True), nullable=True))
    for name in ("effort", "owed"):
        op.add_column("best", sa.Column(name, _EFFORT, server_default="0", nullable=False))
    op.add_column("tasks", sa.Column("device_class", sa.String(), nullable=True))
    op.add_column("tasks", sa.Column("replay", sa.String(16), nullable=True))
    op.add_column("tasks", sa.Column("earlier", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("tasks", sa.Column("earlier_effort", _EFFORT, nullable=True))
    best, settled, records, devices = _tables("best", "settled", "records", "devices")
    effort = sa.select(settled.c.effort).where(*(settled.c[name] == best.c[name] for name in _KEY)).scalar_subquery()
    driver = (
        sa.select(devices.c.body["driver"].as_string())
        .join(records, records.c.device_key == devices.c.key)
        .where(records.c.project == best.c.project, records.c.id == best.c.record)
        .scalar_subquery()
    )
    op.execute(best.update().values(effort=sa.func.coalesce(effort, 0.0), driver=driver))
    op.drop_table("settled")


def downgrade() -> None:
    op.create_table(
        "settled",
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("target_key", sa.String(), nullable=False),
        sa.Column("workload", sa.String(), nullable=False),
        sa.Column("measure_version", sa.Integer(), nullable=False),
        sa.Column("effort", _EFFORT, nullable=False),
        sa.ForeignKeyConstraint(["project"], ["projects.id"], name=op.f("fk_settled_project")),
        sa.ForeignKeyConstraint(["target_key"], ["targets.key"], name=op.f("fk_settled_target_key")),
        sa.PrimaryKeyConstraint("project", "target_key", "workload", "measure_version", name=op.f("pk_settled")),
    )
    best, settled = _tables("best", "settled")
    key = [best.c[name] for name in _KEY]
    most = sa.select(*key, sa.func.max(best.c.effort)).where(best.c.effort > 0).group_by(*key)
    op.execute(settled.insert().from_select([*_KEY, "effort"], most))
    # Older services know neither this purpose, under which a candidate may be issued again, nor these origins.
    op.execute("UPDATE batches SET purpose = 'search' WHERE purpose = 'replay'")
    op.execute("UPDATE candidates SET state = 'cancelled' WHERE purpose = 'replay' AND state IN ('queued', 'leased')")
    op.execute("UPDATE candidates SET purpose = 'confirm' WHERE purpose = 'replay'")
    op.execute("UPDATE jobs SET origin = 'misses' WHERE origin IN ('upgrade', 'retune')")
    for name in ("earlier_effort", "earlier", "replay", "device_class"):
        op.drop_column("tasks", name)
    for name in ("owed", "effort", "replayed_from", "driver"):
        op.drop_column("best", name)


def _tables(*names: str) -> list[sa.TableClause]:
    """The columns that are read and written here, as they are between the two revisions."""
    columns: dict[str, list[sa.ColumnClause[object]]] = {
        "best": [*map(sa.column, (*_KEY, "record", "driver")), sa.column("effort", _EFFORT)],
        "settled": [*map(sa.column, _KEY), sa.column("effort", _EFFORT)],
        "records": [*map(sa.column, ("project", "id", "device_key"))],
        "devices": [sa.column("key"), sa.column("body", sa.JSON())],
    }
    return [sa.table(name, *columns[name]) for name in names]
