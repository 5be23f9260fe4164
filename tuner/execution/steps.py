"""What the coordinator asks an executor to do: pure functions of their arguments.

The coordinator imports this file and no compiler; each step imports what it needs in the child that runs it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import zip_longest

from pitchpipe.wire.cost_model import TaskMarks
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from tuner.search.requests import Proposal, ProposeRequest, Rival, Sample, TrainedModel

FEWEST_PER_PART = 8
"""Proposals of a search for which another process is worth its start: the fastest traces are replayed in each."""


def propose(request: ProposeRequest) -> list[Proposal]:
    """At most `request.n` new candidates, best predicted first; none when the design space is exhausted."""
    from tuner.search import evolution

    return evolution.propose(request)


def propose_on(executor: Executor, request: ProposeRequest) -> Future[list[Proposal]]:
    """`propose` in as many parts as the executor has processes, each with its share of `n` and a seed of its own; donors
    go to the first.

    An executor tells how many it has as `processes`; one that does not has one. Threads of one process are no
    substitute: beyond four of them a search takes as long as with four. A part that fails costs its share; the future
    fails when all do. The answer depends on the number of processes, and otherwise on nothing but the request.
    """
    parts = max(1, min(getattr(executor, "processes", 1), request.n // FEWEST_PER_PART))
    if parts == 1:
        return executor.submit(propose, request)
    share, more = divmod(request.n, parts)
    requests = [
        replace(
            request,
            n=share + (part < more),
            seed=int(json_digest([request.seed, part])[:7], 16),
            donors=() if part else request.donors,
        )
        for part in range(parts)
    ]
    return _Together([executor.submit(propose, part) for part in requests])


class _Together(Future[list[Proposal]]):
    """Done when all parts are: their proposals, each once, best predicted first; those without a prediction in turns."""

    def __init__(self, parts: Sequence[Future[list[Proposal]]]) -> None:
        super().__init__()
        self._parts, self._left, self._lock = parts, len(parts), threading.Lock()
        for part in parts:
            part.add_done_callback(self._ended)

    def cancel(self) -> bool:
        """Cancels the parts that have not started."""
        cancelled = [part.cancel() for part in self._parts]
        return all(cancelled)

    def _ended(self, _part: Future[list[Proposal]]) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if all(part.cancelled() for part in self._parts):
            super().cancel()
            return
        done = [part for part in self._parts if not part.cancelled()]
        answers = [part.result() for part in done if part.exception() is None]
        if not answers:
            self.set_exception(done[0].exception())
            return
        turns = [proposal for turn in zip_longest(*answers) for proposal in turn if proposal is not None]
        unique = {proposal.candidate.digest: proposal for proposal in turns}
        self.set_result(sorted(unique.values(), key=lambda proposal: -(proposal.candidate.predicted or 0.0)))


def train(samples: Sequence[Sample], seed: int, rival: Rival | None = None) -> TrainedModel | None:
    """A cost model of all samples, with its marks on held-out tasks beside the rival's; None when there are too few
    samples to learn from."""
    from tuner.search import cost_model, marks

    trained = cost_model.train(samples, seed)
    return None if trained is None else marks.judged(trained, samples, rival)


def score(samples: Sequence[Sample], model: bytes, rival: bytes) -> tuple[TaskMarks, ...]:
    """Marks of a cost model, beside those of the one that serves, on samples that neither was trained on, the oldest first.

    Raises IntegrityError for a damaged model.
    """
    from tuner.search import marks

    return marks.shadow(samples, model, rival)


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
