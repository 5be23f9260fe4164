"""`pitchpipe cost-models` and its routes, over a real store in process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from pitchpipe.cli import cost_model_commands
from pitchpipe.cli.main import app as commands
from pitchpipe.client import Client
from pitchpipe.errors import Forbidden, InvalidTransition, NotFound
from pitchpipe.wire.cost_model import CostModelState, TaskMarks
from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.job import Scope, TokenRequest
from service.blobs import Blobs
from service.db import Database
from service.http.app import create_app
from service.settings import Settings
from service.store import cost_models, tokens
from service.store.cost_models import NewVersion
from service.wake import Wake
from tests.scene import Scene

MARKS = TaskMarks(workload=sha256(b"w"), candidates=9, pairwise=0.75, peak_1=0.5, peak_5=1, rival_pairwise=0.625)


class Service:
    """An app with a project that has two versions for CPUs, of which the second serves, and one for GPUs."""

    def __init__(self, database: Database) -> None:
        self.scene = Scene(database)
        self.app = create_app(Settings(blob_url="memory:///"), database, Blobs("memory:///"), Wake())
        with database.transaction() as session:
            for kind in ("llvm", "llvm", "cuda"):
                of = (session, self.scene.project, kind)
                version = cost_models.add(*of, NewVersion(digest=sha256(b"model"), samples=7, held_out=[MARKS]))
                cost_models.mark(*of, version, [MARKS])
                cost_models.serve(*of, version, "a test says so")
            self.tokens = {
                scope: tokens.create(session, TokenRequest(project=self.scene.name, scope=scope)).token
                for scope in (Scope.USER, Scope.WORKER)
            }

    def client(self, scope: Scope = Scope.USER) -> Client:
        transport = TestClient(self.app)._transport
        return Client("http://testserver", self.tokens[scope], transport=transport, retry_secs=0)


@pytest.fixture
def service(database: Database) -> Service:
    return Service(database)


@pytest.fixture
def run(service: Service, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command against the service: its output."""
    monkeypatch.setattr(cost_model_commands, "client_of", lambda *_: service.client())

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(commands, ["cost-models", *arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return run


def test_versions_are_listed_newest_first_of_all_kinds_or_of_one(service: Service, run: Any) -> None:
    with service.client() as client:
        assert [(view.target_kind, view.version) for view in client.cost_models()] == [
            ("cuda", 1),
            ("llvm", 2),
            ("llvm", 1),
        ]
    listed = json.loads(run("list", "--kind", "llvm", "--json"))
    assert [view["state"] for view in listed] == ["serving", "replaced"]
    assert len(json.loads(run("list", "--limit", "1", "--json"))) == 1
    table = run("list")
    assert "0.750, rival 0.625 (1 tasks)" in table
    assert "version 2 replaced it" in table


def test_a_version_is_shown_with_its_tasks_and_what_replaced_what(service: Service, run: Any) -> None:
    with service.client() as client:
        serving = next(view.id for view in client.cost_models("llvm"))
        found = client.cost_model(serving)
    assert found.held_out_tasks == found.shadow_tasks == (MARKS,)
    assert [(change.version, change.replaced) for change in found.changes] == [(2, 1), (1, None)]
    shown = run("show", serving)
    for told in ("serving: a test says so", MARKS.workload[:16], "0.625", "the rule"):
        assert told in shown
    assert json.loads(run("show", serving, "--json"))["id"] == serving


def test_versions_are_rolled_back_and_promoted(service: Service, run: Any) -> None:
    with service.client() as client:
        serving, earlier = (view.id for view in client.cost_models("llvm"))
        assert "version 1 for llvm is serving" in run("rollback", serving)
        with pytest.raises(InvalidTransition, match="does not serve"):
            client.roll_back_cost_model(serving)
        assert client.promote_cost_model(serving).state is CostModelState.SERVING
        assert "version 1 for llvm is serving" in run("promote", earlier)
        changes = client.cost_model(earlier).changes
        assert [change.version for change in changes] == [1, 2, 1, 2, 1]
        assert [change.by is None for change in changes] == [False] * 3 + [True] * 2


def test_a_version_of_nobody_or_of_others_is_absent_and_a_worker_sees_none(service: Service) -> None:
    with service.client() as client, service.client(Scope.WORKER) as worker:
        for call in (client.cost_model, client.promote_cost_model, client.roll_back_cost_model):
            with pytest.raises(NotFound):
                call(new_id("cm"))
        with pytest.raises(Forbidden):
            list(worker.cost_models())
