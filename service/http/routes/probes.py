"""Probes and metrics: no token, never shed."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pitchpipe.wire.health import Health
from service.http.context import Ctx
from service.http.problems import documented

router = APIRouter(tags=["probes"])
_READY: dict[int | str, dict[str, Any]] = {503: documented()[503]}


@router.get("/healthz")
async def healthz() -> Health:
    """The process is alive. Touches nothing, so that a slow database does not get it restarted."""
    return Health(version=version("pitchpipe"))


@router.get("/readyz", responses=_READY)
def readyz(context: Ctx) -> Health:
    """The database answers and has the schema of this version."""
    context.database.check()
    return Health(version=version("pitchpipe"))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(context: Ctx) -> Response:
    """Prometheus text."""
    return Response(context.metrics.page(), media_type=CONTENT_TYPE_LATEST)
