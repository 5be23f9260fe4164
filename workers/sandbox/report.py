"""From what a child reports about a candidate to the result that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pitchpipe.wire.measure import Candidate, CheckVerdict, Failed, FailureKind, Measurement, SampleRule, Timed
from tuner.measure.heartbeat import load_average
from tuner.measure.timing import CONFIDENCE, run_interval
from workers.sandbox.messages import complaint


def measured(
    candidate: Candidate,
    run_secs: Sequence[float],
    check: CheckVerdict,
    *,
    build_secs: float,
    ratio: float | None,
    clock_hz: float | None,
    **rule: Any,
) -> Measurement:
    """The time of a candidate, or the failure that what its child reported makes no sense.

    run_secs: seconds of one call, per sample. ratio: of the heartbeat beside it. rule: the fields of its SampleRule, but
    for the confidence.
    """
    try:
        taken = SampleRule(confidence=CONFIDENCE, **rule)
        low, high = run_interval(run_secs, taken.processes)
        return Timed(
            candidate=candidate.digest,
            run_secs=tuple(run_secs),
            secs_low=low,
            secs_high=high,
            rule=taken,
            check=check,
            build_secs=build_secs,
            load=load_average(),
            clock_hz=clock_hz,
            reference_ratio=ratio,
        )
    except ValueError as error:
        return failed(candidate, FailureKind.RUN_ERROR, f"the report makes no sense: {complaint(error)}")


def failed(candidate: Candidate, kind: FailureKind, detail: str) -> Failed:
    """With as much of the detail as a result may carry; what no text can hold is replaced."""
    return Failed(candidate=candidate.digest, kind=kind, detail=_text(detail[:4000]))


def last_line(error: BaseException) -> str:
    """The last line of a message, where TVM says what was wrong; what no text can hold is replaced."""
    lines = [text for text in str(error).strip().splitlines() if text.strip()]
    return f"{type(error).__name__}: {_text(lines[-1][:1000]) if lines else ''}"


def _text(words: str) -> str:
    """TVM's messages may quote bytes that are no text; as an error of ours they would end the whole batch."""
    return words.encode(errors="replace").decode()
