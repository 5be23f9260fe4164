"""Records: what was measured."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from pitchpipe.wire.page import RecordPage
from pitchpipe.wire.record import RecordView
from service.http.auth import User
from service.http.context import Ctx, Cursor, Limit
from service.http.problems import documented
from service.http.routes.targets import OnlyTarget
from service.store import records

router = APIRouter(prefix="/v1", tags=["records"])


@router.get("/records", responses=documented(400))
def list_records(
    context: Ctx,
    principal: User,
    workload: Annotated[str | None, Query(pattern=r"^[0-9a-f]{64}$")] = None,
    target: OnlyTarget = None,
    timed: Annotated[bool | None, Query(description="false: failures only")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> RecordPage:
    """Measured candidates, failures included, newest first."""
    with context.database.reading() as session:
        items, next_cursor = records.list_(
            session, principal.project, workload=workload, target=target, timed=timed, cursor=cursor, limit=limit
        )
    return RecordPage(items=tuple(items), next_cursor=next_cursor)


@router.get("/records/{record_id}", responses=documented(400, 404, 413))
def show_record(context: Ctx, principal: User, record_id: str) -> RecordView:
    """One record with the program that its trace applies to, and the name and the baseline of its task."""
    with context.database.reading() as session:
        return records.view(session, principal.project, record_id)
