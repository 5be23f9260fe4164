"""What a search and the training of a cost model are asked, and what they answer: plain values, no compiler."""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.measure import Candidate
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload


@dataclass(frozen=True, kw_only=True)
class Donor:
    """A schedule of another workload, to be re-fitted (tuner/search/transfer.py)."""

    workload: str
    """Digest of the workload that it is served for."""
    trace: str


@dataclass(frozen=True, kw_only=True)
class ProposeRequest:
    """Everything a search round depends on: the same request always gives the same proposals."""

    workload: Workload
    target: Target
    measured: tuple[tuple[str, float | None], ...]
    """(trace, median seconds; None for a failure) of what was measured before."""
    seen: frozenset[str]
    """Digests of all candidates ever issued for the workload and target; none of them is proposed again."""
    model: bytes | None
    """A serialised cost model, or None: scores are then random."""
    n: int
    seed: int
    donors: tuple[Donor, ...] = ()
    """What becomes of them is proposed before anything else ..."""
    donors_only: bool = False
    """... and nothing else is."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A candidate with the features the cost model will learn from."""

    candidate: Candidate
    features: bytes | None
    source: str | None = None
    """Digest of the workload whose trace was re-fitted, of a candidate that was."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured candidate, as the cost model sees it."""

    workload: str
    features: bytes
    secs: float | None
    """Median seconds; None for a failure."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A cost model with its quality on held-out tasks."""

    data: bytes
    metrics: dict[str, float]
    samples: int
