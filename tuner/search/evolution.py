"""The search: one round of evolution over a design space, ranked by the cost model.

`propose` is pure: the same request gives the same proposals in every process, whatever is cached and however many
threads work on it, because every candidate is drawn from a seed of its own and never from a shared stream.

One round, for `n` wanted candidates:

1. in a task's first round, what other workloads' schedules become here (tuner/search/transfer.py), all of it proposed;
2. leads: what the spaces that know the hardware think best, until all of it is measured;
3. random points of the sketches, those nobody has met first, then in turn: a sketch whose points are all known has had its
   turns. Not in proportion to what was measured of a sketch: its luckiest of five draws says little about its best;
4. with a cost model a few generations of mutated children, parents chosen by fitness (measured speed, or predicted score);
   without one, children of the fastest in place of three quarters of the random points;
5. the best predicted candidates never issued before, plus a share of random ones (epsilon-greedy) that keep both the
   search and the cost model honest. Without a model nothing can be ranked, and no more is made than is wanted.

MetaSchedule's own EvolutionarySearch is not used: it draws from per-thread streams (two threads are not reproducible),
its 512 x 5 candidates a round cost 20 ms of CPU each, and it forgets what was issued before it was created.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import structlog

from pitchpipe.errors import InvalidTrace, PitchpipeError
from pitchpipe.processes.cores import usable_cores
from pitchpipe.wire.measure import Candidate, FailureKind
from tuner.measure import quiet
from tuner.schedule.trace import decode_trace, encode_trace
from tuner.search.candidates import KNOWN, Built, Draw, Refused
from tuner.search.cost_model import CostModel, pack_features, target_of, unpack_features
from tuner.search.population import families_of, family_of, identified, parent_of
from tuner.search.requests import Proposal, ProposeRequest
from tuner.search.transfer import refitted
from tuner.space import space_of
from tuner.space.metaschedule import SEED_LIMIT, structural_hash

__all__ = ["propose"]

log = structlog.get_logger("pitchpipe.search")

ELITES = 32
"""Measured traces that become parents, the fastest first ..."""
FAMILY_ELITES = 12
"""... but of one family no more than these, so that a good sketch does not drive out those not yet explored."""
LEADS_SHARE = 0.75
"""Of the proposals of a round, at most: no sketch waits for another's leads."""
RANDOM_RATIO = 0.5
"""Fresh random candidates per wanted one, when a model ranks them."""
RANDOM_SHARE = 0.25
"""Of the proposals, when none does and something was measured: children of the fastest are the others."""
GENERATIONS = 2
CHILDREN_RATIO = 1.0
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
MAX_IN_VAIN = 2
"""Rounds that gave nothing new, likewise: the few draws of one may all have been known."""


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
        known = [identified(trace) for trace, _ in request.measured]
        self.keys = {key for key, _ in known}
        self.known = Counter(family for _, family in dict(known).items())
        """Candidates met, by family."""
        self.programs: set[int] = set()
        self.families: dict[str, list[tuple[float, Any]]] = {}
        self.sketches = families_of(self.space)
        self.leads = list(self.space.leads)
        self.led: list[Built] = []
        self.found: list[tuple[float, Built]] = []
        self.explored: list[Built] = []
        self.refused: list[str] = []
        """Why candidates could not be made, where that is nothing a design space should do."""
        self.transferred: dict[str, str] = {}
        """Key of what was built -> workload that it is from."""

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
        if self.refused:
            kind, count = FailureKind.INVALID_SCHEDULE.value, len(self.refused)
            log.warning("candidates refused", kind=kind, count=count, error=min(self.refused))
        return chosen

    def _fill(self, wanted: int) -> None:
        """Finds as many new candidates and, where a model can choose among them, more."""
        self.led += (led := self._grow(self._next_leads, math.ceil(wanted * LEADS_SHARE)))
        found = len(led)
        if self.model is not None:
            self.explored += self._grow(self._draws, math.ceil(wanted * RANDOM_RATIO))
            for _ in range(GENERATIONS):
                self._grow(self._mutations, math.ceil(wanted * CHILDREN_RATIO))
            return
        if self.families:
            found += len(self._grow(self._mutations, math.floor(wanted * (1 - RANDOM_SHARE)) - found))
        self._grow(self._draws, wanted - found)

    def _add_elites(self) -> None:
        measured = sorted((secs, trace) for trace, secs in self.request.measured if secs is not None)
        counts: Counter[str] = Counter()
        elites: list[tuple[float, str, str]] = []
        for secs, trace in measured:
            key, family = identified(trace)
            if len(elites) < ELITES and counts[family] < FAMILY_ELITES:
                counts[family] += 1
                elites.append((target_of(measured[0][0], secs), family, key))
        parents = self.parallel(lambda key: parent_of(self.space, key), [key for _, _, key in elites])
        for (fitness, family, _), parent in zip(elites, parents, strict=True):
            if parent is not None:
                self.families.setdefault(family, []).append((fitness, parent))

    def _next_leads(self, count: int) -> list[Draw]:
        taken, self.leads = self.leads[:count], self.leads[count:]
        return [Draw(seed=self._seed(), decided=trace) for trace in taken]

    def _add_transferred(self) -> None:
        fresh: list[Built] = []
        for donor in self.request.donors:
            try:
                schedules = refitted(self.space, decode_trace(donor.trace))
            except InvalidTrace:
                continue
            for schedule in schedules:
                made = self._completed(schedule)
                if isinstance(made, Built):
                    if (built := self._taken(made)) is not None:
                        fresh.append(built)
                        self.transferred[built.key] = donor.workload
                    break
        self.found += zip(self._scores(fresh), fresh, strict=True)

    def _draws(self, count: int) -> list[Draw]:
        """Random points of the space: sketches in turn, so that each gets its share, the least known first."""
        numbers = [i for i, family in enumerate(self.sketches) if self._is_open(family)]
        if not numbers:
            return []
        turned = np.roll(numbers, int(self.rng.integers(len(numbers))))
        order = sorted(map(int, turned), key=lambda i: min(self.known[self.sketches[i]], 1))
        return [Draw(seed=self._seed(), sketch=order[i % len(order)]) for i in range(count)]

    def _is_open(self, family: str) -> bool:
        """Whether a sketch has points that nobody has met."""
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

    def _grow(self, draw: Callable[[int], list[Draw]], count: int) -> list[Built]:
        """Builds `count` draws, scores those that are new, and makes them parents of the next generation.

        A draw that breaks a rule is drawn again; one that is known already is not, or a small space would never end.
        """
        fresh: list[Built] = []
        wanted, spent = count, 0
        while wanted > 0 and spent < MAX_DRAWS * count and (draws := draw(wanted)):
            spent += len(draws)
            wanted = 0
            for built in self.parallel(self._build, draws):
                wanted += built is None or isinstance(built, Refused)
                if (new := self._taken(built)) is not None:
                    fresh.append(new)
        scores = self._scores(fresh)
        self.found += zip(scores, fresh, strict=True)
        if self.model is not None:
            for score, built in zip(scores, fresh, strict=True):
                self.families.setdefault(built.family, []).append((min(max(score, 0.0), 1.0), built.trace))
        return fresh

    def _taken(self, built: Built | Refused | None) -> Built | None:
        """A candidate that nobody has met, which is so no more; None for anything else."""
        if built is None or built is KNOWN or built.key in self.keys:
            return None
        self.keys.add(built.key)
        self.known[built.family] += 1
        if isinstance(built, Refused):
            self.refused += [] if built.error is None else [built.error]
            return None
        if built.program in self.programs:
            return None
        self.programs.add(built.program)
        return built

    def _build(self, draw: Draw) -> Built | Refused | None:
        """None for a draw that breaks a rule. Runs in a thread; reads `self.keys`, which no thread changes."""
        try:
            schedule = self._applied(draw)
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; such a draw is no candidate
            return None
        if schedule is None or schedule is KNOWN:
            return schedule
        return self._completed(schedule, None if draw.sketch is None else self.sketches[draw.sketch])

    def _completed(self, schedule: Any, family: str | None = None) -> Built | Refused | None:
        """An applied schedule as a candidate, of the sketch that is named or told by its instructions."""
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
            return Built(
                family=family,
                key=key,
                program=structural_hash(schedule),
                trace=trace,
                schedule=schedule,
                features=pack_features(self.space.features(schedule)),
            )
        except Exception as error:  # noqa: BLE001 - what one candidate fails of is no concern of the others
            return Refused(family=family, key=key, error=f"{type(error).__name__}: {error}"[:300])

    def _applied(self, draw: Draw) -> Any:
        """The schedule of a draw before postprocessing; None where there is none, KNOWN where it need not be made."""
        if draw.sketch is not None:
            return self.space.drawn(draw.sketch, draw.seed)
        trace = draw.decided
        if draw.mutated is not None:
            trace = self.space.neighbour(draw.mutated, np.random.default_rng(draw.seed))
        if trace is None:
            return None
        if encode_trace(trace) in self.keys:  # Before the work: its decisions are all made.
            return KNOWN
        return self.space.applied(trace, draw.seed)

    def _scores(self, built: list[Built]) -> list[float]:
        """Predicted from the packed features, which is what the model is trained on."""
        if self.model is not None and built:
            try:
                return [float(s) for s in self.model.predict([unpack_features(b.features) for b in built])]
            except PitchpipeError:
                self.model = None
        return [float(s) for s in self.rng.random(len(built))]

    def _choose(self) -> list[Proposal]:
        """The best predicted, then the random share, none of them seen before; deterministic for equal scores.

        Of a task without any result the leads come before, and the random share is what they leave: a model that learnt
        from other tasks is no reason not to look at each sketch of this one.
        """
        n = self.request.n
        guided, fresh = self.model is not None, not self.request.measured
        rng = np.random.default_rng(self.request.seed)
        scores = {built.key: score for score, built in self.found}
        ranked = sorted(self.found, key=lambda item: (-item[0], item[1].key))
        explored = self.explored if fresh else [self.explored[i] for i in rng.permutation(len(self.explored))]
        led, drawn = ([(scores[built.key], built) for built in queue] for queue in (self.led, explored))
        share = max(1, round((1 - LEADS_SHARE if fresh else EPSILON) * n)) if guided and n > 1 else 0
        chosen: dict[str, Proposal] = {}
        ties: Counter[float] = Counter()
        given = [item for item in ranked if item[1].key in self.transferred]
        for limit, queue, max_ties in (
            (n, given, n),
            (n - share if fresh else 0, led, n),
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

    def _proposal(self, score: float, built: Built) -> Proposal | None:
        try:
            trace = encode_trace(built.schedule.trace)
        except InvalidTrace:
            return None
        predicted = score if self.model is not None else None
        candidate = Candidate.of(self.request.workload.digest, trace, predicted)
        return (
            None
            if candidate.digest in self.request.seen
            else Proposal(candidate=candidate, features=built.features, source=self.transferred.get(built.key))
        )


def _load_model(data: bytes | None) -> CostModel | None:
    """Advisory: a lost or poisoned model slows the search and changes no answer."""
    if data is None:
        return None
    try:
        return CostModel.load(data)
    except PitchpipeError:
        return None
