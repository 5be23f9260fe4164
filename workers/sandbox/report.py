"""From a child's report about a candidate to the result that is sent to the service."""

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
    """A Timed, or a Failed where the report does not make one.

    run_secs: seconds of one call, per sample. ratio: of the beat beside it to the usual one. rule: the fields of its
    SampleRule except the confidence.
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
    """A Failed with as much of the detail as it may have; characters that cannot be encoded are replaced."""
    return Failed(candidate=candidate.digest, kind=kind, detail=_text(detail[:4000]))


def last_line(error: BaseException) -> str:
    """The last line of an error's message, where TVM states the cause; characters that cannot be encoded are replaced."""
    lines = [text for text in str(error).strip().splitlines() if text.strip()]
    return f"{type(error).__name__}: {_text(lines[-1][:1000]) if lines else ''}"


def _text(words: str) -> str:
    """Replaces characters that cannot be encoded: TVM's messages may quote arbitrary bytes, and an encoding error would end
    the whole batch."""
    return words.encode(errors="replace").decode()
