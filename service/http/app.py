"""The app factory: parts in, ASGI app out. Imports no compiler."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from pitchpipe.wire.problem import Problem
from service.blobs import Blobs
from service.db import Database
from service.http import pages, problems
from service.http.auth import Authenticator, sessions_of
from service.http.context import Context
from service.http.edge import Edge
from service.http.pages.front import Front
from service.http.programs import Programs
from service.http.routes import (
    cost_models,
    jobs,
    leases,
    misses,
    models,
    probes,
    records,
    schedules,
    sessions,
    tokens,
    workers,
)
from service.http.shortcut import Shortcut
from service.metrics import Metrics
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
        sessions=sessions_of(database, settings.token_cache_secs),
        programs=Programs(),
    )
    # No slash redirects: a redirected upload would be sent twice. No native body cap: its 413 is no problem document.
    app = FastAPI(
        title="Pitchpipe",
        summary="Tune a model once for a whole fleet; fetch the schedules in milliseconds",
        version=version("pitchpipe"),
        docs_url=None,  # a page of ours, which loads nothing from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.context = context
    problems.register(app)
    for noun in (probes, models, jobs, leases, workers, records, schedules, misses, cost_models, tokens, sessions):
        app.include_router(noun.router)
    pages.include(app)
    # The last added is the first met.
    app.add_middleware(Shortcut, context=context)
    app.add_middleware(Edge, context=context)
    app.add_middleware(Front)
    _complete_document(app)
    return app


def _complete_document(app: FastAPI) -> None:
    """Adds to the OpenAPI document what FastAPI cannot know: the Problem schema, and that unions need their tag."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(problem.pop("$defs", {}))
            schemas["Problem"] = problem
            for schema in schemas.values():
                tags = [name for name, value in schema.get("properties", {}).items() if "const" in value]
                if tags:
                    schema["required"] = sorted({*schema.get("required", ()), *tags})
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
