"""What a candidate's child does: apply the trace, build, wait for its turn, check, time, report.

Runs in a fork of a task process, confined (workers/nursery.py). Its line carries, in this order: `stage` building and
built; after one byte, `run_secs` and `check`, or in a confirming run `calls` and `check`, then `secs` for every further
byte. Instead of any of these: `failed`, a failure kind. Then it waits until it is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind, MeasureConfig
from tuner.measure.build import apply, build
from tuner.measure.candidate import Bench, Measuring, Running, WrongOutput, device_of
from workers.nursery import Line

GO, SAMPLE = b"g", b"s"
"""The bytes a child is told: take your turn; give one more sample."""
_RUN_SHARE = 0.8
"""Of the run limit that sampling may plan with; the rest is for the checks after it."""


def candidate_body(
    bench: Bench, candidate: Candidate, config: MeasureConfig, purpose: Purpose, incumbent_secs: float | None
) -> Callable[[Line], None]:
    """The function that a nursery runs for this candidate."""

    def body(line: Line) -> None:
        with _reported(line):
            start = time.perf_counter()
            try:
                mod = apply(bench.mod, candidate.trace)
            except InvalidTrace as error:
                raise _Fault(FailureKind.INVALID_SCHEDULE, error) from error
            line.send(stage="building")
            try:
                built = build(mod, bench.tvm_target)
                running = Running(bench, built, device_of(bench.target))
            except Exception as error:
                raise _Fault(FailureKind.BUILD_ERROR, error) from error
            line.send(stage="built", build_secs=time.perf_counter() - start)
            line.wait()
            measuring = Measuring(bench, running)
            try:
                if purpose is Purpose.CONFIRM:
                    untransformed = candidate.trace == BASELINE_TRACE and bench.target.kind == "llvm"
                    line.send(
                        calls=(calls := measuring.warm(config, untransformed=untransformed)),
                        check=measuring.verdict().model_dump(),
                    )
                    while line.wait() == SAMPLE:
                        line.send(secs=measuring.warmed_sample(calls))
                else:
                    limit_secs = config.run_timeout_secs * _RUN_SHARE
                    samples = measuring.search(config, incumbent_secs, limit_secs)
                    line.send(run_secs=samples, check=measuring.verdict().model_dump())
            except WrongOutput as error:
                raise _Fault(FailureKind.WRONG_OUTPUT, error) from error
            except Exception as error:
                raise _Fault(FailureKind.RUN_ERROR, error) from error
        line.wait()

    return body


class _Fault(Exception):
    def __init__(self, kind: FailureKind, error: Exception) -> None:
        super().__init__(str(error))
        self.kind, self.error = kind, error


@contextmanager
def _reported(line: Line) -> Iterator[None]:
    try:
        yield
    except _Fault as fault:
        line.send(failed=fault.kind.value, detail=last_line(fault.error))


def last_line(error: BaseException) -> str:
    """The last line of a message, where TVM says what was wrong."""
    lines = [text for text in str(error).strip().splitlines() if text.strip()]
    return f"{type(error).__name__}: {lines[-1][:1000] if lines else ''}"
