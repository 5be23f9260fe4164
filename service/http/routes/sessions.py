"""Links to the dashboard: whoever has a token gives a browser a session without typing it there."""

from __future__ import annotations

from fastapi import APIRouter, Response

from pitchpipe.wire.job import SessionLink
from service.http.auth import Everyone
from service.http.context import Ctx
from service.http.problems import documented
from service.store import sessions

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


@router.post("/links", status_code=201, responses=documented())
def create_session_link(context: Ctx, asking: Everyone, response: Response) -> SessionLink:
    """A link that signs one browser in to the dashboard, with what the token may do. It can be opened once."""
    with context.database.transaction() as session:
        code = sessions.link(session, asking.token_id)
    response.headers["Cache-Control"] = "no-store"
    return SessionLink(path=f"/sign-in/{code}", valid_secs=sessions.LINK_SECS)
