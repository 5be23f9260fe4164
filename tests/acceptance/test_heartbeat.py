"""What a disturbed device does to a batch: timed again, and told. And where the seconds of a sandbox went."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, MeasureConfig, Stop, Timed
from tests.compiler.programs import TARGET, dense
from tests.fleet import until
from tests.hostile import harmless, program
from tuner.measure import quiet
from tuner.measure.drift import DRIFTED, REMEMBERED, Drift
from workers.sandbox.cpu.batch import MAX_REPEATS
from workers.sandbox.sandbox import Sandbox

CONFIG = MeasureConfig(max_secs=0.02, target_sample_secs=5e-4)


def usually(secs: float) -> Drift:
    """What a device remembers on which the reference has always taken so many seconds."""
    drift = Drift()
    for _ in range(REMEMBERED):
        drift.observe(secs)
    return drift


@pytest.mark.long
def test_a_batch_on_a_device_that_is_slower_than_usual_is_repeated_and_marked_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device may be quiet or busy: what is usual is set, far from what any load makes of a beat."""
    workload = program("2")
    candidates = harmless(workload)
    with Sandbox(TARGET) as sandbox:
        assert sandbox.steadiness is None
        assert all(isinstance(result, Timed) for result in sandbox.measure(workload, candidates, CONFIG))
        first = sandbox.steadiness
        assert first is not None
        for usual_secs, is_noisy in ((first.reference_secs / 1000, True), (first.reference_secs * 1000, False)):
            monkeypatch.setattr(sandbox, "_drift", usually(usual_secs))
            before = sandbox.steadiness
            results = list(sandbox.measure(workload, candidates, CONFIG))
            after = sandbox.steadiness
            assert before is not None
            assert after is not None
            assert after.noisy == is_noisy
            assert (after.repeated - before.repeated == MAX_REPEATS) == is_noisy
            for result in results:
                assert isinstance(result, Timed)
                assert result.reference_ratio is not None
                assert (result.reference_ratio > DRIFTED) == is_noisy


def test_a_time_tells_how_it_was_taken() -> None:
    workload = dense()
    with Sandbox(TARGET) as sandbox:
        (result,) = sandbox.measure(workload, [Candidate.of(workload.digest, BASELINE_TRACE)], CONFIG)
    assert isinstance(result, Timed)
    assert result.rule is not None
    assert result.rule.stop in set(Stop)
    assert result.rule.calls >= 1
    assert result.secs_low is not None
    assert result.secs_high is not None
    assert result.secs_low <= result.secs <= result.secs_high
    assert result.load is not None
    assert result.reference_ratio is not None


def test_a_sandbox_tells_where_its_seconds_went(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(quiet.ENVIRONMENT, str(tmp_path / "lock"))
    workload = dense()
    others = ExitStack()

    def leave() -> None:
        with others:
            until(quiet.awaited)

    with Sandbox(TARGET) as sandbox:
        for _ in sandbox.measure(workload, [Candidate.of(workload.digest, BASELINE_TRACE)], CONFIG):
            alone = sandbox.seconds
        assert min(alone.prepare_secs, alone.build_secs) > 0
        others.enter_context(quiet.computing())
        leaving = threading.Thread(target=leave)
        leaving.start()
        list(sandbox.measure(workload, [Candidate.of(workload.digest, BASELINE_TRACE)], CONFIG))
        found = sandbox.seconds
        leaving.join()
    assert min(found.check_secs, found.time_secs) > 0
    assert found.wait_secs > alone.wait_secs
    assert found.prepare_secs == alone.prepare_secs
    parts = found.model_dump(exclude={"total_secs"}).values()
    assert sum(parts) <= found.total_secs
