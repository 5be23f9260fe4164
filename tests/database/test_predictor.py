"""Versions of the cost model as the coordinator makes, judges and loses them, on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from pitchpipe.errors import IntegrityError
from pitchpipe.wire.cost_model import CostModelOrigin, CostModelState, CostModelView, TaskMarks
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.job import JobState
from pitchpipe.wire.measure import Candidate
from pitchpipe.wire.record import Best
from service.blobs import Blobs
from service.coordination import predictor as predictors
from service.coordination.predictor import REFIT_MIN_SAMPLES, SCORE_EVERY, ProjectPredictor
from service.db import Database
from service.store import coordination, cost_models, records
from service.tables import CostModelRow
from service.wake import Wake
from tests.database.test_coordinator import Steps
from tests.database.test_replay_jobs import World
from tests.scene import DEVICE, TOOLCHAIN, Scene, candidates, failed, record, timed
from tests.unit.test_cost_model import samples as made_up
from tuner.search.requests import Sample, TrainedModel

KIND = "llvm"
_NUMBERS = itertools.count(1000)


class AtOnce(Executor):
    """An executor that runs a step when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Registry:
    """A project's predictor with the registry behind it; steps end when the test says so, unless another executor is given."""

    def __init__(self, database: Database, executor: Executor | None = None, blobs: str = "memory:///") -> None:
        self.scene, self.steps, self.blobs = Scene(database), Steps(), Blobs(blobs)
        self.executor = executor or self.steps
        self.predictor = self.again()

    def again(self) -> ProjectPredictor:
        """That of a coordinator that has just started."""
        return ProjectPredictor(self.scene.project, KIND, self.scene.database, self.blobs, Wake(), self.executor)

    def train(self, data: bytes, marks: Sequence[TaskMarks] = (), **more: Any) -> bytes | None:
        """A training that ends with these bytes; what serves then."""
        self.begin()
        return self.end(data, marks, **more)

    def begin(self) -> None:
        self.predictor.observe(REFIT_MIN_SAMPLES)
        assert self.steps.given[-1][0] == "train"

    def end(self, data: bytes, marks: Sequence[TaskMarks] = (), **more: Any) -> bytes | None:
        trained = TrainedModel(data=data, judge=b"judge " + data, metrics={}, samples=1, marks=tuple(marks), **more)
        self.steps.given.pop()[1].set_result(trained)
        return self.predictor.latest()

    def score(self, marks: Sequence[TaskMarks]) -> bytes | None:
        """A scoring of the version in the shadow; what serves then."""
        self.scoring().set_result(tuple(marks))
        return self.predictor.latest()

    def scoring(self) -> Future[Any]:
        """One that has just begun."""
        self.predictor.observe(SCORE_EVERY)
        (future,) = [future for name, future in self.steps.given if name == "score" and not future.done()]
        return future

    def measure(self, given: Sequence[Sample]) -> None:
        """Adds records with these features and seconds, and lets the predictor know."""
        made = {Candidate.of(sample.workload, f"[[],[{next(_NUMBERS)}]]"): sample for sample in given}
        with self.scene.database.transaction() as session:
            found = [
                record(
                    candidate,
                    failed(candidate.digest) if sample.secs is None else timed(candidate.digest, sample.secs),
                    workload=sample.workload,
                )
                for candidate, sample in made.items()
            ]
            features = {candidate.digest: sample.features for candidate, sample in made.items()}
            records.add(session, self.scene.project, found, features)
        self.predictor.observe(len(given))
        self.predictor.step()

    def versions(self) -> list[CostModelView]:
        """Oldest first."""
        with self.scene.database.reading() as session:
            return cost_models.list_(session, self.scene.project, KIND, None, 100)[0][::-1]

    def states(self) -> list[CostModelState]:
        return [view.state for view in self.versions()]

    def promote(self, version: int) -> None:
        with self.scene.database.transaction() as session:
            cost_models.promote(session, self.scene.project, self.versions()[version - 1].id, "tok_me")


