"""Overview: what runs, what was saved, workers by state, what is missed most."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from pitchpipe.wire.job import JobState, Scope
from service.http.pages import misses as misses_page
from service.http.pages.jobs import JOB_COLUMNS
from service.http.pages.tables import Spec
from service.http.pages.view import EveryView
from service.store import listings, summary

router = APIRouter(include_in_schema=False)


@router.get("/")
def overview(view: EveryView) -> Response:
    """The first page; whoever may not see a project's jobs is led to what they may see."""
    if not view.may(Scope.USER):
        return view.back("/workers" if view.scope is Scope.WORKER else "/instance")
    with view.reading() as session:
        figures = summary.of_project(session, view.project)
        missed = misses_page.spec(session, view.project, rows=5)
    running = Spec(
        id="running",
        title="Jobs under way",
        listing=listings.jobs(view.project, running=True),
        columns=JOB_COLUMNS,
        choices={"state": tuple(state.value for state in JobState if not state.ended)},
        empty="No job is under way.",
        rows=20,
    )
    return view.page("overview.html", running, missed, figures=figures)
