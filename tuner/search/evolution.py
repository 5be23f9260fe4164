"""The search: one round of evolution over a design space, ranked by the cost model, beside points of templates.

`propose` is pure: the same request gives the same proposals in every process, whatever is cached and however many
threads work on it, because every candidate is drawn from a seed of its own and never from a shared stream.

One round, for `n` wanted candidates:

1. in a task's first round, schedules of other workloads, re-fitted to this one (tuner/search/transfer.py): all of them
   are proposed;
2. analytic seeds: the points that the analytic models of the design spaces rank best, until all of them are measured;
3. random points, drawn from the sketches in turn, beginning with sketches of which no candidate is known. A sketch whose
   points are all known is left out. Sketches are not weighted by their best measurement: the best of five random draws
   says little about the best point of a sketch;
4. with a cost model, a few generations of mutated children, whose parents are chosen by fitness (measured speed, or
   predicted score); without one, children of the fastest replace three quarters of the random points;
5. of the candidates that were never issued before, those with the best predicted scores are chosen, and a share of random
   ones (epsilon-greedy), so that the search leaves local optima and the cost model is trained on more than its favourites.
   Without a cost model nothing can be ranked, and only as many candidates are made as are wanted.

While few are measured (`TargetKind.ranked_after`) there is neither a cost model nor a random point, but seeds, and children
of the fastest where these do not fill a round (ADR 0113).
MetaSchedule's own EvolutionarySearch is not used: it draws from per-thread streams (two threads are not reproducible),
its 512 x 5 candidates a round cost 20 ms of CPU each, and it does not know what was issued before it was created.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import structlog

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import Candidate, FailureKind
from tuner.measure import quiet
from tuner.schedule.trace import decode_trace, encode_trace
from tuner.search.candidates import KNOWN, Draw, Individual, Refused
from tuner.search.cost_model import CostModel, pack_features, target_of, unpack_features
from tuner.search.population import families_of, family_of, identified, parent_of
from tuner.search.replays import Replays
from tuner.search.requests import Proposal, ProposeRequest
from tuner.search.templates import propose_templates, share_of, traces_are_far_behind, without_templates
from tuner.search.transfer import refitted
from tuner.space import space_of
from tuner.space.metaschedule import SEED_LIMIT, structural_hash

__all__ = ["propose"]

log = structlog.get_logger("pitchpipe.search")

ELITES, FEW_ELITES = 32, 8
"""Measured traces that become parents, the fastest first; fewer while no cost model ranks what is made of them ..."""
FAMILY_ELITES = 12
"""... but no more than this of one family, so that a good sketch does not displace those that were explored less."""
ANALYTIC_SHARE = 0.75
"""Share of a round's proposals that analytic seeds may take: the rest explores the other sketches."""
RANDOM_RATIO = 0.5
"""Random candidates drawn per wanted one, when a cost model ranks them."""
RANDOM_SHARE = 0.25
"""Share of random candidates without a cost model, once something was measured; the others are children of the fastest."""
GENERATIONS = 2
CHILDREN_RATIO = 1.0
"""Mutated candidates per wanted one and generation."""
EPSILON = 0.1
"""Share of the proposals drawn at random rather than by score."""
MAX_TIES = 2
"""Proposals of one batch with the same predicted score: the model cannot tell them apart, so more teach little."""
PRESSURE = 4.0
"""A family, then a parent in it, is chosen in proportion to fitness ** PRESSURE; 0 is uniform, a large value greedy."""
MAX_DRAWS = 16
"""Draws per wanted candidate, at most: on a GPU nine in ten break a limit of the device, on a CPU hardly any fails."""
MAX_THREADS = 4
"""TVM builds a candidate outside the interpreter's lock for four fifths of the time; more threads would wait for it."""
TURN = 8
"""Candidates after which, a few hundredths of a second, the search lets a timing on this host go first."""
MAX_ROUNDS = 6
"""Rounds of one `propose`; a space that gave too few new candidates in as many counts as exhausted."""
MAX_IN_VAIN = 2
"""Rounds in a row without a new candidate, after which a space counts as exhausted: one may draw known points by chance."""


