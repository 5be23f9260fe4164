"""Run by Alembic: from the code with a connection, or by `alembic` on the command line with PITCHPIPE_DATABASE_URL."""

from __future__ import annotations

import os
from typing import Literal

import sqlalchemy as sa
from alembic import context
from alembic.autogenerate.api import AutogenContext

from service.db import Database
from service.tables import Base, Line


def render(kind: str, item: object, _context: AutogenContext) -> str | Literal[False]:
    """A migration names no type of ours: it must still run when tables.py has moved on."""
    if kind == "type" and isinstance(item, Line):
        return "sa.String()"
    if kind == "type" and isinstance(item, sa.Enum):
        return f"sa.String({item.length})"
    return False


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        # SQLite alters a table by copying it.
        render_as_batch=True,
        render_item=render,
    )
    context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    database = Database(os.environ["PITCHPIPE_DATABASE_URL"])
    with database.migrating() as opened:
        run(opened)
    database.close()