def marks(difference: float, tasks: int = 8) -> list[TaskMarks]:
    """Marks that are better than the rival's by this, on so many workloads."""
    of = {"pairwise": 0.5 + difference / 2, "rival_pairwise": 0.5 - difference / 2}
    return [TaskMarks(workload=sha256(str(n).encode()), candidates=8, peak_1=1, peak_5=1, **of) for n in range(tasks)]


def test_the_first_version_serves_and_the_next_only_once_it_is_not_worse(database: Database) -> None:
    registry = Registry(database)
    assert registry.train(b"one") == b"one"
    assert registry.train(b"two", marks(-0.2)) == b"one"
    assert registry.train(b"three", marks(0.2, tasks=7)) == b"one"
    assert registry.train(b"four", marks(0.2)) == b"four"
    state = CostModelState
    assert registry.states() == [state.REPLACED, state.REFUSED, state.SUPERSEDED, state.SERVING]
    told = registry.versions()
    assert [view.parent for view in told] == [None, 1, 1, 1]
    assert told[0].reason.startswith("version 4 replaced it: not worse than version 1 on 8 tasks (+0.200")
    assert told[1].reason.startswith("worse than version 1")
    assert registry.again().latest() == b"four"


def test_what_is_measured_next_decides_where_held_out_tasks_do_not(database: Database) -> None:
    registry = Registry(database)
    registry.train(b"one")
    registry.train(b"two", marks(0.2, tasks=3))
    assert "3 tasks were compared, 8 decide" in registry.versions()[1].reason
    assert registry.score(marks(0.2, tasks=2)) == b"one"
    shadow = registry.versions()[1].shadow
    assert shadow is not None
    assert shadow.tasks == 2
    assert registry.score(marks(0.2)) == b"two"
    assert registry.states() == [CostModelState.REPLACED, CostModelState.SERVING]


def test_a_version_in_the_shadow_that_is_worse_is_refused_and_keeps_its_marks(database: Database) -> None:
    registry = Registry(database)
    registry.train(b"one")
    registry.train(b"two")
    assert registry.score(marks(-0.2)) == b"one"
    (_, refused) = registry.versions()
    assert refused.state is CostModelState.REFUSED
    assert refused.shadow is not None
    registry.predictor.observe(SCORE_EVERY)
    begun = [name for name, future in registry.steps.given if not future.done()]
    assert "score" not in begun, "nothing is left in the shadow"


def test_a_users_choice_is_taken_up_and_no_marks_beside_another_count_against_it(database: Database) -> None:
    registry = Registry(database)
    registry.train(b"one")
    registry.train(b"two", marks(0.2))
    registry.begin()
    registry.promote(1)
    assert registry.predictor.latest() == b"one"
    assert registry.end(b"three", marks(0.2)) == b"one", "it was compared with version 2"
    scoring = registry.scoring()
    registry.promote(2)
    scoring.set_result(tuple(marks(0.2)))
    assert registry.predictor.latest() == b"two"
    assert registry.states()[2] is CostModelState.SHADOW


def test_what_comes_with_the_package_serves_an_empty_service(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictors, "packaged", lambda kind: f"packaged {kind}".encode())
    registry = Registry(database)
    assert registry.predictor.latest() == b"packaged llvm"
    assert registry.again().latest() == b"packaged llvm"
    (view,) = registry.versions()
    assert (view.origin, view.parent, view.samples) == (CostModelOrigin.PACKAGED, None, 0)
    assert registry.train(b"one", marks(0.2)) == b"one"
    assert registry.versions()[1].parent == 1
    monkeypatch.setattr(predictors, "packaged", lambda _kind: b"newer")
    assert registry.again().latest() == b"one"
    assert registry.states() == [CostModelState.REPLACED, CostModelState.SERVING, CostModelState.SHADOW]


def test_what_comes_with_the_package_and_cannot_be_read_is_done_without(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_kind: str) -> bytes:
        raise OSError("no such file")

    monkeypatch.setattr(predictors, "packaged", damaged)
    registry = Registry(database)
    assert registry.predictor.latest() is None
    assert registry.train(b"one") == b"one"


