"""The app factory: parts in, ASGI app out. Imports no compiler."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from pitchpipe.wire.problem import Problem
from service import problems
from service.auth import Authenticator
from service.blobs import Blobs
from service.context import Context
from service.db import Database
from service.edge import Edge
from service.metrics import Metrics
from service.routes import jobs, leases, models, probes, records, tokens, workers
from service.settings import Settings
from service.wake import Wake


def create_app(settings: Settings, database: Database, blobs: Blobs, wake: Wake) -> FastAPI:
    """An app over parts that the caller owns and closes. The database must be migrated before `/readyz` says yes."""
    context = Context(
        settings=settings,
        database=database,
        blobs=blobs,
        wake=wake,
        metrics=Metrics(database),
        authenticator=Authenticator(database, settings.token_cache_secs),
    )
    # No slash redirects: a redirected upload would be sent twice. No native body cap: its 413 is no problem document.
    app = FastAPI(
        title="Pitchpipe",
        summary="Tune a model once for a whole fleet; fetch the schedules in milliseconds",
        version=version("pitchpipe"),
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.context = context
    problems.register(app)
    for noun in (probes, models, jobs, leases, workers, records, tokens):
        app.include_router(noun.router)
    app.add_middleware(Edge, context=context)
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Puts the Problem schema, which the routes' `documented(...)` refer to, into the OpenAPI document."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        schemas["Problem"] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
