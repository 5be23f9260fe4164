"""What a request can reach: the parts of the process, built once by the app factory and never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request

from pitchpipe.wire.page import MAX_PAGE
from service.blobs import Blobs
from service.db import Database
from service.http.auth import Authenticator
from service.http.programs import Programs
from service.metrics import Metrics
from service.settings import Settings
from service.wake import Wake

POLL_SECS, ALONE_POLL_SECS = 0.25, 1.0


@dataclass(frozen=True, kw_only=True)
class Context:
    """Shared by all requests of one app; every part is thread-safe."""

    settings: Settings
    database: Database
    blobs: Blobs
    wake: Wake
    metrics: Metrics
    authenticator: Authenticator
    """Of the API's tokens."""
    sessions: Authenticator
    """Of the pages' cookies."""
    programs: Programs

    @property
    def poll_secs(self) -> float:
        """How often a waiting request looks at the database without a notice. By default often where other processes write
        to it, whose notices do not arrive here, and else for what time alone changes."""
        return self.settings.poll_secs or (ALONE_POLL_SECS if self.database.is_sqlite else POLL_SECS)


async def _context(request: Request) -> Context:
    # Not a plain function: the framework would send it, and whoever waits for it, through a thread.
    found = request.app.state.context
    assert isinstance(found, Context)
    return found


Ctx = Annotated[Context, Depends(_context)]
Cursor = Annotated[
    str | None,
    Query(min_length=1, max_length=256, pattern=r"^[\x20-\x7e]+$", description="`next_cursor` of the page before"),
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="most items of the page")]
