"""Which workloads and which candidates the replay set has. Nothing is timed here."""

from __future__ import annotations

import base64
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.ids import candidate_digest
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, TaskKind

DEFAULT, SEED, MUTATION, RANDOM = "default", "seed", "mutation", "random"
"""Origins of a candidate: an analytic seed, up to CHAIN mutations of one, a random point; the default schedule where none of
these has its program."""
CHAIN = 3
MUTATED = 0.4
"""Share of the draws that are mutations, where there are analytic seeds and their families have points left."""
IN_VAIN = 12
"""Rounds of draws in a row without a new candidate after which a space counts as exhausted."""
DRAWS = 32
"""Of a round."""


def tasks_of(module: Any, inputs: tuple[Any, ...], target: Target) -> list[Task]:
    """The tasks of a PyTorch module, as a job would have them."""
    from tuner.graph.prepare import prepare
    from tuner.ingest import parse_container
    from tuner.ingest.torch_export import from_torch
    from tuner.tasks import split
    from tuner.tvm_compat import load_ir

    return split(prepare(load_ir(parse_container(from_torch(module, inputs)[0]).ir), target), target)


def kind_of(task: Task) -> str:
    """The loops of its costliest stage, and what that does: convolutions of one, two and more reductions are three kinds."""
    return "" if task.signature is None else task.signature.anchor


def worth_having(tasks: Iterable[Task], known: Mapping[str, int] | None = None) -> Iterator[Task]:
    """Tasks that are tuned, or that reduce something (means): one of each group in turn, the costliest first.

    With `known`, a number of workloads by kind, those of the rarest kind come first.
    """
    groups: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: (-task.weight * task.flops, task.workload.digest)):
        if task.kind is TaskKind.TUNED or not kind_of(task).endswith(("elements", "nothing")):
            groups.setdefault(task.group, []).append(task)
    order = [task for rank in zip_longest(*groups.values()) for task in rank if task is not None]
    yield from order if known is None else sorted(order, key=lambda task: known.get(kind_of(task), 0))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A candidate that can be measured."""

    digest: str
    trace: str
    origin: str
    place: int
    """Among the candidates of the workload, in the order in which they were drawn: seeds in that of the analytic models."""
    default: bool
    """Whether its program is that of the default schedule."""
    family: str
    """Digest of its instructions: candidates of one sketch differ only in decisions."""
    parent: str | None
    """Digest of the candidate that it is a mutation of."""
    features: bytes
    """As `pack_features` makes them."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "features": base64.b64encode(self.features).decode()}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Drawn:
        """The inverse of `as_json`."""
        return cls(**{**value, "features": base64.b64decode(value["features"])})


