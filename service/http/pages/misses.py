"""Misses: what deployments ran without a schedule, the most valuable first, and what idle workers may spend on it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form
from starlette.responses import Response

from pitchpipe.wire.miss import MissStage
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView, no_forgery
from service.store import listings, misses

router = APIRouter(prefix="/misses", include_in_schema=False, dependencies=[Depends(no_forgery)])

_COLUMNS = (
    Column(name="workload", title="Workload", shown="digest"),
    Column(name="model", title="Model"),
    Column(name="target", title="Target"),
    Column(name="value_secs", title="Value", shown="seconds", help="seconds spent on it; after a week they count half"),
    Column(name="runs", title="Runs", shown="count"),
    Column(name="default_secs", title="One run", shown="seconds"),
    Column(name="stage", title="Stage", shown="words"),
    Column(name="job", title="Job", link="/jobs/{job}"),
    Column(name="reported_at", title="Reported (UTC)", shown="when"),
)


def spec(session: Any, project: str, rows: int = 50) -> Spec:
    """The table; the overview shows its first rows, too."""
    return Spec(
        id="misses",
        title="Missed most",
        listing=listings.misses(session, project),
        columns=_COLUMNS,
        choices={"stage": tuple(MissStage)},
        empty="No deployment has reported a miss.",
        rows=rows,
    )


@router.get("")
def misses_page(view: UserView) -> Response:
    """The table, and the idle budget."""
    with view.reading() as session:
        budget, table = misses.budget(session, view.project), spec(session, view.project)
    return view.page("misses.html", table, budget=budget)


@router.post("/idle-budget")
def set_idle_budget(view: UserView, trials: Annotated[int, Form(ge=0, le=10_000_000)]) -> Response:
    """Sets what idle workers may spend in a day."""
    with view.context.database.transaction() as session:
        misses.set_budget(session, view.project, trials)
    view.context.wake.notify()
    return view.back("/misses")
