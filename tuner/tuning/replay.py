"""Whether what earlier jobs found under other circumstances (toolchain, driver, device class) still holds under these.

The fastest schedules from other circumstances are a task's first batch, which a confirming run follows at once. If its
verdict is as good as the earlier one, the effort of the earlier job counts for this one, and the task is not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from pitchpipe.wire.job import Replay
from pitchpipe.wire.measure import FailureKind
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task
from tuner.search.requests import Proposal

KEEPS = 0.9
"""Share of its speed-up over the baseline that a schedule must keep. Confirming runs of one device differ by a few per cent
from one day to another (benchmarks/agreement.py); a search is not worth its cost for less than twice that."""


class ReplayStage(StrEnum):
    """The stage of a task's replay: due -> measuring -> measured -> confirming; after that the replay is over."""

    DUE = "due"
    MEASURING = "measuring"
    """Its batch is being measured."""
    MEASURED = "measured"
    """Its batch has ended; the confirming run is next."""
    CONFIRMING = "confirming"


def outcome(task: Task, earlier: Best | None, best: Best | None, failures: Iterable[FailureKind | None]) -> Replay:
    """The outcome of a task's replay.

    earlier: what was served under the other circumstances.
    best: the verdict of the confirming run; None where it decided nothing.
    failures: how each of the replayed candidates failed; None for one that was timed.
    """
    ended = list(failures)
    if best is None:
        return Replay.UNDECIDED
    if earlier is not None and (earlier.trace == best.trace or best.record is None is earlier.record):
        return Replay.KEPT
    if best.record is not None and best.trace != task.baseline:
        return Replay.CHANGED
    return Replay.FAILED if ended and None not in ended else Replay.LOST


def still_holds(earlier: Best | None, best: Best | None, failures: Iterable[FailureKind | None]) -> bool:
    """Whether the verdict is as good as the earlier one, so that the effort spent on that counts for this one.

    It is as good where the winner keeps the share KEEPS of the earlier speed-up over the baseline; on the same device class
    also where it keeps that share of the earlier speed, as the baseline may have become faster; and where the baseline had
    won earlier. It is never as good when a candidate that had passed its check now gives wrong output: then the generated
    code has changed, and a schedule that the earlier search had rejected or not tried may be the best now.
    """
    if earlier is None or best is None or FailureKind.WRONG_OUTPUT in failures:
        return False
    if earlier.record is None:
        return True
    if best.record is None:
        return False
    if earlier.device_class == best.device_class and best.secs * KEEPS <= earlier.secs:
        return True
    if best.baseline_secs is None:
        return True
    if earlier.baseline_secs is None:
        return False
    return best.baseline_secs / best.secs >= KEEPS * earlier.baseline_secs / earlier.secs


class Replays(Protocol):
    """Schedules that were found under other circumstances than those of the job's workers."""

    def unreplayed(self, task: int, n: int) -> Sequence[Proposal]:
        """At most `n` of the task's candidates that were not measured here: what was served first, then the fastest."""

    def confirmed(self, task: int, best: Best | None) -> bool:
        """Records the verdict on the replay (None: it decided nothing). Whether the task then needs no search."""


class NoReplays:
    """For a job without schedules from other circumstances."""

    def unreplayed(self, task: int, n: int) -> Sequence[Proposal]:  # noqa: ARG002
        """None."""
        return ()

    def confirmed(self, task: int, best: Best | None) -> bool:  # noqa: ARG002
        """Is not asked."""
        return False
