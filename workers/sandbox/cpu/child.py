"""The child process of a candidate: applies the trace, builds, waits for its turn, checks, times, reports.

It is a confined fork of a task process (workers/sandbox/nursery.py). It sends, in this order: Applied; Waiting; Sampled each
time it is told to go, with the incumbent's seconds, or in a confirming run Warmed and then a Sample each time it is asked
for one. Instead of any of these it sends Fault where it fails. Then it waits until it is ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind, MeasureConfig
from tuner.measure.build import apply, build
from tuner.measure.candidate import Bench, Measuring, Running, WrongOutput
from tuner.measure.placement import spread_threads
from workers.sandbox.messages import Applied, ChildsKind, Fault, Sample, Sampled, Waiting, Warmed
from workers.sandbox.nursery import Line
from workers.sandbox.report import last_line

GO, SAMPLE = b"g", b"s"
"""The bytes sent to a child: check and time now; take one more sample."""
_RUN_SHARE = 0.8
"""Share of the run's time limit that sampling may use; the rest is for the checks after it."""


def candidate_body(
    bench: Bench, candidate: Candidate, config: MeasureConfig, purpose: Purpose, copy: int = 0
) -> Callable[[Line], None]:
    """The function that the child of a candidate runs.

    copy: number of children of the same candidate that were started before; only the first checks all input sets.
    """

    def body(line: Line) -> None:
        with _reported(line):
            start = time.perf_counter()
            try:
                mod = apply(bench.mod, candidate.trace)
            except InvalidTrace as error:
                raise _Failed(FailureKind.INVALID_SCHEDULE, error) from error
            line.send(Applied())
            try:
                built = build(mod, bench.tvm_target)
                running = Running(bench, built)
                running.touch()
            except Exception as error:
                raise _Failed(FailureKind.BUILD_ERROR, error) from error
            line.send(Waiting(build_secs=time.perf_counter() - start))
            measuring = Measuring(bench, running)
            try:
                _, incumbent_secs = line.wait()
                spread_threads()
                if purpose is Purpose.CONFIRM:
                    is_baseline = candidate.trace == BASELINE_TRACE
                    calls = measuring.warm(config, one_set=is_baseline or copy > 0)
                    line.send(Warmed(calls=calls, check=measuring.verdict()))
                    while line.wait()[0] == SAMPLE:
                        line.send(Sample(secs=measuring.warmed_sample(calls)))
                while True:
                    sampled = measuring.search(
                        config,
                        None if math.isnan(incumbent_secs) else incumbent_secs,
                        config.run_timeout_secs * _RUN_SHARE,
                    )
                    verdict = measuring.verdict()
                    line.send(Sampled(run_secs=sampled.secs, calls=sampled.calls, stop=sampled.stop, check=verdict))
                    _, incumbent_secs = line.wait()
            except WrongOutput as error:
                raise _Failed(FailureKind.WRONG_OUTPUT, error) from error
            except Exception as error:
                raise _Failed(FailureKind.RUN_ERROR, error) from error
        line.wait()

    return body


class _Failed(Exception):
    def __init__(self, kind: ChildsKind, error: Exception) -> None:
        super().__init__(str(error))
        self.fault = Fault(kind=kind, detail=last_line(error))


@contextmanager
def _reported(line: Line) -> Iterator[None]:
    try:
        yield
    except _Failed as failed:
        line.send(failed.fault)
