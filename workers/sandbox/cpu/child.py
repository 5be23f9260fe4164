"""The children of a CPU task process: confined forks of it (workers/sandbox/nursery.py).

    a candidate of a search          Applied; Waiting, with its program; then Sampled each time it is told to go, with the
                                     incumbent's seconds
    a builder of a confirming run    Applied; Compiled: the program is in its slot, as data
    a process of a confirming run    Waiting, with the program loaded; Warmed once it is told to go, then a Sample each time
                                     it is asked for one. One of the baseline is told the seconds of the fastest candidate,
                                     and sends Sampled in place of Warmed where it is far behind that

Instead of any of these a child sends Fault where it fails. Then it waits until it is ended.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind, MeasureConfig, Stop
from tuner.measure.build import apply
from tuner.measure.candidate import Bench, Measuring, Running, WrongOutput
from tuner.measure.machine_code import compile_program, load_program
from tuner.measure.placement import spread_threads
from tuner.measure.timing import far_behind
from workers.sandbox.builders import BuiltCandidate
from workers.sandbox.messages import Applied, ChildsKind, Compiled, Fault, Sample, Sampled, Waiting, Warmed
from workers.sandbox.nursery import Line
from workers.sandbox.report import last_line

GO, SAMPLE = b"g", b"s"
"""The bytes sent to a child: check and time now; take one more sample."""
_MOST_SENT_BYTES = 1 << 18
"""Of a program; those of kernels have tens of kilobytes."""
_RUN_SHARE = 0.8
"""Share of the run's time limit that sampling may use; the rest is for the checks after it."""


def candidate_body(bench: Bench, candidate: Candidate, config: MeasureConfig) -> Callable[[Line], None]:
    """The function of the child that builds, checks and times a candidate of a search."""

    def body(line: Line) -> None:
        with _reported(line):
            start = time.perf_counter()
            mod = _applied(bench, candidate, line)
            with _failing(FailureKind.BUILD_ERROR):
                data = compile_program(mod, bench.tvm_target)
                running = Running(bench, load_program(data))
                running.touch()
            # Before its code has run, which could change it.
            program = base64.b64encode(data) if len(data) <= _MOST_SENT_BYTES else b""
            line.send(Waiting(build_secs=time.perf_counter() - start, program=program))
            measuring = Measuring(bench, running)
            with _failing(FailureKind.RUN_ERROR):
                _, incumbent_secs = line.wait()
                spread_threads()
                while True:
                    sampled = measuring.search(config, _known(incumbent_secs), config.run_timeout_secs * _RUN_SHARE)
                    line.send(
                        Sampled(
                            run_secs=sampled.secs,
                            calls=sampled.calls,
                            stop=sampled.stop,
                            check=measuring.verdict(),
                            check_secs=measuring.check_secs,
                        )
                    )
                    _, incumbent_secs = line.wait()
        line.wait()

    return body


def builder_body(bench: Bench, candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
    """The function of a builder: it compiles a candidate of a confirming run and writes the program into `slot`."""

    def body(line: Line) -> None:
        with _reported(line):
            start = time.perf_counter()
            mod = _applied(bench, candidate, line)
            with _failing(FailureKind.BUILD_ERROR):
                data = compile_program(mod, bench.tvm_target)
                slot[: len(data)] = data
            line.send(Compiled(size_bytes=len(data), build_secs=time.perf_counter() - start))

    return body


def process_body(bench: Bench, built: BuiltCandidate, config: MeasureConfig, copy: int) -> Callable[[Line], None]:
    """The function of a process that times a candidate in a confirming run.

    copy: number of processes of the same candidate that were started before; only the first checks all input sets.
    """
    is_baseline = built.candidate.trace == BASELINE_TRACE

    def body(line: Line) -> None:
        with _reported(line):
            start = time.perf_counter()
            with _failing(FailureKind.BUILD_ERROR):
                running = Running(bench, load_program(built.program))
                running.touch()
            line.send(Waiting(build_secs=time.perf_counter() - start))
            measuring = Measuring(bench, running)
            with _failing(FailureKind.RUN_ERROR):
                _, fastest_secs = line.wait()
                spread_threads()
                sets = list(bench.reference_outputs)
                secs = measuring.check(sets[:1] if is_baseline or copy else sets)
                if far_behind(secs, running.own_secs, _known(fastest_secs)):
                    verdict = measuring.verdict()
                    line.send(Sampled(run_secs=(secs,), calls=1, stop=Stop.HOPELESS, check=verdict))
                else:
                    calls, secs = measuring.warm(config, secs)
                    line.send(Warmed(calls=calls, secs=secs, check=measuring.verdict()))
                    while line.wait()[0] == SAMPLE:
                        line.send(Sample(secs=measuring.warmed_sample(calls)))
        line.wait()

    return body


def _applied(bench: Bench, candidate: Candidate, line: Line) -> Any:
    """The module after the candidate's trace, which is reported."""
    with _failing(FailureKind.INVALID_SCHEDULE, InvalidTrace):
        mod = apply(bench.mod, candidate.trace)
    line.send(Applied())
    return mod


def _known(secs: float) -> float | None:
    return None if math.isnan(secs) else secs


class _Failed(Exception):
    def __init__(self, kind: ChildsKind, error: Exception) -> None:
        super().__init__(str(error))
        self.fault = Fault(kind=kind, detail=last_line(error))


@contextmanager
def _failing(kind: ChildsKind, error: type[Exception] = Exception) -> Iterator[None]:
    """Makes an error of this type the candidate's failure of that kind."""
    try:
        yield
    except WrongOutput as wrong:
        raise _Failed(FailureKind.WRONG_OUTPUT, wrong) from wrong
    except error as raised:
        raise _Failed(kind, raised) from raised


@contextmanager
def _reported(line: Line) -> Iterator[None]:
    try:
        yield
    except _Failed as failed:
        line.send(failed.fault)
