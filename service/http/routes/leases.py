"""Leases: acquire by long poll, renew, report."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from pitchpipe import telemetry
from pitchpipe.wire.lease import (
    Heartbeat,
    HeartbeatResponse,
    LeaseGrant,
    LeaseRequest,
    LeaseResponse,
    Report,
    ReportResponse,
)
from service.http.auth import Worker
from service.http.context import Context, Ctx
from service.http.problems import BODY, documented
from service.store import leases
from service.store.tokens import Principal

router = APIRouter(prefix="/v1/leases", tags=["leases"])

CLAIM_EVERY_SECS = 10.0
"""Well under `worker_timeout_secs`, after which a silent worker is marked lost."""


@router.post("", responses=documented(*BODY, 404, 409))
async def acquire_lease(context: Ctx, principal: Worker, request: LeaseRequest, http: Request) -> LeaseResponse:
    """Waits up to `wait_secs` for candidates the worker can measure; holds a thread only while it looks."""
    deadline = time.monotonic() + request.wait_secs
    claim_at = 0.0
    while True:
        generation = context.wake.generation
        if await http.is_disconnected():
            return LeaseResponse()
        left_secs = deadline - time.monotonic()
        # In between it only reads: a hundred idle workers must not queue for the write lock four times a second. A
        # claim now and then all the same, since claiming is what tells the database that the worker is alive.
        last = left_secs <= 0 or context.wake.closed
        available = await run_in_threadpool(_available, context, principal, request)
        if available is None:
            return LeaseResponse()
        if last or available or time.monotonic() >= claim_at:
            claim_at = time.monotonic() + CLAIM_EVERY_SECS
            grant = await run_in_threadpool(_claim, context, principal, request)
            if grant is not None:
                return await _hand_over(context, principal, http, grant)
        if last:
            return LeaseResponse()
        await context.wake.wait_async(min(left_secs, context.poll_secs), since=generation)


async def _hand_over(context: Context, principal: Principal, http: Request, grant: LeaseGrant) -> LeaseResponse:
    if await http.is_disconnected():
        # Nobody would measure it: give it back now rather than when it expires, and as no fault of anybody.
        await run_in_threadpool(_give_back, context, principal, grant)
        return LeaseResponse()
    context.metrics.leases.inc()
    return LeaseResponse(grant=grant)


def _available(context: Context, principal: Principal, request: LeaseRequest) -> bool | None:
    with context.database.reading() as session:
        return leases.available(session, principal.project, request.worker)


def _claim(context: Context, principal: Principal, request: LeaseRequest) -> LeaseGrant | None:
    began = time.time()
    with context.database.transaction() as session:
        grant = leases.acquire(session, principal.project, request, context.settings.lease_ttl_secs)
    if grant is None:
        return None
    n, purpose = len(grant.candidates), grant.purpose.value
    span = telemetry.continued(
        grant.traceparent, "lease", began, lease=grant.lease, worker=request.worker, purpose=purpose, candidates=n
    )
    with span:
        return grant.model_copy(update={"traceparent": telemetry.traceparent() or grant.traceparent})


def _give_back(context: Context, principal: Principal, grant: LeaseGrant) -> None:
    with context.database.transaction() as session:
        leases.report(session, principal.project, grant.lease, Report(fence=grant.fence, results=(), final=True))
    context.wake.notify()


@router.post("/{lease_id}/heartbeat", responses=documented(*BODY, 404, 409))
def renew_lease(context: Ctx, principal: Worker, lease_id: str, request: Heartbeat) -> HeartbeatResponse:
    """Renews a lease; a lease that expired or was granted again is a conflict and stays lost."""
    with context.database.transaction() as session:
        return leases.heartbeat(session, principal.project, lease_id, request.fence, context.settings.lease_ttl_secs)


@router.post("/{lease_id}/report", responses=documented(*BODY, 404, 409))
def report_results(context: Ctx, principal: Worker, lease_id: str, request: Report) -> ReportResponse:
    """Stores results: durable when this answers. Sending them again changes nothing."""
    parent = _parent(context, principal.project, lease_id)
    span = telemetry.continued(parent, "report", lease=lease_id, results=len(request.results))
    with span, context.database.transaction() as session:
        answer = leases.report(session, principal.project, lease_id, request)
    if answer.accepted:
        context.metrics.count_results(request.results)
    context.wake.notify()
    return answer


def _parent(context: Context, project: str, lease: str) -> str | None:
    """What the span of a report continues: the caller's trace, or that of the lease's job where it sent none."""
    if (own := telemetry.traceparent()) is not None or not telemetry.enabled():
        return own
    with context.database.reading() as session:
        return leases.traceparent(session, project, lease)
