"""The registry of cost models, on both databases: versions, what replaces what, promoted and rolled back by users."""

from __future__ import annotations

import pytest

from pitchpipe.errors import InvalidTransition, NotFound
from pitchpipe.wire.cost_model import CostModelState, CostModelView, TaskMarks
from pitchpipe.wire.ids import sha256
from service.db import Database
from service.store import cost_models
from service.store.cost_models import NewVersion
from tests.scene import Scene

KIND = "llvm"


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


def add(scene: Scene, *, serve: bool = False, kind: str = KIND) -> int:
    with scene.database.transaction() as session:
        of = (session, scene.project, kind)
        version = cost_models.add(*of, NewVersion(digest=sha256(b"model"), metrics={"held_out_tasks": 2.0}))
        if serve:
            cost_models.serve(*of, version, "a test says so")
    return version


def versions(scene: Scene, kind: str | None = None) -> dict[int, CostModelView]:
    with scene.database.reading() as session:
        return {view.version: view for view in cost_models.list_(session, scene.project, kind, None, 100)[0]}


def states(scene: Scene) -> list[CostModelState]:
    """Of version 1 on."""
    found = versions(scene, KIND)
    return [found[version].state for version in sorted(found)]


def promote(scene: Scene, version: int) -> None:
    with scene.database.transaction() as session:
        cost_models.promote(session, scene.project, versions(scene)[version].id, "tok_me")


def roll_back(scene: Scene, version: int) -> None:
    with scene.database.transaction() as session:
        cost_models.roll_back(session, scene.project, versions(scene)[version].id, "tok_me")


def test_versions_count_up_per_project_and_kind_of_target(scene: Scene) -> None:
    assert [add(scene), add(scene), add(scene, kind="cuda")] == [1, 2, 1]
    assert add(Scene(scene.database)) == 1
    assert {view.target_kind for view in versions(scene, "cuda").values()} == {"cuda"}


def test_one_version_serves_and_one_is_in_the_shadow(scene: Scene) -> None:
    for serve in (True, True, False, False):
        add(scene, serve=serve)
    named = CostModelState
    assert states(scene) == [named.REPLACED, named.SERVING, named.SUPERSEDED, named.SHADOW]
    assert "version 2 replaced it" in versions(scene)[1].reason
    assert "version 4 came" in versions(scene)[3].reason
    with scene.database.reading() as session:
        serving = cost_models.serving(session, scene.project, KIND)
        shadow = cost_models.in_shadow(session, scene.project, KIND)
    assert serving is not None
    assert shadow is not None
    assert (serving.version, shadow.version) == (2, 4)


def test_one_that_is_refused_leaves_the_shadow_and_can_still_be_promoted(scene: Scene) -> None:
    add(scene, serve=True)
    add(scene)
    with scene.database.transaction() as session:
        cost_models.refuse(session, scene.project, KIND, 2, "worse")
        cost_models.refuse(session, scene.project, KIND, 1, "it serves, so nothing happens")
    assert states(scene) == [CostModelState.SERVING, CostModelState.REFUSED]
    promote(scene, 2)
    promote(scene, 2)
    assert states(scene) == [CostModelState.REPLACED, CostModelState.SERVING]
    with scene.database.reading() as session:
        changes = cost_models.get(session, scene.project, versions(scene)[2].id).changes
    assert [(change.version, change.replaced, change.by) for change in changes] == [(2, 1, "tok_me"), (1, None, None)]


def test_a_rollback_goes_further_back_each_time(scene: Scene) -> None:
    for _ in range(3):
        add(scene, serve=True)
    roll_back(scene, 3)
    with pytest.raises(InvalidTransition, match="does not serve"):
        roll_back(scene, 3)
    roll_back(scene, 2)
    assert states(scene) == [CostModelState.SERVING, CostModelState.REPLACED, CostModelState.REPLACED]
    with pytest.raises(InvalidTransition, match="replaced none"):
        roll_back(scene, 1)
    promote(scene, 3)
    roll_back(scene, 3)
    assert states(scene)[0] is CostModelState.SERVING


def test_marks_come_back_as_they_were_kept(scene: Scene) -> None:
    marks = [
        TaskMarks(workload=sha256(b"w"), candidates=8, pairwise=p, peak_1=1, peak_5=1, rival_pairwise=rival, points=())
        for p, rival in ((0.5, 0.25), (1.0, None))
    ]
    add(scene)
    with scene.database.transaction() as session:
        cost_models.mark(session, scene.project, KIND, 1, marks)
    view = versions(scene)[1]
    assert view.shadow is not None
    assert (view.shadow.tasks, view.shadow.pairwise, view.shadow.rival_pairwise) == (2, 0.75, 0.25)
    with scene.database.reading() as session:
        assert cost_models.get(session, scene.project, view.id).shadow_tasks == tuple(marks)


def test_another_projects_versions_are_absent(scene: Scene) -> None:
    add(scene, serve=True)
    other, mine = Scene(scene.database), versions(scene)[1].id
    with scene.database.transaction() as session:
        for call in (
            cost_models.get,
            lambda *of: cost_models.promote(*of, "tok"),
            lambda *of: cost_models.roll_back(*of, "t"),
        ):
            with pytest.raises(NotFound):
                call(session, other.project, mine)