def propose(request: ProposeRequest) -> list[Proposal]:
    """At most `request.n` new candidates, those with the best predicted scores first; fewer when the space has no more.

    With a cost model that cannot be loaded the search goes on without one: scores are random. Measured traces that do not
    apply (those of another version of TVM, or of another space) are not used as parents.
    """
    if request.n <= 0:
        return []
    if traces_are_far_behind(request):
        return propose_templates(request, request.n)
    proposals = propose_templates(request, share_of(request))
    traces = _propose_traces(without_templates(request, request.n - len(proposals)))
    if len(proposals) + len(traces) < request.n:
        proposals = propose_templates(request, request.n - len(traces))
    return [*proposals, *traces]


def _propose_traces(request: ProposeRequest) -> list[Proposal]:
    if request.n <= 0:
        return []
    with ThreadPoolExecutor(min(usable_cores(), MAX_THREADS), thread_name_prefix="propose") as threads:

        def in_turns(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
            for start in range(0, len(items), TURN):
                # A turn is complete before its first result is used, so that results do not depend on the number of threads.
                yield from list(threads.map(work, items[start : start + TURN]))
                quiet.give_way()

        return _Round(request, in_turns).run()


class _Round:
    """The state of one `propose`."""

    def __init__(self, request: ProposeRequest, parallel: Callable[..., Iterable[Any]]) -> None:
        self.request, self.parallel = request, parallel
        self.space = space_of(request.workload, request.target)
        self.early = len(request.measured) < kind_of(request.target).ranked_after
        self.model = None if self.early else _load_model(request.model)
        self.rng = np.random.default_rng([request.seed, int(request.workload.digest[:8], 16)])
        known = [identified(trace) for trace, _ in request.measured]
        self.keys = {key for key, _ in known}
        self.known = Counter(family for _, family in dict(known).items())
        """Number of known candidates, by family."""
        self.programs: set[int] = set()
        self.families: dict[str, list[tuple[float, Any]]] = {}
        self.sketches = families_of(self.space)
        self.analytic_seeds = [seed for seed in self.space.analytic_seeds if encode_trace(seed) not in self.keys]
        self.seeded: list[Individual] = []
        self.found: list[tuple[float, Individual]] = []
        self.explored: list[Individual] = []
        self.refused: list[str] = []
        """Errors of candidates that failed where a design space should give valid ones."""
        self.replays = Replays(self.space.mod, request.target, parallel)
        self.transferred: dict[str, str] = {}
        """Key of a re-fitted candidate -> digest of the workload whose schedule it was."""

    def run(self) -> list[Proposal]:
        n = self.request.n
        self._add_elites()
        self._add_transferred()
        if self.request.donors_only:
            return self._choose()
        chosen: list[Proposal] = []
        in_vain = 0
        before = 0
        for _ in range(MAX_ROUNDS):
            self._fill(n - len(chosen))
            if len(self.found) == before:
                in_vain += 1
                if in_vain == MAX_IN_VAIN:
                    break
                continue
            before = len(self.found)
            chosen = self._choose()
            if len(chosen) == n:
                break
        if refused := [*self.refused, *self.replays.refused]:
            kind, count = FailureKind.INVALID_SCHEDULE.value, len(refused)
            log.warning("candidates refused", kind=kind, count=count, error=min(refused))
        return chosen

    def _fill(self, wanted: int) -> None:
        """Finds `wanted` new candidates; with a cost model, which can choose among them, more."""
        analytic_share, random_share = (1.0, 0.0) if self.early else (ANALYTIC_SHARE, RANDOM_SHARE)
        self.seeded += (seeded := self._grow(self._next_analytic_seeds, math.ceil(wanted * analytic_share)))
        found = len(seeded)
        if self.model is not None:
            self.explored += self._grow(self._draws, math.ceil(wanted * RANDOM_RATIO))
            for _ in range(GENERATIONS):
                self._grow(self._mutations, math.ceil(wanted * CHILDREN_RATIO))
            return
        generations = 0 if not self.families else GENERATIONS if self.early else 1
        for _ in range(generations):
            found += len(self._grow(self._mutations, math.floor(wanted * (1 - random_share)) - found))
        self._grow(self._draws, wanted - found)

    def _add_elites(self) -> None:
        measured = sorted((secs, trace) for trace, secs in self.request.measured if secs is not None)
        counts: Counter[str] = Counter()
        elites: list[tuple[float, str, str]] = []
        for secs, trace in measured:
            key, family = identified(trace)
            if len(elites) < (FEW_ELITES if self.early else ELITES) and counts[family] < FAMILY_ELITES:
                counts[family] += 1
                elites.append((target_of(measured[0][0], secs), family, key))
        parents = self.parallel(lambda key: parent_of(self.space, key), [key for _, _, key in elites])
        for (fitness, family, _), parent in zip(elites, parents, strict=True):
            if parent is not None:
                self.families.setdefault(family, []).append((fitness, parent))

    def _next_analytic_seeds(self, count: int) -> list[Draw]:
        taken, self.analytic_seeds = self.analytic_seeds[:count], self.analytic_seeds[count:]
        return [Draw(seed=self._seed(), decided=trace) for trace in taken]

    def _add_transferred(self) -> None:
        fresh: list[Individual] = []
        for donor in self.request.donors:
            try:
                schedules = refitted(self.space, decode_trace(donor.trace))
            except InvalidTrace:
                continue
            for schedule in schedules:
                made = self._completed(schedule)
                if isinstance(made, Individual):
                    if (individual := self._taken(made)) is not None:
                        fresh.append(individual)
                        self.transferred[individual.key] = donor.workload
                    break
        self.found += zip(self._scores(fresh), fresh, strict=True)

    def _draws(self, count: int) -> list[Draw]:
        """Random points of the space, from the sketches in turn; sketches without known candidates come first."""
        numbers = [i for i, family in enumerate(self.sketches) if self._is_open(family)]
        if not numbers:
            return []
        turned = np.roll(numbers, int(self.rng.integers(len(numbers))))
        order = sorted(map(int, turned), key=lambda i: min(self.known[self.sketches[i]], 1))
        return [Draw(seed=self._seed(), sketch=order[i % len(order)]) for i in range(count)]

    def _is_open(self, family: str) -> bool:
        """Whether a family may have points that are not known yet."""
        size = sum(self.space.size(i) for i, name in enumerate(self.sketches) if name == family)
        return family not in self.sketches or self.known[family] < size

    def _mutations(self, count: int) -> list[Draw]:
        names = [name for name in sorted(self.families) if self._is_open(name)]
        if not names:
            return []
        best = [max(fitness for fitness, _ in self.families[name]) for name in names]
        chosen = []
        for index in self._roulette(best, count):
            family = self.families[names[index]]
            (member,) = self._roulette([fitness for fitness, _ in family], 1)
            chosen.append(Draw(seed=self._seed(), mutated=family[member][1]))
        return chosen

    def _roulette(self, fitness: list[float], count: int) -> list[int]:
        weights = np.maximum(np.array(fitness), 0.05) ** PRESSURE
        return [int(i) for i in self.rng.choice(len(fitness), size=count, p=weights / weights.sum())]

    def _seed(self) -> int:
        return int(self.rng.integers(1, SEED_LIMIT))

    def _grow(self, draw: Callable[[int], list[Draw]], count: int) -> list[Individual]:
        """Builds `count` draws, scores the new ones, and makes them parents of the next generation.

        A draw that is not valid is replaced by another draw. One that is known already is not replaced, or the search of a
        small space would not end.
        """
        fresh: list[Individual] = []
        wanted, spent = count, 0
        while wanted > 0 and spent < MAX_DRAWS * count and (draws := draw(wanted)):
            spent += len(draws)
            wanted = 0
            for one in self.parallel(self._build, draws):
                wanted += one is None or isinstance(one, Refused)
                if (new := self._taken(one)) is not None:
                    fresh.append(new)
        scores = self._scores(fresh)
        self.found += zip(scores, fresh, strict=True)
        if self.model is not None:
            for score, individual in zip(scores, fresh, strict=True):
                self.families.setdefault(individual.family, []).append((min(max(score, 0.0), 1.0), individual.trace))
        return fresh

    def _taken(self, individual: Individual | Refused | None) -> Individual | None:
        """Registers an individual as known and returns it; None where it was known, refused, or not valid."""
        if individual is None or individual is KNOWN or individual.key in self.keys:
            return None
        self.keys.add(individual.key)
        self.known[individual.family] += 1
        if isinstance(individual, Refused):
            self.refused += [] if individual.error is None else [individual.error]
            return None
        if individual.program in self.programs:
            return None
        self.programs.add(individual.program)
        return individual

    def _build(self, draw: Draw) -> Individual | Refused | None:
        """The candidate of a draw; None for a draw that is not valid. Runs in a thread; no thread changes `self.keys`."""
        try:
            schedule = self._applied(draw)
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; such a draw is no candidate
            return None
        if schedule is None or schedule is KNOWN:
            return schedule
        return self._completed(schedule, None if draw.sketch is None else self.sketches[draw.sketch])

    def _completed(self, schedule: Any, family: str | None = None) -> Individual | Refused | None:
        """An applied schedule as a candidate. Its family is the given one, else it follows from its instructions."""
        try:
            trace = schedule.trace.simplified(True)
            key = encode_trace(trace)
        except Exception:  # noqa: BLE001 - likewise
            return None
        if key in self.keys:
            return KNOWN
        family = family or family_of(key)
        try:
            if not self.space.postprocessed(schedule):
                return Refused(family=family, key=key, error=None)
            return Individual(
                family=family,
                key=key,
                program=structural_hash(schedule),
                trace=trace,
                schedule=schedule,
                features=pack_features(self.space.features(schedule)),
            )
        except Exception as error:  # noqa: BLE001 - one candidate that fails must not end the search
            return Refused(family=family, key=key, error=f"{type(error).__name__}: {error}"[:300])

    def _applied(self, draw: Draw) -> Any:
        """The schedule of a draw before postprocessing; None where it does not apply, KNOWN where its trace is known."""
        if draw.sketch is not None:
            return self.space.drawn(draw.sketch, draw.seed)
        trace = draw.decided
        if draw.mutated is not None:
            trace = self.space.neighbour(draw.mutated, np.random.default_rng(draw.seed))
        if trace is None:
            return None
        if encode_trace(trace) in self.keys:  # All decisions are made, so the key is known before the trace is applied.
            return KNOWN
        return self.space.applied(trace, draw.seed)

    def _scores(self, individuals: list[Individual]) -> list[float]:
        """Scores, predicted from the packed features that the cost model is trained on; random without a cost model."""
        if self.model is not None and individuals:
            try:
                return [float(s) for s in self.model.predict([unpack_features(one.features) for one in individuals])]
            except PitchpipeError:
                self.model = None
        return [float(s) for s in self.rng.random(len(individuals))]

    def _choose(self) -> list[Proposal]:
        """The candidates with the best predicted scores, then the random share; none was issued before.

        Ties of scores are broken by key, so the choice is deterministic; without predictions candidates stay in the order of
        their choice, analytic seeds first. For a task without any result the analytic seeds come before the predicted ones,
        and random points take what is left: a cost model that was trained on other tasks should not keep the search from
        trying every sketch of this one.
        """
        n = self.request.n
        guided, fresh = self.model is not None, not self.request.measured
        rng = np.random.default_rng(self.request.seed)
        scores = {individual.key: score for score, individual in self.found}
        ranked = sorted(self.found, key=lambda item: (-item[0], item[1].key))
        explored = self.explored if fresh else [self.explored[i] for i in rng.permutation(len(self.explored))]
        seeded, drawn = (
            [(scores[individual.key], individual) for individual in queue] for queue in (self.seeded, explored)
        )
        share = max(1, round((1 - ANALYTIC_SHARE if fresh else EPSILON) * n)) if guided and n > 1 else 0
        chosen: dict[str, Proposal] = {}
        ties: Counter[float] = Counter()
        given = [item for item in ranked if item[1].key in self.transferred]
        for limit, queue, max_ties in (
            (n, given, n),
            (n - share if fresh or self.early else 0, seeded, n),
            (n - share, ranked, MAX_TIES if guided else n),
            (n, drawn, n),
            (n, ranked, n),
        ):
            self.replays.prepare([individual for _, individual in queue[: limit - len(chosen)]])
            for score, individual in queue:
                if len(chosen) >= limit:
                    break
                if individual.key in chosen or ties[tie := round(score, 4)] >= max_ties:
                    continue
                if (proposal := self._proposal(score, individual)) is not None:
                    chosen[individual.key] = proposal
                    ties[tie] += 1
        return sorted(chosen.values(), key=lambda proposal: -(proposal.candidate.predicted or 0.0))

    def _proposal(self, score: float, individual: Individual) -> Proposal | None:
        if (trace := self.replays.trace(individual)) is None:
            return None
        predicted = score if self.model is not None else None
        candidate = Candidate.of(self.request.workload.digest, trace, predicted)
        if candidate.digest in self.request.seen:
            return None
        source = self.transferred.get(individual.key)
        return Proposal(candidate=candidate, features=individual.features, source=source)


def _load_model(data: bytes | None) -> CostModel | None:
    """The cost model is advisory: without it, or with a bad one, the search is slower and no result is wrong."""
    with suppress(PitchpipeError):
        return None if data is None else CostModel.load(data)
    return None
