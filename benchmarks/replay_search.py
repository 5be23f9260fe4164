"""Searches replayed on a workload of the replay set: a trial looks a measured time up instead of measuring. Pure.

A replayed search decides as tuner/search/evolution.py does, with its shares, on what the set holds of the design space:

- *random points* are the set's own (origin `random`) in random order, and when they are used up any candidate;
- *children* of a candidate are the candidates of its sketch that differ from it in at most NEAR decisions, where a search
  would make new ones. Parents are the fastest that are measured, or, while nothing is, those with the best scores;
- *without a cost model* a round takes analytic seeds, then children, then random points: of the first RANKED_AFTER trials
  as many of each as there are, later three quarters seeds and children;
- *with one* it ranks the next analytic seeds, some random points and some children, and takes a few random points besides.
  A workload's first round is of analytic seeds, and a quarter of random points.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

TRIALS = (4, 8, 16, 32, 64)
"""After so many trials a search is looked at."""
BATCHES = (4, 4, 8, 8, 8, 8, 8, 8, 8)
"""Candidates of each round: a short job's first batches are the smallest that there are."""
ANALYTIC_SHARE, CHILDREN_SHARE, EPSILON, RANDOM_RATIO, CHILDREN_RATIO, MAX_TIES = 0.75, 0.75, 0.1, 0.5, 2.0, 2
"""As in the search; CHILDREN_RATIO is that of all generations."""
ELITES = 8
"""Parents, at most."""
RANKED_AFTER = 32
"""Trials after which the search uses a cost model, and random points besides what seeds and children leave."""
NEAR = 2
"""Decisions in which a child differs, at most."""

Indices = NDArray[np.int64]
First = Literal["analytic", "seeds by score", "all by score"]
"""How a first round with a cost model begins: with the seeds in the order of the analytic models, as the search does; with
the seeds in the order of their scores; or with what has the best scores of all kinds."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Replayed:
    """A workload with its n measured candidates; arrays have shape [n]."""

    digest: str
    name: str
    networks: tuple[str, ...]
    seconds: NDArray[np.float64]
    """Median seconds; infinite for a failure."""
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    place: NDArray[np.int64]
    """Order in which the candidates were drawn: analytic seeds in the order of their models."""
    origin: NDArray[np.str_]
    """`seed`, `mutation`, `random` or `default` (replay_draws.py)."""
    family: NDArray[np.str_]
    decisions: list[list[Any]]
    """Of each candidate, [instruction, decision] of every sampling instruction of its trace."""
    default: NDArray[np.bool_]
    features: list[NDArray[np.float32]]
    """[stores, FEATURES] of each."""

    @property
    def best_secs(self) -> float:
        return float(self.seconds.min())

    @property
    def speeds(self) -> NDArray[np.float64]:
        """best / seconds; 0 for a failure."""
        return self.best_secs / self.seconds


class Scorer(Protocol):
    """What ranks candidates of one workload in one search."""

    def scores(self, indices: Indices) -> NDArray[np.float64] | None:
        """One score per candidate, higher is better; None while there is no model."""

    def observe(self, indices: Indices) -> None:
        """These candidates are measured now."""


class Unscored:
    """No cost model."""

    def scores(self, indices: Indices) -> NDArray[np.float64] | None:
        del indices
        return None

    def observe(self, indices: Indices) -> None:
        del indices


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to search, which the replay compares with others."""

    name: str
    scorer: Callable[[Replayed], Scorer] | None = None
    """For each search a new one; None is no cost model."""
    seeded: bool = True
    """Whether analytic seeds are candidates besides random points."""
    evolves: bool = True
    """Whether children are."""
    first: First = "analytic"
    ranked_after: int = 0
    """Trials before the cost model is used."""
    random_ratio: float = RANDOM_RATIO
    """Random points that a cost model ranks, per candidate wanted."""


def replay(workload: Replayed, strategy: Strategy, seed: int) -> Indices:
    """The candidates that a search measures, in order: as many as BATCHES, or all there are."""
    return _Replay(workload, strategy, np.random.default_rng(seed)).run()


def best_so_far(workload: Replayed, order: Indices) -> NDArray[np.float64]:
    """Regret: seconds of the fastest after 1, 2, ... trials over those of the fastest in the set; shape [len(order)].

    While nothing has a time, the slowest of the set stands for it.
    """
    slowest = workload.seconds[np.isfinite(workload.seconds)].max()
    return np.minimum.accumulate(np.minimum(workload.seconds[order], slowest)) / workload.best_secs


def after(curve: NDArray[np.float64], trials: int) -> float:
    """The regret after so many trials; a space that was exhausted before keeps its last."""
    return float(curve[min(trials, len(curve)) - 1])


