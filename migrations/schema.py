"""The schema's revision: brought up to date from the code, or checked. Works installed and from a checkout."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from pitchpipe.errors import SchemaMismatch


def config() -> Config:
    """Alembic's configuration, with no file."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return made


def head() -> str:
    """The newest revision that this code knows."""
    newest = ScriptDirectory.from_config(config()).get_current_head()
    assert newest is not None
    return newest


def current(connection: Connection) -> str | None:
    """The database's revision; None before the first migration. Raises SchemaMismatch if this code does not know it."""
    found = MigrationContext.configure(connection).get_current_revision()
    if found is not None and found not in {
        script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()
    }:
        raise SchemaMismatch(
            f"the database's schema is at revision {found}, which this version does not know (up to {head()}); "
            "run a newer pitchpipe, or restore the backup made before the upgrade"
        )
    return found


def upgrade(connection: Connection) -> None:
    """To head, in the connection's transaction: all of it or nothing."""
    if current(connection) == head():
        return
    made = config()
    made.attributes["connection"] = connection
    command.upgrade(made, "head")


def check(connection: Connection) -> None:
    """Raises SchemaMismatch unless the database is at head."""
    found = current(connection)
    if found != head():
        state = "has no schema yet" if found is None else f"is at revision {found}"
        raise SchemaMismatch(f"the database {state}, this version needs {head()}; run `pitchpipe db upgrade`")
