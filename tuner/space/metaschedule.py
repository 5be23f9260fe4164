"""MetaSchedule's own design space, and the steps that make a candidate in any space.

sketch (a trace with open decisions) -> sample or mutate -> decided trace -> schedule -> postprocessors -> candidate
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.schedule.packing import without_packings
from tuner.schedule.rewrites import KERNELS, REWRITE, rewritten
from tuner.space.code_size import is_unrolled_too_far
from tuner.space.fetch import with_working_fetches
from tuner.space.mutation import mutate_tile_size
from tuner.space.processor import VectorUnit
from tuner.space.refusals import tell_refused
from tuner.space.vector_tile import wastes_vectors, with_full_vectors
from tuner.tvm_compat import Schedule, Trace, load_ir, ms, mutate, to_tvm_target, tvm_ffi

SEED_LIMIT = 2**31 - 1
"""TVM's random states are in [1, 2**31 - 1]."""

FLOAT_BITS = 32

ANALYTIC_SEEDS = 8
"""Analytic seeds of each generator, at most: candidates to begin a search with, the best points of its best sketches."""

_SILENT = logging.getLogger("pitchpipe.metaschedule")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_SILENT.setLevel(logging.CRITICAL)


@dataclass(frozen=True, eq=False, kw_only=True)
class Space:
    """The design space of one workload on one target. Immutable, so threads may share it."""

    mod: Any
    schedules: Sequence[Any]
    """One per sketch, with the decisions that its generator's analytic model ranks best, else with random ones."""
    sketches: Sequence[Any]
    """The traces of `schedules` with every decision left open."""
    analytic_seeds: Sequence[Any]
    """The decided traces that the generators' analytic models of the hardware rank best, the best first."""
    _rewritten: Mapping[str, Any]
    """Name of a rewrite that sketches begin with -> `mod` after that rewrite."""
    _context: Any
    _postprocs: Sequence[Any]
    _mutators: Sequence[Any]
    _probabilities: NDArray[np.float64]
    _extractor: Any
    _unit: VectorUnit | None
    """The target's vector unit, which candidates must use well; None where the target's kind names none."""

    def joined(self, groups: Sequence[Sequence[Any]]) -> Space:
        """This space with the sketches of other generators; each group is ordered, the best first."""
        schedules = [schedule for group in groups for schedule in group]
        names = {name for schedule in schedules if (name := _rewrite_of(schedule.trace)) is not None}
        ranks = zip_longest(*(group[:ANALYTIC_SEEDS] for group in groups))
        in_turn = [schedule for rank in ranks for schedule in rank if schedule is not None]
        return replace(
            self,
            _rewritten={**self._rewritten, **{name: rewritten(self.mod, name) for name in sorted(names)}},
            schedules=[*self.schedules, *schedules],
            sketches=[*self.sketches, *(_undecided(schedule) for schedule in schedules)],
            analytic_seeds=[schedule.trace.simplified(True) for schedule in in_turn],
        )

    def size(self, number: int) -> float:
        """An upper bound of the number of points of a sketch; infinite where it is not easily computed."""
        return math.prod(map(_choices, self.schedules[number].trace.decisions.items()))

    def drawn(self, number: int, seed: int) -> Any:
        """The schedule of a random point of a sketch, before postprocessing; None when it does not apply."""
        rng = np.random.default_rng(seed)
        opened = with_full_vectors(self.sketches[number], self.schedules[number].trace, self._unit, rng)
        return self.applied(opened, seed)

    def neighbour(self, trace: Any, rng: np.random.Generator) -> Any:
        """The trace with one decision changed; None where none can be changed or the result wastes the vector unit."""
        found = self._changed(trace, rng) if self._mutators else None
        return None if found is None or wastes_vectors(found, self._unit) else found

    def _changed(self, trace: Any, rng: np.random.Generator) -> Any:
        if _rewrite_of(trace) is not None:  # MetaSchedule's mutators would apply it to the workload before the rewrite.
            return mutate_tile_size(trace, rng)
        mutator = self._mutators[rng.choice(len(self._mutators), p=self._probabilities)]
        if isinstance(mutator, ms.mutator.MutateTileSize):
            return mutate_tile_size(trace, rng)
        return mutate(mutator, trace, int(rng.integers(1, SEED_LIMIT)))

    def applied(self, trace: Any, seed: int, decide: Callable[[Any], Any] | None = None) -> Any:
        """The schedule of a trace before postprocessing, open decisions drawn from `seed`; None when it does not apply.

        decide: schedule -> a decision provider of TVM's, which replaces the decisions of the trace.
        """
        name = _rewrite_of(trace)
        mod = self.mod if name is None else self._rewritten.get(name)
        if mod is None:
            return None
        schedule = Schedule(mod, seed=seed, debug_mask=0, error_render_level="none")
        try:
            trace.apply_to_schedule(schedule, True, None if decide is None else decide(schedule))
        except Exception:  # noqa: BLE001 - TVM raises whatever its C++ side met; such a draw is no candidate
            return None
        if self._unit is None and (working := with_working_fetches(schedule)) is not None:
            return self.applied(working, seed)
        return schedule

    def postprocessed(self, schedule: Any) -> bool:
        """Applies the postprocessors to a schedule; false when one refuses it or too much code would be unrolled. A rewrite
        into a GPU's kernels is complete: it binds threads itself, where a postprocessor would bind them once more."""
        if _rewrite_of(schedule.trace) in KERNELS:
            return True
        schedule.enter_postproc()
        try:
            complete = all(postproc.apply(schedule) for postproc in self._postprocs)
        except Exception:  # noqa: BLE001 - as above
            return False
        return complete and not (self._unit is not None and is_unrolled_too_far(schedule.mod["main"], self._unit.lanes))

    def candidate(self, trace: Any, seed: int) -> Any:
        """The complete schedule of a trace; None when the trace or a postprocessor fails."""
        schedule = self.applied(trace, seed)
        return schedule if schedule is not None and self.postprocessed(schedule) else None

    def features(self, schedule: Any) -> NDArray[np.float32]:
        """Per-store features: [stores, 164], a row for every store statement of the lowered schedule."""
        if _rewrite_of(schedule.trace) is not None:  # TVM removes only packing blocks that copy, and fails on others.
            schedule = Schedule(without_packings(schedule.mod), debug_mask=0)
        found = self._extractor.extract_from(self._context, [ms.MeasureCandidate(schedule, [])])
        return np.asarray(found[0].numpy(), dtype=np.float32)


