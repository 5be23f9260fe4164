"""Candidates for tensor cores: those that are issued can be built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pitchpipe.wire.task import Workload
from tests.compiler.gpu_cases import Spec, functions
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.graphs import Graph
from tests.compiler.half_workloads import TEN
from tuner.graph.prepare import prepare
from tuner.measure.gpu_code import lower
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.search.evolution import propose
from tuner.search.requests import ProposeRequest
from tuner.space import space_of
from tuner.space.fetch import with_working_fetches
from tuner.target_kinds.cuda import MOST_SOURCE
from tuner.tasks import split
from tuner.templates.text import is_template
from tuner.tvm_compat import load_ir, relax, save_ir, to_tvm_target
from tuner.workload.digest import workload_digest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["1x1 14x14x1024"])
def test_every_issued_candidate_applies_and_lowers_within_the_limits(name: str) -> None:
    """Before they were replayed, two in three did not."""
    workload = TEN[name]()
    request = {"target": HOPPER, "measured": (), "seen": frozenset(), "model": None}
    proposals = propose(ProposeRequest(workload=workload, n=8, seed=0, **request))
    assert len(proposals) == 8
    for proposal in proposals:
        scheduled = apply_trace(load_ir(workload.ir), proposal.candidate.trace).mod
        lowered = lower(scheduled, to_tvm_target(HOPPER))
        assert all(launch.shared_bytes <= 232448 for launch in lowered.calls)
        assert "mma" in lowered.source or lowered.code  # a template's is machine code already


@pytest.mark.filterwarnings("ignore")
def test_vectors_of_a_fetch_are_narrowed_until_they_work() -> None:
    """TVM makes no CUDA of three halves at once, nor of eight that do not lie side by side."""
    space = space_of(TEN["128x2304x768"](), HOPPER)
    lanes = set()
    for seed in range(1, 20):
        schedule = space.drawn(0, seed)
        if schedule is None:
            continue
        assert with_working_fetches(schedule) is None
        lanes |= {
            int(schedule.get(inst.inputs[1]))
            for inst in schedule.trace.insts
            if inst.kind.name == "Annotate" and str(inst.attrs[0]) == "meta_schedule.cooperative_fetch"
        }
    assert lanes & {2, 4, 8}, "wide fetches stay"
    assert 3 not in lanes


def test_a_layout_of_tiles_applies_to_a_workload_with_64_bit_shapes() -> None:
    workload = TEN["attention, scores"]()
    space = space_of(workload, HOPPER)
    found = 0
    for seed in range(1, 9):
        schedule = space.drawn(0, seed)
        if schedule is not None and space.postprocessed(schedule):
            trace = encode_trace(schedule.trace)
            assert '"TransformLayout"' in trace
            apply_trace(load_ir(workload.ir), trace)
            found += 1
    assert found


@pytest.mark.filterwarnings("ignore")
def test_a_candidate_that_is_unrolled_too_far_is_not_issued() -> None:
    """The device compiler took up to 15 s for one in five candidates of a norm, and they were given up as stragglers."""
    workload = of(
        lambda _, x, scale, shift: relax.op.nn.layer_norm(x, scale, shift, axes=[-1]),
        ((1, 128, 768), "float32"),
        ((768,), "float32"),
        ((768,), "float32"),
    )
    proposals = propose(
        ProposeRequest(workload=workload, target=HOPPER, measured=(), seen=frozenset(), model=None, n=24, seed=3)
    )
    assert len(proposals) == 24
    for proposal in proposals:
        scheduled = apply_trace(load_ir(workload.ir), proposal.candidate.trace).mod
        assert len(lower(scheduled, to_tvm_target(HOPPER)).source) <= MOST_SOURCE


@pytest.mark.filterwarnings("ignore")
def test_a_workload_on_which_metaschedule_fails_has_templates_alone_and_no_error() -> None:
    """Attention as one function, whose rows MetaSchedule does not divide among threads."""
    graph = Graph()
    q, k, v = (graph.tensor(1, 1, 8, 512, dtype="float16") for _ in range(3))

    def make(emit: Callable[[Any], Any]) -> Any:
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        return emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))

    (task,) = split(prepare(graph.module(make, 3), HOPPER), HOPPER)
    request = {"target": HOPPER, "measured": (), "seen": frozenset(), "model": None, "seed": 0}
    proposals = propose(ProposeRequest(workload=task.workload, n=4, **request))
    assert proposals
    assert all(is_template(proposal.candidate.trace) for proposal in proposals)


def of(make: Callable[..., Any], *specs: Spec) -> Workload:
    (mod,) = functions(make, *specs)
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))
