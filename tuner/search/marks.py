"""Marks of a cost model: how well it ranks candidates that it was not trained on, beside a rival on the same ones.

A task here is a set of measured candidates of one workload: all of a held-out workload, or of any other workload up to GROUP
candidates that were measured one after another once both models had been trained. Only pairs of candidates within a task
are compared, because the scores of different workloads cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.wire.cost_model import MAX_POINTS, TaskMarks
from tuner.search.cost_model import MIN_TASK_SAMPLES, CostModel, is_held_out, unpack_features
from tuner.search.requests import Rival, Sample, TrainedModel

GROUP = 8
"""Candidates of a task that was measured in the shadow, at most: 28 pairs ..."""
LEAST = 4
"""... and at least: the smallest batch of a search, since a short job of many workloads has no more of each."""


def judged(trained: TrainedModel, samples: Sequence[Sample], rival: Rival | None) -> TrainedModel:
    """The model with its marks on the held-out workloads of the samples that it was trained on: its judge's, which never
    saw these workloads, beside those of the rival's judge."""
    refused, other = False, None
    if rival is not None:
        try:
            CostModel.load(rival.data)
            other = None if rival.judge is None else CostModel.load(rival.judge)
        except IntegrityError:
            refused = True
    if trained.judge is None:
        return replace(trained, rival_refused=refused)
    held_out = [sample for sample in samples if is_held_out(sample.workload)]
    tasks = [task for task in _by_workload(held_out) if len(task) >= MIN_TASK_SAMPLES]
    marks = _marks(tasks, CostModel.load(trained.judge), other)
    return replace(trained, marks=marks, rival_refused=refused)


def shadow(samples: Sequence[Sample], model: bytes, rival: bytes) -> tuple[TaskMarks, ...]:
    """Marks on samples, oldest first, that neither model was trained on; raises IntegrityError for a damaged model."""
    tasks = [task[start : start + GROUP] for task in _by_workload(samples) for start in range(0, len(task), GROUP)]
    return _marks(tasks, CostModel.load(model), CostModel.load(rival))


def _by_workload(samples: Sequence[Sample]) -> list[list[Sample]]:
    tasks: dict[str, list[Sample]] = {}
    for sample in samples:
        tasks.setdefault(sample.workload, []).append(sample)
    return list(tasks.values())


def _marks(tasks: Sequence[Sequence[Sample]], model: CostModel, rival: CostModel | None) -> tuple[TaskMarks, ...]:
    return tuple(marks for task in tasks if (marks := _of_task(task, model, rival)) is not None)


def _of_task(task: Sequence[Sample], model: CostModel, rival: CostModel | None) -> TaskMarks | None:
    """None of a task with fewer than LEAST candidates whose features unpack, or without two speeds."""
    readable = list(_readable(task))
    secs = np.array([np.inf if sample.secs is None else sample.secs for sample, _ in readable])
    if len(readable) < LEAST or not np.isfinite(secs).any():
        return None
    speeds = secs.min() / secs
    if not (speeds < 1).any():
        return None
    features = [matrix for _, matrix in readable]
    scores = model.predict(features)
    peaks = np.maximum.accumulate(speeds[np.argsort(-scores, kind="stable")])
    return TaskMarks(
        workload=task[0].workload,
        candidates=len(readable),
        pairwise=pairwise(speeds, scores),
        peak_1=float(peaks[0]),
        peak_5=float(peaks[:5].mean()),
        rival_pairwise=None if rival is None else pairwise(speeds, rival.predict(features)),
        points=tuple(
            (round(float(speed), 4), round(float(score), 4))
            for speed, score in list(zip(speeds, scores, strict=True))[:MAX_POINTS]
        ),
    )


def _readable(task: Sequence[Sample]) -> Iterator[tuple[Sample, NDArray[np.float32]]]:
    for sample in task:
        try:
            features = unpack_features(sample.features)
        except InvalidInput:
            continue
        if len(features):
            yield sample, features


def pairwise(speeds: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """Share of the pairs of different speed that the scores have in the right order; half a pair for equal scores, so that
    a model that tells nothing apart has a half."""
    left, right = np.triu_indices(len(speeds), 1)
    measured = np.sign(speeds[left] - speeds[right])
    agreed = measured * np.sign(scores[left] - scores[right])
    return float((1 + agreed[measured != 0]).mean() / 2)
