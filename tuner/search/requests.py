"""Requests and results of a search, and of the training of a cost model: plain values, without a compiler."""

from __future__ import annotations

from dataclasses import dataclass

from pitchpipe.wire.cost_model import TaskMarks
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
    """(trace, median seconds) of measured candidates; None in place of the seconds for a failure."""
    seen: frozenset[str]
    """Digests of all candidates ever issued for the workload and target; none of them is proposed again."""
    model: bytes | None
    """A serialised cost model, or None: scores are then random."""
    n: int
    """Candidates wanted."""
    seed: int
    donors: tuple[Donor, ...] = ()
    """Schedules of other workloads, which are re-fitted and proposed before anything else ..."""
    donors_only: bool = False
    """... and nothing else is."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A candidate with the features on which the cost model will be trained."""

    candidate: Candidate
    features: bytes | None
    source: str | None = None
    """Of a re-fitted candidate: digest of the workload whose trace it was. None for any other."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measured candidate: a sample for the training of the cost model."""

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
    judge: bytes | None = None
    """The same trained without the held-out workloads, which speaks for it there; None where nothing else was left."""
    marks: tuple[TaskMarks, ...] = ()
    """Of the judge on each held-out task, beside the rival's judge."""
    rival_refused: bool = False
    """Whether the rival is no cost model that this version of the code can read."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """The cost model that serves while another is trained."""

    data: bytes
    judge: bytes | None
