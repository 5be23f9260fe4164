"""Workers: registration, states, and the workloads they read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from pitchpipe.wire.lease import WorkerRegistration, WorkerStateRequest, WorkerView, WorkloadView
from pitchpipe.wire.page import WorkerPage
from service.http.auth import Anyone, Worker
from service.http.context import Ctx, Cursor, Limit
from service.http.problems import BODY, documented
from service.store import leases, workers, workloads

router = APIRouter(prefix="/v1", tags=["workers"])


@router.post("/workers", responses=documented(*BODY))
def register_worker(context: Ctx, principal: Worker, request: WorkerRegistration) -> WorkerView:
    """Registers a worker, or brings the one of this name back; what was leased to that one is offered again, unless it
    `goes_on`."""
    with context.database.transaction() as session:
        view = workers.register(session, principal.project, request)
        if not request.goes_on:
            leases.void(session, view.id)
    context.wake.notify()
    return view


@router.get("/workers", responses=documented(400))
def list_workers(context: Ctx, principal: Anyone, cursor: Cursor = None, limit: Limit = 50) -> WorkerPage:
    """Workers of the project, newest first."""
    with context.database.reading() as session:
        items, next_cursor = workers.list_(session, principal.project, cursor, limit)
    return WorkerPage(items=tuple(items), next_cursor=next_cursor)


@router.get("/workers/{worker_id}", responses=documented(404))
def show_worker(context: Ctx, principal: Anyone, worker_id: str) -> WorkerView:
    """One worker."""
    with context.database.reading() as session:
        return workers.get(session, principal.project, worker_id)


@router.post("/workers/{worker_id}/state", responses=documented(*BODY, 404, 409))
def set_worker_state(context: Ctx, principal: Worker, worker_id: str, request: WorkerStateRequest) -> WorkerView:
    """`draining` gets no new lease, `gone` has left; registering again makes it active."""
    with context.database.transaction() as session:
        view = workers.set_state(session, principal.project, worker_id, request.state)
    context.wake.notify()
    return view


@router.get("/workloads/{digest}", responses=documented(404))
def show_workload(
    context: Ctx, principal: Anyone, digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
) -> WorkloadView:
    """The program that a lease's traces apply to. A digest never changes its meaning: cache it for good."""
    with context.database.reading() as session:
        found = workloads.get(session, principal.project, digest)
    return WorkloadView(digest=found.digest, ir=found.ir)
