"""Look-ups in a database file without a service: what this machine has tuned for itself."""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.record import LookupRequest
from service.db import Database
from service.store import lookups, tokens

PROJECT = "default"
"""The one that an embedded service bootstraps."""


def lookup(url: str, request: LookupRequest) -> dict[str, Any]:
    """The answers of the embedded project, as JSON. Reads only; raises SchemaMismatch for another version's file."""
    database = Database(url, pool_size=1)
    try:
        database.check()
        with database.reading() as session:
            return lookups.lookup(session, tokens.project_named(session, PROJECT), request).model_dump(mode="json")
    finally:
        database.close()
