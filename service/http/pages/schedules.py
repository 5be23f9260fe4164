"""Schedules: what is served for which device class, with its evidence; pinned and unpinned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query
from starlette.responses import Response

from pitchpipe.wire.record import Origin, Tier
from service.http.pages.tables import Column, Spec
from service.http.pages.view import UserView, no_forgery
from service.store import coverage, listings, pins

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
def schedules_page(view: UserView, model: Annotated[str, Query(max_length=64)] = "") -> Response:
    """All that the project serves, and how much of a model's time that covers. Without `model` it is the newest one."""
    with view.reading() as session:
        models = coverage.models(session, view.project)
        chosen = model if model in dict(models) else next((one for one, _ in models), "")
        covered = coverage.of_model(session, view.project, chosen) if chosen else None
    table = Spec(
        id="schedules",
        title="Served",
        listing=listings.schedules(view.project),
        columns=_COLUMNS,
        choices={"origin": tuple(Origin)},
        empty="Nothing is served yet.",
    )
    return view.page(
        "schedules.html",
        table,
        models=models,
        chosen=chosen,
        covered=covered,
        bar=[] if covered is None else list(_bar(covered)),
        shares=[] if covered is None else _shares(covered),
    )


def _bar(covered: coverage.Coverage) -> Iterator[tuple[coverage.Covered, float, float]]:
    """(task, where it begins, its width) of a bar of length 100, tier by tier; tasks without known seconds are left out."""
    at = 0.0
    for task in sorted(covered.tasks, key=lambda task: list(Tier).index(task.tier)):
        if task.secs:
            width = 100 * task.secs / covered.known_secs
            yield task, at, width
            at += width


def _shares(covered: coverage.Coverage) -> list[tuple[str, int, float, float]]:
    """(tier, tasks, seconds, share of the known seconds) of the tiers that there are."""
    found = []
    for tier in Tier:
        mine = [task for task in covered.tasks if task.tier is tier]
        secs = sum(task.secs or 0.0 for task in mine)
        if mine:
            found.append((tier.value, len(mine), secs, secs / covered.known_secs if covered.known_secs else 0.0))
    return found


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
