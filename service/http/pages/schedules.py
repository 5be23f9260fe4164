"""Schedules: what is served for which device class, with its evidence; pinned and unpinned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form
from starlette.responses import Response

from pitchpipe.wire.record import Origin
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView, no_forgery
from service.store import listings, pins

router = APIRouter(prefix="/schedules", include_in_schema=False, dependencies=[Depends(no_forgery)])

_COLUMNS = (
    Column(name="workload", title="Workload", shown="digest"),
    Column(name="operators", title="Operators"),
    Column(name="target", title="Target"),
    Column(name="device", title="Device"),
    Column(name="secs", title="Median", shown="seconds"),
    Column(name="baseline_secs", title="Baseline", shown="seconds"),
    Column(name="speedup", title="Speed-up", shown="ratio"),
    Column(name="origin", title="Found", shown="words"),
    Column(name="record", title="Record", link="/records/{record}"),
    Column(name="confirmed_at", title="Confirmed (UTC)", shown="when"),
    Column(name="pinned_at", title="Pinned (UTC)", shown="when"),
)


@router.get("")
def schedules_page(view: UserView) -> Response:
    """All that the project serves."""
    table = Spec(
        id="schedules",
        title="Served",
        listing=listings.schedules(view.project),
        columns=_COLUMNS,
        choices={"origin": tuple(Origin)},
        empty="Nothing is served yet.",
    )
    return view.page("schedules.html", table)


@router.post("/pin")
def pin(
    view: UserView,
    workload: Annotated[str, Form(max_length=64)],
    target_key: Annotated[str, Form(max_length=64)],
    device_class: Annotated[str, Form(max_length=64)],
    pinned: Annotated[bool, Form()],
) -> Response:
    """Pins or unpins one of them."""
    with view.context.database.transaction() as session:
        pins.hold(session, view.project, workload, target_key, device_class, pinned=pinned)
    return view.back("/schedules")
