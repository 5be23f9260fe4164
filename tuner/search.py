"""The search: one round of evolution over a design space, ranked by the cost model.

`propose` is pure: the same request gives the same proposals in every process, whatever is cached and however many
threads work on it, because every candidate is drawn from a seed of its own and never from a shared stream.

One round, for `n` wanted candidates:

0. in a task's first round: what other workloads' schedules become here (tuner/transfer.py), all of it proposed;
1. parents: the fastest measured traces, and fresh random ones (decisions drawn from the sketches);
2. a few generations of mutated children, parents chosen by fitness (measured speed, or predicted score);
3. the best predicted candidates never issued before, plus a share of random ones (epsilon-greedy) that keep both the
   search and the cost model honest.

MetaSchedule's own EvolutionarySearch is not used: it draws from per-thread streams (two threads are not reproducible),
its 512 x 5 candidates a round cost 20 ms of CPU each, and it forgets what was issued before it was created.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.wire.measure import Candidate
from tuner.cost_model import CostModel, pack_features, target_of, unpack_features
from tuner.measure import quiet
from tuner.space import space_of
from tuner.space.metaschedule import SEED_LIMIT, structural_hash
from tuner.steps import Proposal, ProposeRequest
from tuner.trace import apply_trace, decode_trace, encode_trace, without_postproc
from tuner.transfer import refitted
from tuner.tvm_compat import usable_cores

__all__ = ["propose"]

ELITES = 32
"""Measured traces that become parents, the fastest first ..."""
FAMILY_ELITES = 12
"""... but of one family no more than these, so that a good sketch does not drive out those not yet explored."""
RANDOM_RATIO = 1.0
"""Fresh random candidates per wanted one."""
GENERATIONS = 2
CHILDREN_RATIO = 1.5
"""Mutated candidates per wanted one and generation."""
EPSILON = 0.1
"""Share of the proposals drawn at random rather than by score."""
MAX_TIES = 2
"""Proposals of one batch with the same predicted score: the model cannot tell them apart, so more of them teach
little."""
PRESSURE = 4.0
"""A family, then a parent in it, is chosen in proportion to fitness ** PRESSURE; 0 is blind, large is greedy."""
MAX_DRAWS = 16
"""Draws per wanted candidate: on a GPU nine in ten break a limit of the device, on a CPU hardly any fails."""
MAX_THREADS = 4
"""Building a candidate is TVM's work, outside the interpreter's lock, for four fifths of its time; more threads only
wait."""
TURN = 8
"""Candidates built between two moments when a timing on this host may go first: a few hundredths of a second."""
MAX_ROUNDS = 6
"""Rounds of one `propose`; a space that gave too few new candidates by then counts as exhausted."""


@dataclass(frozen=True, kw_only=True)
class _Built:
    """A candidate that applied and passed the postprocessors."""

    family: str
    """Kinds of its instructions: candidates of one sketch differ only in decisions."""
    key: str
    """Its trace before postprocessing: what is recognised when it is met again."""
    program: int
    """Structural hash of the schedule; several traces may make one program."""
    trace: Any
    """What a mutation starts from."""
    schedule: Any
    features: bytes


_KNOWN = _Built(family="", key="", program=0, trace=None, schedule=None, features=b"")
"""Stands for a draw that gave a candidate met before."""


def propose(request: ProposeRequest) -> list[Proposal]:
    """At most `request.n` new candidates, best predicted first; fewer, or none, when the space runs out of new ones.

    A model that cannot be loaded is no model: scores are then random. Measured traces that do not apply (another TVM's,
    another space's) are skipped as parents.
    """
    if request.n <= 0:
        return []
    with ThreadPoolExecutor(min(usable_cores(), MAX_THREADS), thread_name_prefix="propose") as threads:

        def in_turns(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for start in range(0, len(items), TURN):
                # All of a turn before any is used: what is built depends on what was found in the turns before.
                yield from list(threads.map(work, items[start : start + TURN]))
                quiet.give_way()

        return _Round(request, in_turns).run()


class _Round:
    """The state of one `propose`."""

    def __init__(self, request: ProposeRequest, parallel: Callable[..., Iterable[Any]]) -> None:
        self.request, self.parallel = request, parallel
        self.space = space_of(request.workload, request.target)
        self.model = _load_model(request.model)
        self.rng = np.random.default_rng([request.seed, int(request.workload.digest[:8], 16)])
        self.keys = {without_postproc(trace) for trace, _ in request.measured}
        self.programs: set[int] = set()
        self.families: dict[str, list[tuple[float, Any]]] = {}
        self.found: list[tuple[float, _Built]] = []
        self.explored: list[_Built] = []
        self.transferred: dict[str, str] = {}
        """Key of what was built -> workload that it is from."""

    def run(self) -> list[Proposal]:
        n = self.request.n
        self._add_elites()
        self._add_transferred()
        if self.request.donors_only:
            return self._choose()
        guided = self.model is not None or bool(self.families)
        chosen: list[Proposal] = []
        before = 0
        for _ in range(MAX_ROUNDS):
            self.explored += self._grow(self._draws, math.ceil(n * RANDOM_RATIO))
            for _ in range(GENERATIONS if guided else 0):
                self._grow(self._mutations, math.ceil(n * CHILDREN_RATIO))
            if len(self.found) == before:
                break
            before = len(self.found)
            chosen = self._choose()
            if len(chosen) == n:
                break
        return chosen

    def _add_elites(self) -> None:
        measured = sorted((secs, trace) for trace, secs in self.request.measured if secs is not None)
        counts: Counter[str] = Counter()
        elites: list[tuple[float, str, str]] = []
        for secs, trace in measured:
            family = _family_of(trace)
            if len(elites) < ELITES and counts[family] < FAMILY_ELITES:
                counts[family] += 1
                elites.append((target_of(measured[0][0], secs), family, trace))
        parents = self.parallel(self._parent, [trace for _, _, trace in elites])
        for (fitness, family, _), parent in zip(elites, parents, strict=True):
            if parent is not None:
                self.families.setdefault(family, []).append((fitness, parent))

    def _add_transferred(self) -> None:
        fresh: list[_Built] = []
        for donor in self.request.donors:
            try:
                schedules = refitted(self.space, decode_trace(donor.trace))
            except InvalidTrace:
                continue
            for schedule in schedules:
                built = self._completed(schedule)
                if built is not None:
                    if self._is_new(built):
                        fresh.append(built)
                        self.transferred[built.key] = donor.workload
                    break
        self.found += zip(self._scores(fresh), fresh, strict=True)

    def _parent(self, text: str) -> Any:
        try:
            return apply_trace(self.space.mod, without_postproc(text)).trace.simplified(True)
        except InvalidTrace:
            return None

    def _draws(self, count: int) -> list[tuple[Any, int, bool]]:
        """Random points of the space: sketches in turn, so that each gets its share."""
        sketches = self.space.sketches
        start = int(self.rng.integers(len(sketches)))
        return [(sketches[(start + i) % len(sketches)], self._seed(), False) for i in range(count)]

    def _mutations(self, count: int) -> list[tuple[Any, int, bool]]:
        names = sorted(self.families)
        if not names:
            return []
        best = [max(fitness for fitness, _ in self.families[name]) for name in names]
        chosen = []
        for index in self._roulette(best, count):
            family = self.families[names[index]]
            (member,) = self._roulette([fitness for fitness, _ in family], 1)
            chosen.append((family[member][1], self._seed(), True))
        return chosen

    def _roulette(self, fitness: list[float], count: int) -> list[int]:
        weights = np.maximum(np.array(fitness), 0.05) ** PRESSURE
        return [int(i) for i in self.rng.choice(len(fitness), size=count, p=weights / weights.sum())]

    def _seed(self) -> int:
        return int(self.rng.integers(1, SEED_LIMIT))

    def _grow(self, draw: Callable[[int], list[tuple[Any, int, bool]]], count: int) -> list[_Built]:
        """Builds `count` draws, scores those that are new, and makes them parents of the next generation.

        A draw that breaks a rule is drawn again; one that is known already is not, or a small space would never end.
        """
        fresh: list[_Built] = []
        wanted, spent = count, 0
        while wanted > 0 and spent < MAX_DRAWS * count and (draws := draw(wanted)):
            spent += len(draws)
            wanted = 0
            for built in self.parallel(self._build, draws):
                if built is None:
                    wanted += 1
                elif self._is_new(built):
                    fresh.append(built)
        scores = self._scores(fresh)
        self.found += zip(scores, fresh, strict=True)
        if self.model is not None:
            for score, built in zip(scores, fresh, strict=True):
                self.families.setdefault(built.family, []).append((min(max(score, 0.0), 1.0), built.trace))
        return fresh

    def _is_new(self, built: _Built) -> bool:
        """Remembers it if it is."""
        if built is _KNOWN or built.key in self.keys or built.program in self.programs:
            return False
        self.keys.add(built.key)
        self.programs.add(built.program)
        return True

    def _build(self, draw: tuple[Any, int, bool]) -> _Built | None:
        """None for a draw that breaks a rule. Runs in a thread; reads `self.keys`, which no thread changes."""
        trace, seed, mutated = draw
        if mutated:
            trace = self.space.neighbour(trace, np.random.default_rng(seed))
            if trace is None:
                return None
        try:
            if mutated and encode_trace(trace) in self.keys:  # Before the work: its decisions are all made.
                return _KNOWN
        except InvalidTrace:
            return None
        schedule = self.space.applied(trace, seed)
        return None if schedule is None else self._completed(schedule)

    def _completed(self, schedule: Any) -> _Built | None:
        """An applied schedule as a candidate; None where it breaks a rule."""
        trace = schedule.trace.simplified(True)
        try:
            key = encode_trace(trace)
        except InvalidTrace:
            return None
        if key in self.keys:
            return _KNOWN
        if not self.space.postprocessed(schedule):
            return None
        return _Built(
            family=_family_of(key),
            key=key,
            program=structural_hash(schedule),
            trace=trace,
            schedule=schedule,
            features=pack_features(self.space.features(schedule)),
        )

    def _scores(self, built: list[_Built]) -> list[float]:
        """Predicted from the packed features, which is what the model is trained on."""
        if self.model is not None and built:
            try:
                return [float(s) for s in self.model.predict([unpack_features(b.features) for b in built])]
            except PitchpipeError:
                self.model = None
        return [float(s) for s in self.rng.random(len(built))]

    def _choose(self) -> list[Proposal]:
        """The best predicted, then the random share, none of them seen before; deterministic for equal scores."""
        n = self.request.n
        guided = self.model is not None
        rng = np.random.default_rng(self.request.seed)
        scores = {built.key: score for score, built in self.found}
        ranked = sorted(self.found, key=lambda item: (-item[0], item[1].key))
        drawn = [(scores[self.explored[i].key], self.explored[i]) for i in rng.permutation(len(self.explored))]
        share = max(1, round(EPSILON * n)) if guided and n > 1 else 0
        chosen: dict[str, Proposal] = {}
        ties: Counter[float] = Counter()
        given = [item for item in ranked if item[1].key in self.transferred]
        for limit, queue, max_ties in (
            (n, given, n),
            (n - share, ranked, MAX_TIES if guided else n),
            (n, drawn, n),
            (n, ranked, n),
        ):
            for score, built in queue:
                if len(chosen) >= limit:
                    break
                if built.key in chosen or ties[tie := round(score, 4)] >= max_ties:
                    continue
                if (proposal := self._proposal(score, built)) is not None:
                    chosen[built.key] = proposal
                    ties[tie] += 1
        return sorted(chosen.values(), key=lambda p: (-(p.candidate.predicted or 0.0), p.candidate.digest))

    def _proposal(self, score: float, built: _Built) -> Proposal | None:
        try:
            trace = encode_trace(built.schedule.trace)
        except InvalidTrace:
            return None
        predicted = score if self.model is not None else None
        candidate = Candidate.of(self.request.workload.digest, trace, predicted)
        if candidate.digest in self.request.seen:
            return None
        return Proposal(candidate=candidate, features=built.features, source=self.transferred.get(built.key))


def _load_model(data: bytes | None) -> CostModel | None:
    """Advisory: a lost or poisoned model slows the search and changes no answer."""
    if data is None:
        return None
    try:
        return CostModel.load(data)
    except PitchpipeError:
        return None


def _family_of(trace: str) -> str:
    """Kinds of the instructions before postprocessing, in order."""
    kinds = [instruction[0] for instruction in json.loads(without_postproc(trace))[0]]
    return ",".join(kinds)
