"""Which records a lock file may name: of this project and workload, confirmed once, for what the asking device has."""

from __future__ import annotations

import pytest

from pitchpipe.wire.ids import new_id, sha256
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.pin import Pin, PinnedSchedule, PinRequest
from pitchpipe.wire.record import TuningRecord
from pitchpipe.wire.target import Target
from service.db import Database
from service.store import pins, records
from tests.scene import OTHER_TARGET, TARGET, WORKLOAD, Scene, best, candidates, record, timed


@pytest.fixture
def scene(database: Database) -> Scene:
    return Scene(database)


def resolved(
    scene: Scene, record_id: str, *, target: Target = TARGET, workload: str = WORKLOAD.digest
) -> PinnedSchedule:
    request = PinRequest(target=target, pins=(Pin(workload=workload, record=record_id),))
    with scene.database.reading() as session:
        (answer,) = pins.resolve(session, scene.project, request).schedules
    assert (answer.trace is None) == bool(answer.reason)
    return answer


def measured(scene: Scene, purpose: Purpose, n: int) -> TuningRecord:
    """Candidate number `n`, reported by a worker."""
    (candidate,) = candidates(n, n + 1)
    scene.issue([candidate], purpose)
    scene.report(scene.granted(), [timed(candidate.digest)], final=True)
    with scene.database.reading() as session:
        return records.list_(session, scene.project)[0][0]


def serve(scene: Scene, *made: TuningRecord) -> None:
    with scene.database.transaction() as session:
        records.add(session, scene.project, made)
        for each in made:
            records.set_best(session, scene.project, each.workload, each.target, best(each))


def test_a_confirmed_record_resolves_also_when_something_took_its_place(scene: Scene) -> None:
    first, second = (measured(scene, Purpose.CONFIRM, n) for n in (0, 1))
    serve(scene, first)
    answer = resolved(scene, first.id)
    assert (answer.trace, answer.secs, answer.served) == (first.trace, 1e-3, True)
    serve(scene, second)
    answer = resolved(scene, first.id)
    assert (answer.trace, answer.served) == (first.trace, False)


def test_a_record_for_less_than_the_asking_device_has_resolves(scene: Scene) -> None:
    serve(scene, made := record(candidates(0, 1)[0], target=TARGET))
    assert resolved(scene, made.id, target=TARGET.model_copy(update={"mcpu": "znver5"})).trace == made.trace


def test_what_may_not_be_run_is_refused_with_the_reason(scene: Scene) -> None:
    searched = measured(scene, Purpose.SEARCH, 0)
    assert "never confirmed" in resolved(scene, searched.id).reason
    serve(scene, made := record(candidates(1, 2)[0]))
    assert "no such record" in resolved(scene, new_id("rec")).reason
    assert "another workload" in resolved(scene, made.id, workload=sha256(b"other")).reason
    assert "does not run on" in resolved(scene, made.id, target=OTHER_TARGET).reason
    assert "lacks" in resolved(scene, made.id, target=TARGET.model_copy(update={"mcpu": "haswell"})).reason
    assert "no such record" in resolved(Scene(scene.database), made.id).reason, "another project's"
