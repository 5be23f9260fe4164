"""The dashboard: pages for people, over the store that the API's routes read. One module a page."""

from __future__ import annotations

from fastapi import FastAPI

from service.http.pages import (
    cost_models,
    entrance,
    instance,
    job,
    jobs,
    misses,
    overview,
    programs,
    schedules,
    task,
    workers,
)
from service.http.pages.static import Static

PAGES = (entrance, overview, jobs, job, task, programs, workers, schedules, misses, cost_models, instance)


def include(app: FastAPI) -> None:
    """Adds the pages to the app of the API; its OpenAPI document leaves them out."""
    for page in PAGES:
        app.include_router(page.router)
    app.mount("/static", Static(), name="static")
