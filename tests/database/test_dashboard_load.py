"""The database of benchmarks/dashboard_load.py: it can be made, and every page that the benchmark times is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pitchpipe.wire.job import Scope, TokenRequest
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import tokens
from service.wake import Wake

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    import dashboard_load
    import dashboard_store
finally:
    sys.path.remove(str(FOLDER))


def test_the_benchmarks_database_has_every_page_that_it_times(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("JOBS", 6), ("RUNNING", 2), ("MODELS", 2), ("VERSIONS", 3)):
        monkeypatch.setattr(dashboard_store, name, few)
    monkeypatch.setattr("service.http.pages.programs.has_compiler", lambda: False)
    of = dashboard_store.fill(postgres_url, 2000)
    database = Database(postgres_url)
    with database.transaction() as session:
        text = tokens.create(session, TokenRequest(project="default", scope=Scope.USER)).token
    settings = Settings(database_url=postgres_url, blob_url="memory:///")
    browser = TestClient(create_app(settings, database, Blobs("memory:///"), Wake()))
    browser.post("/sign-in", data={"token": text})
    for path in dashboard_load.paths(of).values():
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "</html>" in answer.text
    assert 'hx-sse:connect="' in browser.get(f"/jobs/{of.job}").text
    database.close()
