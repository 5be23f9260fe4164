"""Chains of reductions run row by row: what they compute, and that every inner loop is a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler import programs
from tests.compiler.programs import TARGET
from tests.compiler.test_space_default import outputs
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace
from tuner.space import space_of
from tuner.space.default import default_trace
from tuner.space.inlining import inline_producers
from tuner.space.rowwise import _accumulators, find_chain, rowwise_sketches
from tuner.space.tiles import tiled_sketches
from tuner.tvm_compat import (
    IRModule,
    Schedule,
    generate_unchecked,
    load_ir,
    relax,
    save_ir,
    te,
    tirx,
    to_tvm_target,
    tvm,
    tvm_ffi,
)
from tuner.workload.digest import workload_digest

op = relax.op
SSE = Target.parse({"kind": "llvm", "mcpu": "x86-64", "num-cores": 4})
AVX2 = Target.parse({"kind": "llvm", "mcpu": "haswell", "num-cores": 4})
NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 4}

CHAINS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda b, x: op.nn.softmax(x), ((12, 64, 128),)),
    "softmax over channels": (lambda b, x: op.nn.softmax(x, axis=1), ((1, 21, 32, 64),)),
    "layer norm": (lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), ((64, 768), (768,), (768,))),
    "rms norm": (lambda b, x, g: op.nn.rms_norm(x, g, axes=[-1]), ((64, 512), (512,))),
    "group norm": (
        lambda b, x, g, s: op.nn.group_norm(x, g, s, num_groups=8, channel_axis=1, axes=[2, 3]),
        ((2, 32, 16, 16), (32,), (32,)),
    ),
    "variance over space": (lambda b, x: op.variance(x, axis=[1, 2], keepdims=True), ((1, 14, 14, 64),)),
    "mean of rows": (lambda b, x: op.mean(x, axis=[1]), ((197, 768),)),
    "mean of columns": (lambda b, x: op.mean(x, axis=[0]), ((197, 768),)),
    "largest position": (lambda b, x: op.argmax(x, axis=-1), ((64, 256),)),
    "sum of everything": (lambda b, x: op.sum(x), ((4096,),)),
    "max pooling": (
        lambda b, x: op.nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        ((1, 28, 28, 64),),
    ),
    "average pooling": (lambda b, x: op.nn.avg_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"), ((1, 28, 28, 64),)),
}
UNEVEN = {
    "softmax of 197": (lambda b, x: op.nn.softmax(x), ((12, 50, 197),)),
    "mean of 77": (lambda b, x: op.mean(x, axis=[1]), ((64, 77),)),
    "layer norm of 1000": (lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), ((32, 1000), (1000,), (1000,))),
}


def workload(name: str) -> Workload:
    make, shapes = (CHAINS | UNEVEN)[name]
    return programs.workload(make, *shapes)


def scheduled(name: str, target: Target = TARGET) -> Any:
    trace = default_trace(workload(name), target)
    assert trace != BASELINE_TRACE
    return apply_trace(load_ir(workload(name).ir), trace).mod


def loops_of(mod: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, (tirx.For, found.append))
    return found


def innermost(mod: Any) -> list[Any]:
    """The loops that hold no other, of more than a few steps."""
    short = 9  # Windows of a pooling, and the last step of combining partial results.
    return [loop for loop in loops_of(mod) if int(loop.extent) > short and str(loop.body).count("for ") == 0]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*CHAINS, *UNEVEN])
def test_a_chain_computes_what_the_baseline_computes(name: str) -> None:
    expected, found = outputs(load_ir(workload(name).ir)), outputs(scheduled(name))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_every_inner_loop_of_a_chain_is_a_vector_below_one_parallel_loop(name: str) -> None:
    mod = scheduled(name)
    assert all(loop.kind == tirx.ForKind.VECTORIZED for loop in innermost(mod)), mod.script()
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in loops_of(mod))
    assert sum(loop.kind == tirx.ForKind.PARALLEL for loop in loops_of(mod)) <= 1


def test_a_long_chain_runs_in_parallel_and_a_short_one_wakes_nobody() -> None:
    assert any(loop.kind == tirx.ForKind.PARALLEL for loop in loops_of(scheduled("softmax")))
    assert not any(loop.kind == tirx.ForKind.PARALLEL for loop in loops_of(scheduled("sum of everything")))


@pytest.mark.parametrize("name", ["softmax", "layer norm", "max pooling"])
def test_the_vectors_of_a_chain_fit_the_target(name: str) -> None:
    for target, lanes in ((SSE, 4), (AVX2, 8)):
        mod = scheduled(name, target)
        widths = {int(loop.extent) for loop in loops_of(mod) if loop.kind == tirx.ForKind.VECTORIZED}
        assert widths <= {4, lanes, 2 * lanes, 4 * lanes}
        generate_unchecked(mod, to_tvm_target(target))


def test_a_chain_compiles_to_vectors_of_neon() -> None:
    mod = scheduled("layer norm", SSE)  # As wide as NEON.
    built = tirx.build(mod, target=tvm.target.Target(NEON))
    assert "fadd\tv" in built.inspect_source("asm")


def test_stages_that_read_values_of_another_iteration_are_no_chain() -> None:
    """y[i, j] = x[i, j] * sum_k x[j, k], square: the extents of the stages match and their parallel axes do not."""
    x, k = te.placeholder((64, 64), "float32", name="x"), te.reduce_axis((0, 64), name="k")
    sums = te.compute((64,), lambda i: te.sum(x[i, k], axis=k))
    own = te.compute((64, 64), lambda i, j: x[i, j] * sums[i])
    other = te.compute((64, 64), lambda i, j: x[i, j] * sums[j])
    both = te.compute((64, 64), lambda i, j: sums[i] * sums[j])
    for result, forms_a_chain in ((own, True), (other, True), (both, False)):
        mod = IRModule({"main": te.create_prim_func([x, result]).with_attr("global_symbol", "main")})
        schedule = Schedule(mod, debug_mask=0)
        chain = find_chain(schedule)
        assert (chain is not None) == forms_a_chain
        if chain is not None:
            assert chain.stages[1].parallel == ((0,) if result is own else (1,))
        single = Workload(digest=workload_digest(mod), ir=save_ir(mod))
        found = apply_trace(mod, default_trace(single, TARGET)).mod
        np.testing.assert_allclose(outputs(found)[-1], outputs(mod)[-1], rtol=1e-4)


def test_sketches_of_a_chain_join_the_space_and_give_candidates() -> None:
    softmax = workload("softmax")
    sketches = rowwise_sketches(load_ir(softmax.ir), TARGET)
    assert len(sketches) == 3
    space = space_of(softmax, TARGET)
    expected = outputs(space.mod)
    for sketch in space.sketches[-len(sketches) :]:
        candidate = space.candidate(sketch, 1)
        replayed = apply_trace(space.mod, encode_trace(candidate.trace))
        assert tvm_ffi.structural_equal(replayed.mod, candidate.mod)
        np.testing.assert_allclose(outputs(replayed.mod)[-1], expected[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("columns", "accumulators"), [(64, 1), (4096, 4)])
def test_a_longer_row_begins_with_more_accumulators(columns: int, accumulators: int) -> None:
    made = programs.workload(lambda b, x: op.nn.softmax(x), (64, columns))
    schedule = Schedule(load_ir(made.ir))
    inline_producers(schedule)
    assert _accumulators(find_chain(schedule), lanes=16)[0] == accumulators


def test_a_search_of_a_long_chain_begins_with_a_few_chunks_for_each_core() -> None:
    first, *_ = rowwise_sketches(load_ir(programs.workload(lambda b, x: op.nn.softmax(x), (768, 512)).ir), TARGET)
    (chunks,) = [decision for _, decision in first.trace.decisions.items()]
    assert [int(factor) for factor in chunks] == [12, 64]


def test_a_single_row_beside_what_lies_along_its_reduction_goes_row_by_row() -> None:
    q, k = te.placeholder((8, 1, 64), name="q"), te.placeholder((8, 257, 64), name="k")
    d = te.reduce_axis((0, 64), name="d")
    scores = te.compute((8, 1, 257), lambda b, i, j: te.sum(q[b, i, d] * k[b, j, d], axis=d))
    mod = IRModule({"main": te.create_prim_func([q, k, scores])})
    assert tiled_sketches(mod, TARGET) == []
    assert rowwise_sketches(mod, TARGET)
    made = Workload(digest=workload_digest(mod), ir=save_ir(mod))
    found = outputs(apply_trace(mod, default_trace(made, TARGET)).mod)
    np.testing.assert_allclose(found[-1], outputs(mod)[-1], rtol=1e-4, atol=1e-5)


def test_candidates_of_pooling_may_be_stored_though_it_names_a_rule() -> None:
    space = space_of(workload("max pooling"), TARGET)
    found = [space.candidate(sketch, seed=1) for sketch in space.sketches]
    texts = [encode_trace(candidate.trace) for candidate in found if candidate is not None]
    assert any('"schedule_rule"' in text for text in texts)
    assert [decode_trace(text) for text in texts] == texts


def test_contractions_have_no_rowwise_sketches() -> None:
    assert rowwise_sketches(load_ir(programs.dense(32, 64, 64).ir), TARGET) == []