def draw(task: Task, wanted: int, seed: int) -> list[Drawn]:
    """At most `wanted` different candidates in random order; fewer where the design space has no more. Deterministic."""
    with ThreadPoolExecutor(usable_cores()) as threads:
        found = _Drawing(task, wanted, seed, threads).run()
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """A candidate to make: a trace as it is, a mutation of one, or a random point of a sketch."""

    seed: int
    origin: str
    sketch: int = 0
    trace: Any = None
    parent: str | None = None
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What became of a draw."""

    decided: Any
    """Its trace before postprocessing."""
    key: str
    trace: str
    program: int
    features: bytes


class _Drawing:
    def __init__(self, task: Task, wanted: int, seed: int, threads: ThreadPoolExecutor) -> None:
        from tuner.search.population import families_of
        from tuner.space import space_of

        self.task, self.wanted, self.threads = task, wanted, threads
        self.space = space_of(task.workload, task.target)
        self.families = families_of(self.space)
        self.rng = np.random.default_rng(seed)
        self.found: dict[int, Drawn] = {}
        """By structural hash of the program."""
        self.keys: set[str] = set()
        self.counts: Counter[str] = Counter()
        """Candidates by family."""
        self.parents: list[_Draw] = []
        """Traces that may be mutated, each as the draw that a mutation of it is."""

    def run(self) -> list[Drawn]:
        self._round([_Draw(seed=1, origin=SEED, trace=trace) for trace in self.space.analytic_seeds])
        if self.task.fixed is not None:
            self._mark_default(self.task.fixed)
        vain = 0
        while len(self.found) < self.wanted and vain < IN_VAIN:
            before = len(self.found)
            mutated = round(MUTATED * DRAWS) if self.parents else 0
            self._round([*self._mutations(mutated), *self._random(DRAWS - mutated)])
            vain = 0 if len(self.found) > before else vain + 1
        return list(self.found.values())

    def _mark_default(self, trace: str) -> None:
        from tuner.schedule.trace import apply_trace

        made = self._finished(apply_trace(self.space.mod, trace))
        if made is not None:
            self._keep(_Draw(seed=1, origin=DEFAULT), made)
            self.found[made.program] = replace(self.found[made.program], default=True)

    def _mutations(self, count: int) -> list[_Draw]:
        parents = (self.parents[int(self.rng.integers(len(self.parents)))] for _ in range(count))
        return [replace(parent, seed=self._seed()) for parent in parents]

    def _random(self, count: int) -> list[_Draw]:
        """Points of the sketches that may have points left, in turn, those of which fewest are known first."""
        left = [i for i, name in enumerate(self.families) if self.counts[name] < self.space.size(i)]
        order = sorted(left, key=lambda i: (self.counts[self.families[i]], i))
        return [
            _Draw(seed=self._seed(), origin=RANDOM, sketch=order[i % len(order)]) for i in range(count if order else 0)
        ]

    def _seed(self) -> int:
        from tuner.space.metaschedule import SEED_LIMIT

        return int(self.rng.integers(1, SEED_LIMIT))

    def _round(self, draws: list[_Draw]) -> None:
        for one, made in zip(draws, self.threads.map(self._made, draws), strict=True):
            if made is None or made.key in self.keys:
                continue
            self.keys.add(made.key)
            digest = self._keep(one, made)
            if digest is not None and one.origin != RANDOM and one.depth < CHAIN:
                child = _Draw(seed=0, origin=MUTATION, trace=made.decided, parent=digest, depth=one.depth + 1)
                self.parents.append(child)

    def _made(self, one: _Draw) -> _Made | None:
        """Runs in a thread; None for a draw that is not valid."""
        if one.origin == RANDOM:
            schedule = self.space.drawn(one.sketch, one.seed)
        else:
            trace = one.trace
            if one.origin == MUTATION:
                trace = self.space.neighbour(trace, np.random.default_rng(one.seed))
            schedule = None if trace is None else self.space.applied(trace, one.seed)
        return None if schedule is None else self._finished(schedule, postprocessed=False)

    def _finished(self, schedule: Any, postprocessed: bool = True) -> _Made | None:
        from tuner.schedule.trace import encode_trace
        from tuner.search.cost_model import pack_features
        from tuner.space.metaschedule import structural_hash

        try:
            decided = schedule.trace.simplified(True)
            key = encode_trace(decided)
            if not postprocessed and (key in self.keys or not self.space.postprocessed(schedule)):
                return None
            return _Made(
                decided=decided,
                key=key,
                trace=encode_trace(schedule.trace),
                program=structural_hash(schedule),
                features=pack_features(self.space.features(schedule)),
            )
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; such a draw is no candidate
            print(f"  a draw failed: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            return None

    def _keep(self, one: _Draw, made: _Made) -> str | None:
        """The candidate's digest; None where another has its program, or there are enough."""
        from tuner.search.population import family_of

        if made.program in self.found or len(self.found) >= self.wanted:
            return None
        digest, family = candidate_digest(self.task.workload.digest, made.trace), family_of(made.key)
        self.counts[family] += 1
        self.found[made.program] = Drawn(
            digest=digest,
            trace=made.trace,
            origin=one.origin,
            place=len(self.found),
            default=False,
            family=family,
            parent=one.parent,
            features=made.features,
        )
        return digest
