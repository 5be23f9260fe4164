"""Cost models in replays: trained from nothing within a search, or before it on the workloads of other networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from replay_search import Indices, Replayed

from tuner.search.cost_model import MIN_SAMPLES, CostModel, fit, pack_features
from tuner.search.requests import Sample

SEED = 1
GROWTH = 1.5
"""A model that learns within a search is trained anew whenever it has so many times the candidates of the last training."""


@cache
def samples_of(workload: Replayed) -> list[Sample]:
    """All measured candidates as the training of a cost model takes them."""
    return [
        Sample(
            workload=workload.digest,
            features=pack_features(features),
            secs=float(seconds) if np.isfinite(seconds) else None,
        )
        for features, seconds in zip(workload.features, workload.seconds, strict=True)
    ]


def pretrained(workloads: Sequence[Replayed]) -> bytes:
    """A cost model of all their candidates; ends the script where they are too few."""
    data = fit([sample for workload in workloads for sample in samples_of(workload)], SEED)
    if data is None:
        raise SystemExit("too few candidates to train a cost model")
    return data


class Learning:
    """A model that begins from nothing and learns what the search measures."""

    def __init__(self, workload: Replayed) -> None:
        self._workload = workload
        self._measured: list[int] = []
        self._due = float(MIN_SAMPLES)
        self._model: CostModel | None = None

    def scores(self, indices: Indices) -> NDArray[np.float64] | None:
        if self._model is None:
            return None
        return self._model.predict([self._workload.features[i] for i in indices.tolist()])

    def observe(self, indices: Indices) -> None:
        self._measured += indices.tolist()
        if len(self._measured) < self._due:
            return
        self._due = GROWTH * len(self._measured)
        samples = samples_of(self._workload)
        data = fit([samples[i] for i in self._measured], SEED)
        self._model = None if data is None else CostModel.load(data)


class Fixed:
    """A model that learns nothing from the search."""

    def __init__(self, scores: NDArray[np.float64]) -> None:
        self._scores = scores

    def scores(self, indices: Indices) -> NDArray[np.float64] | None:
        found: NDArray[np.float64] = self._scores[indices]
        return found

    def observe(self, indices: Indices) -> None:
        del indices
