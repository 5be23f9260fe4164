"""Whether what earlier jobs found under other circumstances (toolchain, driver, device class) still holds under these.

The fastest few of it are a task's first batch; a confirming run right after that has the word. If the verdict is as good as
the earlier one was, the effort that was spent then counts as spent now, and the task is not searched again.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pitchpipe.wire.job import Replay
from pitchpipe.wire.measure import FailureKind
from pitchpipe.wire.record import Best
from pitchpipe.wire.task import Task

KEEPS = 0.9
"""Share of its speed-up over the baseline that a schedule must keep. Confirming runs of one device differ by a few per cent
from one day to another (benchmarks/agreement.py); a search is not worth its cost for less than twice that."""


class ReplayStage(StrEnum):
    """How far the replay of a task has come: due -> measuring -> measured -> confirming, and then it is none."""

    DUE = "due"
    MEASURING = "measuring"
    """Its batch is out."""
    MEASURED = "measured"
    """... and came back; the confirming run is next."""
    CONFIRMING = "confirming"


def outcome(task: Task, earlier: Best | None, best: Best | None, failures: Iterable[FailureKind | None]) -> Replay:
    """What became of what was found earlier. `earlier` was served then, `best` is the confirming run's verdict (None: it
    came to none), `failures` tell how the replayed candidates ended (None: with a time)."""
    ended = list(failures)
    if best is None:
        return Replay.UNDECIDED
    if earlier is not None and (earlier.trace == best.trace or best.record is None is earlier.record):
        return Replay.KEPT
    if best.record is not None and best.trace != task.baseline:
        return Replay.CHANGED
    return Replay.FAILED if ended and None not in ended else Replay.LOST


def still_holds(earlier: Best | None, best: Best | None, failures: Iterable[FailureKind | None]) -> bool:
    """Whether the verdict is as good as the earlier one, so that what was spent on that counts as spent on this.

    It is where the winner keeps KEEPS of the earlier speed-up over the baseline, or on the same device class of the earlier
    speed (the baseline itself may have become faster); or where the baseline had won then and nothing has become worse. It
    never is after a candidate that had passed its check computed something else: then code is made differently now, and
    what the search had rejected for that, or never tried, may be the best.
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
