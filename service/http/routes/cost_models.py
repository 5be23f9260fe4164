"""Cost models: the registry of versions."""

from __future__ import annotations

from fastapi import APIRouter

from pitchpipe.wire.cost_model import CostModelDetail
from pitchpipe.wire.page import CostModelPage
from pitchpipe.wire.target import KindName
from service.http.auth import User
from service.http.context import Ctx, Cursor, Limit
from service.http.problems import documented
from service.store import cost_models

router = APIRouter(prefix="/v1/cost-models", tags=["cost models"])


@router.get("", responses=documented(400))
def list_cost_models(
    context: Ctx, principal: User, target_kind: KindName | None = None, cursor: Cursor = None, limit: Limit = 50
) -> CostModelPage:
    """Versions, newest first, with their marks; of all kinds of targets, or of one."""
    with context.database.reading() as session:
        items, next_cursor = cost_models.list_(session, principal.project, target_kind, cursor, limit)
    return CostModelPage(items=tuple(items), next_cursor=next_cursor)


@router.get("/{cost_model_id}", responses=documented(404))
def show_cost_model(context: Ctx, principal: User, cost_model_id: str) -> CostModelDetail:
    """One version with its marks task by task, and the changes of the version that serves its kind of target."""
    with context.database.reading() as session:
        return cost_models.get(session, principal.project, cost_model_id)


@router.post("/{cost_model_id}/promote", responses=documented(404))
def promote_cost_model(context: Ctx, principal: User, cost_model_id: str) -> CostModelDetail:
    """Lets the version serve, whatever its marks. Idempotent."""
    with context.database.transaction() as session:
        cost_models.promote(session, principal.project, cost_model_id, principal.token_id)
        return cost_models.get(session, principal.project, cost_model_id)


@router.post("/{cost_model_id}/rollback", responses=documented(404, 409))
def roll_back_cost_model(context: Ctx, principal: User, cost_model_id: str) -> CostModelDetail:
    """Lets the version serve that this one replaced, and answers with it; a conflict unless this one serves."""
    with context.database.transaction() as session:
        earlier = cost_models.roll_back(session, principal.project, cost_model_id, principal.token_id)
        return cost_models.get(session, principal.project, earlier)
