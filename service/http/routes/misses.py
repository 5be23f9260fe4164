"""What deployments missed, and what a project lets idle workers spend on it."""

from __future__ import annotations

from fastapi import APIRouter

from pitchpipe.wire.miss import IdleBudget, IdleBudgetRequest, MissReceipt, MissReport
from pitchpipe.wire.page import MissPage
from service.http.auth import User
from service.http.context import Ctx, Limit
from service.http.problems import BODY, documented
from service.http.routes.jobs import IdempotencyKey
from service.http.routes.targets import OnlyTarget
from service.store import misses

router = APIRouter(prefix="/v1", tags=["misses"])


@router.post("/misses", responses=documented(*BODY, 404, 409))
def report_misses(
    context: Ctx, principal: User, report: MissReport, idempotency_key: IdempotencyKey = None
) -> MissReceipt:
    """Counts workloads that ran, without a schedule or with a served one. The same key with the same body counts once."""
    with context.database.transaction() as session:
        return misses.report(session, principal.project, report, idempotency_key)


@router.get("/misses", responses=documented(400))
def list_misses(
    context: Ctx,
    principal: User,
    target: OnlyTarget = None,
    limit: Limit = 50,
) -> MissPage:
    """The most valuable misses, at most `limit`, the most valuable first. There is no further page."""
    with context.database.reading() as session:
        return MissPage(items=tuple(misses.list_(session, principal.project, target, limit)))


@router.get("/projects/current/idle-budget", responses=documented())
def show_idle_budget(context: Ctx, principal: User) -> IdleBudget:
    """What the token's project lets idle workers spend on misses in a day, and what was granted today."""
    with context.database.reading() as session:
        return misses.budget(session, principal.project)


@router.put("/projects/current/idle-budget", responses=documented(*BODY))
def set_idle_budget(context: Ctx, principal: User, request: IdleBudgetRequest) -> IdleBudget:
    """Sets the trials of a day that idle workers may spend on misses; 0 is none. Jobs that are under way go on."""
    with context.database.transaction() as session:
        found = misses.set_budget(session, principal.project, request.trials_per_day)
    context.wake.notify()
    return found