def test_a_rival_that_this_code_cannot_read_is_replaced(database: Database) -> None:
    registry = Registry(database)
    registry.train(b"one")
    assert registry.train(b"two", rival_refused=True) == b"two"
    assert "version 1 cannot be read" in registry.versions()[1].reason


@pytest.mark.long
def test_a_version_of_shuffled_seconds_gives_way_to_what_learned_from_them(database: Database) -> None:
    registry = Registry(database, AtOnce())
    given = made_up(each=30)
    order = np.random.default_rng(0).permutation(len(given))
    registry.measure([replace(sample, secs=given[i].secs) for sample, i in zip(given, order, strict=True)])
    ignorant = registry.predictor.latest()
    for seed in range(1, 9):
        registry.measure(made_up(each=30, seed=seed))
    served = registry.predictor.latest()
    assert ignorant is not None
    assert served not in (None, ignorant)
    first, *later = registry.versions()
    assert first.state is CostModelState.REPLACED
    assert first.data is not None
    assert (first.data.samples, first.data.tasks) == (150, 5)
    compared = [view for view in later if view.held_out.rival_pairwise is not None]
    assert compared
    assert any(view.shadow is not None and view.shadow.tasks for view in later)


def delete_blobs(registry_blobs: Path, _database: Database) -> None:
    for path in registry_blobs.rglob("*"):
        if path.is_file():
            path.unlink()


def corrupt_blobs(registry_blobs: Path, _database: Database) -> None:
    for path in registry_blobs.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\xff" + path.read_bytes()[1:])


def delete_rows(_blobs: Path, database: Database) -> None:
    with database.transaction() as session:
        session.execute(delete(CostModelRow))


DAMAGES = [delete_blobs, corrupt_blobs, delete_rows]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_registry_that_was_lost_is_begun_again(
    database: Database, tmp_path: Path, damage: Callable[[Path, Database], None]
) -> None:
    registry = Registry(database, blobs=f"file://{tmp_path}")
    registry.train(b"one")
    registry.train(b"two", marks(0.2))
    registry.train(b"three")
    damage(tmp_path, database)
    registry.predictor = registry.again()
    assert registry.predictor.latest() is None
    assert registry.train(b"four") == b"four"
    assert registry.versions()[-1].state is CostModelState.SERVING
    assert registry.again().latest() == b"four"


def tuned(database: Database, damage: Callable[[Database, Blobs], object]) -> tuple[bytes | None, Best]:
    """What a job's search was given as its cost model, and what is served when the job has ended."""
    with database.transaction() as session:
        coordination.vacate(session)
    world = World(database, DEVICE, TOOLCHAIN)
    blobs = world.coordinator.blobs
    with database.transaction() as session:
        for data in (b"one", b"two"):
            of = (session, world.scene.project, KIND)
            version = cost_models.add(*of, cost_models.NewVersion(digest=blobs.put(data)))
            cost_models.serve(*of, version, "a test says so")
    damage(database, blobs)
    job = world.submit(trials=4)
    model = world.steps.asked[-1].model
    world.propose(*candidates(0, 4))
    world.measure()
    world.measure()
    assert world.shown(job).state is JobState.DONE
    return model, world.served()


def test_losing_or_damaging_every_version_changes_no_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_database: Database, blobs: Blobs) -> None:
        good = blobs.get

        def get(digest: str) -> bytes:
            if digest in {sha256(b"one"), sha256(b"two")}:
                raise IntegrityError("damaged")
            return good(digest)

        monkeypatch.setattr(blobs, "get", get)

    model, answer = tuned(database, lambda *_: None)
    assert model == b"two"
    for damage in (unreadable, lambda at, _: delete_rows(Path(), at)):
        lost, same = tuned(database, damage)
        assert lost is None
        assert same.trace == answer.trace
        assert (same.secs, same.baseline_secs) == (answer.secs, answer.baseline_secs)
