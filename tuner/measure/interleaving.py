"""The samples of a confirming run, and which candidates need more of them: pure decisions.

A round takes one sample of every process of each candidate that is still going. A candidate is going until it has enough
samples (`confirmed` in tuner/measure/timing.py), or until more of them could not change the verdict:

    a candidate whose interval lies above OUTCLASSED times that of the fastest cannot be the winner
    a baseline whose interval lies above BEATEN times that of the fastest has lost, however its memory lies

Both are asked after rounds of all processes only; of a baseline whose calls are long also before the first one, since the
calls that its processes made while they were warming up are as good as samples then. Neither touches two programs of about
the same speed, so how often a program beats itself stays what `run_interval` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pitchpipe.wire.measure import MeasureConfig
from tuner.measure.timing import HICCUP_SECS, confirmed, run_interval

OUTCLASSED = 1.1
"""Twice the difference that the placement of memory makes for one process in five (run_interval) would be 1.18; here all
processes of the slower one would have to be the unlucky ones, and those of the faster the lucky ones."""
OUTCLASSED_SAMPLES_EACH = 2
"""Samples of each process before a candidate can be outclassed: six of three processes, whose interval is their range."""
BEATEN = 4.0
"""Placement, a shared core and other tenants together were never seen to make a program as slow in three processes."""


@dataclass(kw_only=True)
class _Side:
    calls: int
    warm_secs: Sequence[float]
    baseline: bool
    round: dict[int, float] = field(default_factory=dict)


class Interleaving:
    """One confirming run. `samples` has those of each candidate in the order taken: sample i is of process i modulo its
    processes."""

    def __init__(self, config: MeasureConfig) -> None:
        self._config = config
        self._sides: dict[str, _Side] = {}
        self.samples: dict[str, list[float]] = {}
        self.going: set[str] = set()

    def add(self, digest: str, *, calls: int, warm_secs: Sequence[float], baseline: bool) -> None:
        """A candidate.

        calls: of a sample. warm_secs: seconds of a call while it was warming up, of each of its processes.
        """
        self._sides[digest] = _Side(calls=calls, warm_secs=warm_secs, baseline=baseline)
        self.samples[digest] = []
        self.going.add(digest)

    def begin(self) -> None:
        """To be called before the first round, when all candidates were added."""
        fastest_secs = min((max(side.warm_secs) for side in self._sides.values() if not side.baseline), default=0.0)
        for digest, side in self._sides.items():
            long = side.baseline and fastest_secs and min(side.warm_secs) > HICCUP_SECS
            if long and run_interval(side.warm_secs, len(side.warm_secs))[0] > BEATEN * fastest_secs:
                self.samples[digest] = list(side.warm_secs)
                self.going.discard(digest)

    def take(self, digest: str, process: int, secs: float) -> None:
        """A sample of this round, as seconds of one call."""
        self._sides[digest].round[process] = secs

    def drop(self, digest: str) -> None:
        """The candidate failed: it has no samples."""
        self.going.discard(digest)
        self.samples.pop(digest, None)

    def settle(self) -> None:
        """Ends a round: stores its samples, and decides who goes on."""
        for digest in self.going:
            side = self._sides[digest]
            self.samples[digest] += [side.round[process] for process in range(len(side.warm_secs))]
            side.round.clear()
        intervals = {
            digest: run_interval(secs, len(self._sides[digest].warm_secs))
            for digest, secs in self.samples.items()
            if secs
        }
        fastest_secs = min((high for _, high in intervals.values()), default=0.0)
        self.going -= {digest for digest in self.going if self._done(digest, intervals[digest][0], fastest_secs)}

    def _done(self, digest: str, low_secs: float, fastest_secs: float) -> bool:
        side, samples = self._sides[digest], self.samples[digest]
        processes = len(side.warm_secs)
        if confirmed(samples, side.calls, self._config, processes):
            return True
        if side.baseline:
            return low_secs > BEATEN * fastest_secs
        return len(samples) >= OUTCLASSED_SAMPLES_EACH * processes and low_secs > OUTCLASSED * fastest_secs
