"""What the coordinator asks an executor to do: pure functions of their arguments, and the values they exchange.

The coordinator imports this file and no compiler; each step imports what it needs in the child that runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.measure import Candidate
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload


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


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A candidate with the features the cost model will learn from."""

    candidate: Candidate
    features: bytes | None


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


def propose(request: ProposeRequest) -> list[Proposal]:
    """At most `request.n` new candidates, best predicted first; none when the design space is exhausted."""
    from tuner import search

    return search.propose(request)


def train(samples: Sequence[Sample], seed: int) -> TrainedModel | None:
    """A cost model of all samples, or None when there are too few to learn from."""
    from tuner import cost_model

    return cost_model.train(samples, seed)


def check_model(data: bytes, model_format: str) -> bytes:
    """What reading an uploaded model gives: the bytes that `split_ingested` takes. Parses in a disposable child.

    Raises InvalidInput and its kinds, naming the cause, within the limits of CHECK_LIMITS.
    """
    from tuner import ingest

    return ingest.ingest_bytes(data, ModelFormat(model_format), ingest.CHECK_LIMITS)


def split_ingested(ingested: bytes, model_format: str, targets: Sequence[Target]) -> list[Task]:
    """The tasks of a model for each target, from what `check_model` gave; raises InvalidModel and its kinds."""
    from tuner import tasks

    return tasks.split_ingested(ingested, ModelFormat(model_format), list(targets))
