"""Cost models: every version that was trained, on how much, and how well it ranked what it had not seen."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView
from service.store import listings

router = APIRouter(prefix="/cost-models", include_in_schema=False)

_COLUMNS = (
    Column(name="target_kind", title="Kind of target"),
    Column(name="version", title="Version", shown="count"),
    Column(name="samples", title="Trained on", shown="count", help="measured candidates"),
    Column(name="metrics", title="On workloads that it never saw"),
    Column(name="created_at", title="Trained (UTC)", shown="when"),
)


@router.get("")
def cost_models_page(view: UserView) -> Response:
    """The table; the newest version of a kind of target is the one that searches use."""
    table = Spec(
        id="cost-models",
        title="Versions",
        listing=listings.cost_models(view.project),
        columns=_COLUMNS,
        choices={},
        empty="No cost model has been trained yet: searches rank at random until there are enough measurements.",
    )
    return view.page("cost_models.html", table)
