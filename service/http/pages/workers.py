"""Workers: who measures, whether they answer, how steady they are, what their devices can do."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pitchpipe.wire.lease import WorkerSeconds, WorkerState
from service.http.pages.tables import Column, Spec
from service.http.pages.view import AnyView
from service.store import listings, pace, workers

router = APIRouter(prefix="/workers", include_in_schema=False)

_COLUMNS = (
    Column(name="name", title="Name", link="/workers/{id}"),
    Column(name="state", title="State", shown="words"),
    Column(name="device", title="Device"),
    Column(name="target", title="Target"),
    Column(name="trials", title="Trials", shown="count"),
    Column(
        name="steadiness", title="Reference", shown="ratio", help="time of the reference workload over its usual one"
    ),
    Column(name="flops_per_sec", title="Peak FLOP/s", shown="scaled", help="float32, measured"),
    Column(name="last_seen_at", title="Last seen (UTC)", shown="when"),
)
_PARTS = (
    ("Preparing workloads", "prepare_secs"),
    ("Building", "build_secs"),
    ("Checking outputs", "check_secs"),
    ("Timing", "time_secs"),
    ("Waiting for others", "wait_secs"),
)
"""(title, field of WorkerSeconds)"""


@router.get("")
def workers_page(view: AnyView) -> Response:
    """All workers of the project."""
    table = Spec(
        id="workers",
        title="Workers",
        listing=listings.workers(view.project),
        columns=_COLUMNS,
        choices={"state": tuple(WorkerState)},
        empty="No worker has registered. Start one with `pitchpipe worker --url ... --token ...`.",
    )
    return view.page("workers.html", table)


@router.get("/{worker_id}")
def worker_page(view: AnyView, worker_id: str) -> Response:
    """One worker: its device, its toolchain, its steadiness, where its seconds went, its roofline and its last states."""
    with view.reading() as session:
        worker = workers.get(session, view.project, worker_id)
        history = workers.history(session, view.project, worker_id)
        found = pace.of_worker(session, view.project, worker_id)
    return view.page("worker.html", worker=worker, history=history, pace=found, parts=_parts(worker.seconds))


def _parts(seconds: WorkerSeconds | None) -> list[tuple[str, float]]:
    """(what for, seconds) of all seconds since the worker started; none where it has not told."""
    if seconds is None:
        return []
    known = [(title, getattr(seconds, name)) for title, name in _PARTS]
    idle_secs = max(0.0, seconds.total_secs - sum(secs for _, secs in known))
    return [*known, ("Nothing to measure", idle_secs)]
