"""From what a child reports about a candidate to the result that is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pitchpipe.wire.measure import Candidate, Failed, FailureKind, Measurement, SampleRule, Timed
from tuner.measure.heartbeat import load_average
from tuner.measure.timing import CONFIDENCE, run_interval


def measured(
    candidate: Candidate, report: Mapping[str, Any], ratio: float | None, clock_hz: float | None, **rule: Any
) -> Measurement:
    """The time that the report tells, or the failure that it makes no sense; `rule` completes its SampleRule, `ratio` is
    of the heartbeat beside it."""
    try:
        samples = tuple(float(secs) for secs in report["run_secs"])
        taken = SampleRule(stop=report["stop"], calls=report["calls"], confidence=CONFIDENCE, **rule)
        low, high = run_interval(samples, taken.processes)
        return Timed(
            candidate=candidate.digest,
            run_secs=samples,
            secs_low=low,
            secs_high=high,
            rule=taken,
            check=report["check"],
            build_secs=report["build_secs"],
            load=load_average(),
            clock_hz=clock_hz,
            reference_ratio=ratio,
        )
    except (ValueError, KeyError, TypeError) as error:
        return failed(candidate, FailureKind.RUN_ERROR, f"the report makes no sense: {last_line(error)}")


def failed(candidate: Candidate, kind: FailureKind, detail: str) -> Failed:
    """With as much of the detail as a result may carry; what no text can hold, a child may have written, is replaced."""
    return Failed(candidate=candidate.digest, kind=kind, detail=detail[:4000].encode(errors="replace").decode())


def kind_of(report: Mapping[str, Any]) -> FailureKind:
    """The failure kind that a child's report names."""
    try:
        return FailureKind(report["failed"])
    except ValueError:
        return FailureKind.RUN_ERROR


def last_line(error: BaseException) -> str:
    """The last line of a message, where TVM says what was wrong."""
    lines = [text for text in str(error).strip().splitlines() if text.strip()]
    return f"{type(error).__name__}: {lines[-1][:1000] if lines else ''}"
