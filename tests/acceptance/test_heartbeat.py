"""What a disturbed device does to a batch: timed again, and told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, MeasureConfig, Stop, Timed
from tests.compiler.programs import TARGET, dense
from tests.hostile import harmless, program
from tuner.measure.drift import DRIFTED
from workers.batch_run import MAX_REPEATS
from workers.sandbox import Sandbox

CONFIG = MeasureConfig(max_secs=0.02, target_sample_secs=5e-4)


@contextmanager
def other_load() -> Iterator[None]:
    """Six processes that compute on every core while the block runs."""
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * len(os.sched_getaffinity(0)))
    ]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_a_batch_beside_another_load_is_repeated_and_marked_until_the_device_is_quiet_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
    workload = program("2")
    candidates = harmless(workload)
    with Sandbox(TARGET) as sandbox:
        assert sandbox.steadiness is None
        for _ in range(3):
            before = list(sandbox.measure(workload, candidates, CONFIG))
        assert all(isinstance(result, Timed) for result in before)
        usual = sandbox.steadiness
        assert usual is not None
        with other_load():
            disturbed = list(sandbox.measure(workload, candidates, CONFIG))
        noisy = sandbox.steadiness
        assert noisy is not None
        assert noisy.noisy
        assert noisy.repeated - usual.repeated == MAX_REPEATS
        for result in disturbed:
            assert isinstance(result, Timed)
            assert result.reference_ratio is not None
            assert result.reference_ratio > DRIFTED
        list(sandbox.measure(workload, candidates, CONFIG))
        after = sandbox.steadiness
        assert after is not None
        assert after.ratio < noisy.ratio


def test_a_time_tells_how_it_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PITCHPIPE_QUIET_LOCK", str(tmp_path / "lock"))
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
