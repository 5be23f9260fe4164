"""The OpenAPI document and the service agree: schemathesis sends what the document allows and what it forbids.

test_openapi.py runs this file in a process of its own: what schemathesis makes of the document is 6 CPU seconds, which every
process that only collects the suite would pay. By hand: `pytest -o addopts= tests/contract/openapi_cases.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import (
    ChecksConfig,
    GenerationConfig,
    PositiveDataAcceptanceConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
)
from schemathesis.config._checks import NegativeDataRejectionConfig

from pitchpipe.wire.job import Scope, TokenRequest
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import tokens
from service.wake import Wake

EXAMPLES = 8
"""Per operation, beside the covering cases that schemathesis derives from the document."""


class _LateApp:
    """The app that schemathesis calls: known to it when tests are collected, filled in when they run."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def _make(url: str) -> tuple[Any, Database]:
    database = Database(url)
    # Nobody is there to check models: uploads do not wait for it.
    options = Settings(
        blob_url="memory:///", poll_secs=0.01, model_check_secs=0, max_model_bytes=4096, max_body_bytes=1 << 20
    )
    return create_app(options, database, Blobs(options.blob_url), Wake()), database


def _describe(late: _LateApp) -> Any:
    # Nothing connects to this database: only the document is asked for.
    app, database = _make(f"sqlite:///{Path(tempfile.gettempdir()) / 'pitchpipe-never-opened.db'}")
    database.close()
    generation = GenerationConfig(max_examples=EXAMPLES, deterministic=True, no_shrink=True)
    checks = ChecksConfig(
        # 400 is for what a schema cannot say: a cursor of another list, a target without its cores. 413 as well.
        positive_data_acceptance=PositiveDataAcceptanceConfig(
            expected_statuses=["2xx", "400", "401", "403", "404", "409", "413", "5xx"]
        ),
        # pydantic reads "1" as 1; tests/database/test_routes.py says what is refused.
        negative_data_rejection=NegativeDataRejectionConfig(enabled=False),
    )
    project = ProjectConfig(generation=generation, checks=checks)
    config = SchemathesisConfig(projects=ProjectsConfig(default=project))
    described = schemathesis.openapi.from_dict(app.openapi(), config=config)
    described.app = late
    return described


late = _LateApp()
schema = _describe(late)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    late.app, database = _make(f"sqlite:///{tmp_path_factory.mktemp('openapi') / 'p.db'}")
    database.migrate()
    with database.transaction() as session:
        late.app.state.token = tokens.create(session, TokenRequest(project="a", scope=Scope.ADMIN)).token
        late.app.state.operator = tokens.create(session, TokenRequest(scope=Scope.OPERATOR)).token
    yield late.app
    database.close()


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_answers_as_its_document_says(case: Case, app: Any) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {app.state.token}"})


@schema.include(path_regex="^/v1/(tokens|jobs)").parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_answers_an_operator_as_its_document_says(case: Case, app: Any) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {app.state.operator}"})