def generate(workload: Workload, target: Target, *, empty: bool = False) -> Space:
    """MetaSchedule's post-order-apply space, with its own rules, postprocessors and mutators for the target.

    empty: without sketches, for who brings some (`Space.joined`) and needs what makes candidates of them.
    """
    kind = kind_of(target)
    kind.load_intrinsics()
    mod = load_ir(workload.ir)
    context = ms.TuneContext(
        mod,
        target=to_tvm_target(target),
        space_generator="post-order-apply",
        search_strategy=None,
        task_name=workload.digest,
        logger=_SILENT,
        rand_state=1,
        num_threads=1,
    )
    schedules = [] if empty else _sketches(context)
    generator = context.space_generator
    mutators = sorted(((str(mutator), float(p), mutator) for mutator, p in generator.mutator_probs.items()))
    probabilities = np.array([p for _, p, _ in mutators], dtype=np.float64)
    return Space(
        mod=mod,
        schedules=schedules,
        _rewritten={},
        sketches=[_undecided(schedule) for schedule in schedules],
        analytic_seeds=[],
        _context=context,
        _postprocs=list(generator.postprocs),
        _mutators=[mutator for _, _, mutator in mutators],
        _probabilities=probabilities / probabilities.sum() if len(mutators) else probabilities,
        _extractor=ms.feature_extractor.PerStoreFeature(),
        _unit=kind.vector_unit(target, FLOAT_BITS),
    )


def _sketches(context: Any) -> list[Any]:
    """MetaSchedule's sketches; none for a workload on which its rules fail, such as attention on a GPU."""
    try:
        return list(context.generate_design_space())
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met
        tell_refused("metaschedule", error, choice="all")
        return []


def structural_hash(schedule: Any) -> int:
    """TVM's structural hash of the scheduled program, by which candidates of different traces with one program are found.
    Not a key: it has 64 bits."""
    return int(tvm_ffi.structural_hash(schedule.mod))


def _rewrite_of(trace: Any) -> str | None:
    """The name of the rewrite that a trace begins with (tuner/schedule/trace.py); None where it begins with none."""
    insts = trace.insts
    if len(insts) < 2 or insts[1].kind.name != "Annotate" or str(insts[1].attrs[0]) != REWRITE:
        return None
    return str(insts[1].inputs[1])


def _choices(decided: tuple[Any, Any]) -> float:
    """Number of values that a sampling instruction may take: the length of its list, or for a split in two the number of
    divisors; infinite for any other."""
    inst, decision = decided
    if inst.kind.name == "SampleCategorical":
        return len(inst.attrs[0])
    if inst.kind.name != "SamplePerfectTile" or int(inst.attrs[0]) != 2:
        return math.inf
    extent = math.prod(int(factor) for factor in decision)
    return sum(extent % divisor == 0 for divisor in range(1, min(extent, int(inst.attrs[1])) + 1))


def _undecided(schedule: Any) -> Any:
    return Trace(schedule.trace.simplified(True).insts, {})
