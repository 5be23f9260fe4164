"""Cost models: every version with its marks, which replaced which and why, and what one predicted beside what was measured;
promoted and rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from pitchpipe.wire.cost_model import CostModelState, TaskMarks
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView, no_forgery
from service.store import cost_models, listings

router = APIRouter(prefix="/cost-models", include_in_schema=False, dependencies=[Depends(no_forgery)])

_PAIRS = "share of the pairs of candidates that are in the right order"
_COLUMNS = (
    Column(name="target_kind", title="For"),
    Column(name="version", title="Version", shown="count", link="/cost-models/{id}"),
    Column(name="state", title="State", shown="words"),
    Column(name="samples", title="Records", shown="count", help="measured candidates that it was trained on"),
    Column(name="pairwise", title="Held out", shown="share", help=f"{_PAIRS}, of workloads that its judge never saw"),
    Column(name="shadow_pairwise", title="Shadow", shown="share", help=f"{_PAIRS}, of what was measured later"),
    Column(name="shadow_rival", title="Rival", shown="share", help="the same by the version that served"),
    Column(name="reason", title="Why"),
)
_CHANGES = (
    Column(name="at", title="Since (UTC)", shown="when"),
    Column(name="version", title="Version", shown="count"),
    Column(name="replaced", title="Replaced", shown="count"),
    Column(name="by", title="By the token", shown="text", help="none: the rule decided"),
    Column(name="reason", title="Why"),
)


@router.get("")
def cost_models_page(view: UserView) -> Response:
    """The table of all versions."""
    table = Spec(
        id="cost-models",
        title="Versions",
        listing=listings.cost_models(view.project),
        columns=_COLUMNS,
        choices={"state": tuple(CostModelState)},
        empty="No cost model has been trained yet: searches rank at random until there are enough measurements.",
    )
    return view.page("cost_models.html", table)


@router.get("/{cost_model_id}")
def cost_model_page(view: UserView, cost_model_id: str) -> Response:
    """One version: what it was trained on, its marks, what it predicted, and which served when."""
    with view.reading() as session:
        found = cost_models.get(session, view.project, cost_model_id)
    table = Spec(
        id="changes",
        title=f"Which version served for {found.target_kind}",
        listing=listings.cost_model_changes(view.project, found.target_kind),
        columns=_CHANGES,
        choices={},
        empty="None has served.",
        rows=20,
    )
    points = _points(found.held_out_tasks, 0) + _points(found.shadow_tasks, 1)
    return view.page("cost_model.html", table, found=found, points={"points": sorted(points)} if points else None)


@router.post("/{cost_model_id}/promote")
def promote(view: UserView, cost_model_id: str) -> Response:
    """Lets the version serve."""
    with view.context.database.transaction() as session:
        cost_models.promote(session, view.project, cost_model_id, view.viewer.token_id)
    return view.back(f"/cost-models/{cost_model_id}")


@router.post("/{cost_model_id}/rollback")
def roll_back(view: UserView, cost_model_id: str) -> Response:
    """Lets the version serve that this one replaced, and shows it."""
    with view.context.database.transaction() as session:
        earlier = cost_models.roll_back(session, view.project, cost_model_id, view.viewer.token_id)
    return view.back(f"/cost-models/{earlier}")


def _points(tasks: Sequence[TaskMarks], series: int) -> list[list[Any]]:
    """[measured speed, predicted score, series] of every candidate."""
    return [[speed, score, series] for task in tasks for speed, score in task.points]