@cache
def near(workload: Replayed, index: int) -> Indices:
    """Candidates of the same sketch that differ from this one in at most NEAR decisions."""
    same = np.flatnonzero(workload.family == workload.family[index])
    decided = _decided(workload)
    own = decided[index]
    differs = np.array([sum(own.get(at) != value for at, value in decided[other].items()) for other in same.tolist()])
    return same[(differs <= NEAR) & (same != index)]


@cache
def _decided(workload: Replayed) -> list[dict[Any, str]]:
    """Of each candidate, instruction -> its decision as text."""
    return [{at: str(value) for at, value in decisions} for decisions in workload.decisions]


class _Replay:
    def __init__(self, workload: Replayed, strategy: Strategy, rng: np.random.Generator) -> None:
        self.workload, self.strategy, self.rng = workload, strategy, rng
        self.scorer: Scorer = Unscored() if strategy.scorer is None else strategy.scorer(workload)
        self.left = np.ones(len(workload.seconds), dtype=bool)
        seeds = np.flatnonzero(workload.origin == "seed") if strategy.seeded else _NONE
        self.seeds: Indices = seeds[np.argsort(workload.place[seeds])]
        is_random = workload.origin == "random"
        drawn = rng.permutation(np.flatnonzero(is_random))
        self.drawn: Indices = np.concatenate([drawn, rng.permutation(np.flatnonzero(~is_random))])
        self.order: list[int] = []

    def run(self) -> Indices:
        for wanted in BATCHES:
            early = len(self.order) < self.strategy.ranked_after
            guided = not early and self.scorer.scores(_FIRST) is not None
            chosen = self._guided(wanted) if guided else self._unguided(wanted)
            if not len(chosen):
                break
            self.order += chosen.tolist()
            self.left[chosen] = False
            self.scorer.observe(chosen)
        return np.array(self.order, dtype=np.int64)

    def _unguided(self, wanted: int) -> Indices:
        early = len(self.order) < RANKED_AFTER
        seeds = self._open(self.seeds)[: math.ceil((1.0 if early else ANALYTIC_SHARE) * wanted)]
        most = max(0, math.floor((1.0 if early else CHILDREN_SHARE) * wanted) - len(seeds))
        children = self.rng.permutation(self._children(self._fastest()))[:most]
        return _distinct([seeds, children, self._open(self.drawn)], wanted)

    def _guided(self, wanted: int) -> Indices:
        fresh = not self.order
        seeds, random = self._open(self.seeds), self._open(self.drawn)
        drawn = random[: math.ceil(self.strategy.random_ratio * wanted)]
        by_analysis = fresh and self.strategy.first != "all by score"
        if not fresh:
            seeds = seeds[: math.ceil(ANALYTIC_SHARE * wanted)]
        parents = self._ranked(_distinct([seeds, drawn]))[:ELITES] if fresh else self._fastest()
        children = self.rng.permutation(self._children(parents))[: math.ceil(CHILDREN_RATIO * wanted)]
        ranked = self._ranked(_distinct([seeds, drawn, children]))
        share = max(1, round((1 - ANALYTIC_SHARE if by_analysis else EPSILON) * wanted)) if wanted > 1 else 0
        ahead = _NONE
        if by_analysis:
            ahead = seeds if self.strategy.first == "analytic" else self._ranked(seeds)
        guided = _distinct([ahead, ranked])[: wanted - share]
        return _distinct([guided, drawn if fresh else self.rng.permutation(drawn), ranked, random])[:wanted]

    def _open(self, indices: Indices) -> Indices:
        return indices[self.left[indices]]

    def _ranked(self, indices: Indices) -> Indices:
        """By score, the best first, of equal scores no more than MAX_TIES."""
        scores = self.scorer.scores(indices) if len(indices) else None
        if scores is None:
            return indices
        ties: Counter[float] = Counter()
        kept = []
        for at in np.argsort(-scores, kind="stable").tolist():
            score = round(float(scores[at]), 4)
            ties[score] += 1
            if ties[score] <= MAX_TIES:
                kept.append(int(indices[at]))
        return np.array(kept, dtype=np.int64)

    def _fastest(self) -> Indices:
        measured = np.array(self.order, dtype=np.int64)
        return measured[np.argsort(self.workload.seconds[measured], kind="stable")][:ELITES]

    def _children(self, parents: Indices) -> Indices:
        if not self.strategy.evolves:
            return _NONE
        return _distinct([self._open(near(self.workload, parent)) for parent in parents.tolist()])


_NONE: Indices = np.zeros(0, dtype=np.int64)
_FIRST: Indices = np.zeros(1, dtype=np.int64)
"""The index of one candidate."""


def _distinct(queues: Sequence[Indices], most: int | None = None) -> Indices:
    """The first `most` of the queues one after another, each candidate once."""
    joined = np.concatenate([_NONE, *queues])
    _, first = np.unique(joined, return_index=True)
    return joined[np.sort(first)][:most]
