"""Overview: what runs, what was saved, workers by state, what is missed most."""

from __future__ import annotations

from datetime import date
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from pitchpipe.wire.job import JobState, Scope
from pitchpipe.wire.savings import Savings
from service.http.pages import misses as misses_page
from service.http.pages.jobs import JOB_COLUMNS
from service.http.pages.tables import Spec
from service.http.pages.view import EveryView
from service.store import listings, savings, summary

router = APIRouter(include_in_schema=False)

PLOT_DAYS = 30
"""Of the plot of what was saved."""


@router.get("/")
def overview(view: EveryView) -> Response:
    """The first page; whoever may not see a project's jobs is led to what they may see."""
    if not view.may(Scope.USER):
        return view.back("/workers" if view.scope is Scope.WORKER else "/instance")
    with view.reading() as session:
        figures = summary.of_project(session, view.project)
        missed = misses_page.spec(session, view.project, rows=5)
        saved = savings.by_day(session, view.project, PLOT_DAYS)
    running = Spec(
        id="running",
        title="Jobs under way",
        listing=listings.jobs(view.project, running=True),
        columns=JOB_COLUMNS,
        choices={"state": tuple(state.value for state in JobState if not state.ended)},
        empty="No job is under way.",
        rows=20,
    )
    return view.page("overview.html", running, missed, figures=figures, saved=saved, plot=_plot(saved))


def _plot(saved: Savings) -> dict[str, Any]:
    """Points of (days since 1970-01-01, seconds saved over the baseline, over default schedules)."""
    epoch = date(1970, 1, 1)
    points = [[(each.day - epoch).days, each.baseline_saved_secs, each.default_saved_secs] for each in saved.days]
    return {"points": points}
