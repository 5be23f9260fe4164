"""Schedules: what is served, and why something is not."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from pitchpipe.wire.context import ContendersRequest, ContendersResponse, InContext
from pitchpipe.wire.job import JobView
from pitchpipe.wire.pin import PinRequest, PinResponse, ServedPin
from pitchpipe.wire.record import ExplainRequest, ExplainResponse, LookupRequest, LookupResponse
from pitchpipe.wire.savings import MAX_DAYS, Savings
from pitchpipe.wire.upgrade import OutdatedList, UpgradeRequest
from service.http.auth import User
from service.http.context import Context, Ctx, Limit
from service.http.problems import BODY, documented
from service.http.routes.jobs import IdempotencyKey
from service.http.routes.targets import OnlyTarget
from service.store import contexts, explanations, lookups, pins, savings, upgrades
from service.store.values import target_digest

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

MAX_TAGS_CHARS = 4096
IfNoneMatch = Annotated[
    str | None,
    Header(max_length=MAX_TAGS_CHARS, description="the `ETag` of an earlier answer; while it holds, the answer is 304"),
]


@router.post(
    "/lookup",
    response_model=LookupResponse,
    responses={**documented(*BODY), 304: {"description": "The answer named by If-None-Match still holds"}},
)
def lookup_schedules(
    context: Ctx, principal: User, request: LookupRequest, if_none_match: IfNoneMatch = None
) -> Response:
    """The served schedules of many workloads for one target; every answer names its tier and reason.

    The answer has an `ETag`. It changes only when what the project serves changes.
    """
    return answer_lookup(context, principal.project, request, if_none_match)


def answer_lookup(context: Context, project: str, request: LookupRequest, if_none_match: str | None) -> Response:
    """What the route answers: `service.http.shortcut` asks here, too. Raises InvalidTarget and Overloaded."""
    if if_none_match is not None:
        tag = lookups.entity_tag(project, request, context.database.glance(lambda at: lookups.generation(at, project)))
        if tag in {known.strip().removeprefix("W/") for known in if_none_match.split(",")}:
            return Response(status_code=304, headers={"ETag": tag})
    generation, answer = context.database.glance(lambda at: lookups.answer(at, project, request))
    context.metrics.count_answers(answer.answers)
    tag = lookups.entity_tag(project, request, generation)
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json", headers={"ETag": tag})


@router.post("/explain", responses=documented(*BODY))
def explain_schedules(context: Ctx, principal: User, request: ExplainRequest) -> ExplainResponse:
    """Why workloads of a look-up have no exact answer: the nearest stored keys and what tells them apart."""
    with context.database.reading() as session:
        return explanations.explain(session, principal.project, request)


@router.post("/pinned", responses=documented(*BODY))
def pinned_schedules(context: Ctx, principal: User, request: PinRequest) -> PinResponse:
    """The traces of records that a lock file names, or why one may not be run on the target."""
    with context.database.reading() as session:
        return pins.resolve(session, principal.project, request)


@router.put("/pin", responses=documented(*BODY, 404))
def pin_schedule(context: Ctx, principal: User, request: ServedPin) -> ServedPin:
    """Keeps what is served, whatever is confirmed later, or lets it be replaced again. Idempotent."""
    with context.database.transaction() as session:
        key = target_digest(request.target)
        pins.hold(session, principal.project, request.workload, key, request.device_class, pinned=request.pinned)
    return request


@router.post("/contenders", responses=documented(*BODY))
def contending_schedules(context: Ctx, principal: User, request: ContendersRequest) -> ContendersResponse:
    """The fastest schedules of some workloads that one device class timed: what may be tried inside a model."""
    with context.database.reading() as session:
        return contexts.contenders(session, principal.project, request)


@router.put("/in-context", responses=documented(*BODY))
def put_schedules_in_context(context: Ctx, principal: User, report: InContext) -> InContext:
    """Serves what won inside a model to look-ups that name the contexts, as long as the same is served alone. Idempotent."""
    with context.database.transaction() as session:
        contexts.put(session, principal.project, report)
    return report


@router.get("/savings", responses=documented(400))
def show_savings(context: Ctx, principal: User, days: Annotated[int, Query(ge=1, le=MAX_DAYS)] = 7) -> Savings:
    """What served schedules saved the deployments that report their runs, day by day (UTC)."""
    with context.database.reading() as session:
        return savings.by_day(session, principal.project, days)


@router.get("/outdated", responses=documented(400))
def outdated_schedules(
    context: Ctx,
    principal: User,
    target: OnlyTarget = None,
    limit: Limit = 50,
) -> OutdatedList:
    """What is served from another toolchain, driver or device class than the active workers have; most valuable first."""
    with context.database.reading() as session:
        return upgrades.outdated(session, principal.project, target, limit)


@router.post(
    "/upgrade",
    status_code=201,
    responses={**documented(*BODY, 404, 409), 200: {"model": JobView, "description": "The key's job, as it is now"}},
)
def upgrade_schedules(
    context: Ctx,
    principal: User,
    request: UpgradeRequest,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queues a job that replays such workloads, or searches where a replay did not hold; behind every user's job."""
    with context.database.transaction() as session:
        view, created = upgrades.submit(session, principal.project, request, idempotency_key)
    if not created:
        response.status_code = 200
    context.wake.notify()
    return view
