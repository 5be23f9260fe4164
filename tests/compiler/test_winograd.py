"""Winograd's algorithm: what is rewritten, that it computes the same, and that a trace carries it everywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from tvm.s_tir.meta_schedule.testing import te_workload

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import expected, ingest_here, inputs_of, run
from tests.compiler.test_tasks import tasks_of
from tuner.deploy.build import schedule_model
from tuner.graph.prepare import TRANSFORM, call_counts
from tuner.measure.build import build
from tuner.measure.check import SETS, ReferenceOutputs
from tuner.measure.input_sets import make_inputs
from tuner.measure.properties import inspect
from tuner.schedule.rewrites import REWRITE, WINOGRAD, rewrite_of
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace, without_postproc
from tuner.schedule.winograd import find_convolution, winograd
from tuner.space import Space, space_of
from tuner.space.tiles import VectorUnit
from tuner.space.winograd import _register_tiles, winograd_sketches
from tuner.tuning.records import export_metaschedule
from tuner.tvm_compat import IRModule, load_ir, save_ir, te, to_tvm_target, tvm, tvm_ffi
from tuner.workload.digest import workload_digest

AVX2 = Target.parse({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})


def network(
    height: int, width: int, channels: int, outputs: int, *, pad: int = 1, epilogue: bool = True, **attributes: Any
) -> Any:
    """A convolution from (1, channels, height, width), with bias, residual and activation if there is an epilogue."""
    rng = np.random.default_rng(1)
    filters = rng.normal(0, 0.3, (outputs, channels // attributes.get("group", 1), 3, 3)).astype(np.float32)
    attributes = {"kernel_shape": [3, 3], "pads": [pad] * 4, **attributes}
    if not epilogue:
        return model([node("Conv", ["x", "w"], ["y"], **attributes)], {"x": [1, channels, height, width]}, ["y"], {"w": filters})  # fmt: skip
    weights = {"w": filters, "b": rng.normal(0, 0.3, outputs).astype(np.float32)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], **attributes),
        node("Add", ["c", "r"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    residual = [1, outputs, height + 2 * pad - 2, width + 2 * pad - 2]
    return model(nodes, {"x": [1, channels, height, width], "r": residual}, ["y"], weights)


def workload_of(proto: Any) -> Workload:
    return max(tasks_of(proto), key=lambda task: task.flops).workload


def arguments(built: Any, properties: Any, arrays: list[np.ndarray]) -> list[Any]:
    """Arguments of a built module, weights packed."""
    found: list[Any] = [None] * len(properties.params)
    for index, array in zip(properties.inputs, arrays, strict=True):
        found[index] = tvm.runtime.tensor(array)
        if index in built.packings:
            packed = tvm.runtime.empty(built.packed[index].shape, built.packed[index].dtype)
            built.packings[index](found[index], packed)
            found[index] = packed
    for index in properties.outputs:
        found[index] = tvm.runtime.tensor(np.full(properties.params[index].shape, np.nan, np.float32))
    return found


def assert_same(mod: Any, candidates: list[Any], target: Target = TARGET) -> None:
    """By the output check that measurements go through, on all of its input sets."""
    properties = inspect(mod)
    reference = build(mod, to_tvm_target(TARGET))
    built = [build(candidate, to_tvm_target(target)) for candidate in candidates]
    for name in SETS:
        arrays = make_inputs(properties, name, seed=0)
        values = arguments(reference, properties, arrays)
        reference.main(*values)
        judge = ReferenceOutputs(properties, name, [values[index].numpy() for index in properties.outputs])
        for number, candidate in enumerate(built):
            values = arguments(candidate, properties, arrays)
            candidate.main(*values)
            right, error, tolerance = judge.compare([values[index].numpy() for index in properties.outputs])
            assert right, f"candidate {number} errs by {error:g} on the {name} inputs, tolerance {tolerance:g}"


@pytest.mark.long
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    "proto",
    [
        network(9, 6, 16, 32),
        network(10, 14, 8, 8, pad=0, epilogue=False),
        network(5, 8, 16, 16, pad=2),
    ],
    ids=["ragged", "bare", "wide padding"],
)
def test_the_rewritten_workload_computes_what_the_direct_one_computes(proto: Any, m: int) -> None:
    mod = load_ir(workload_of(proto).ir)
    rewritten = winograd(mod, m)
    assert tvm_ffi.structural_equal(rewritten, winograd(mod, m))
    assert [str(p.ty) for p in rewritten["main"].params] == [str(p.ty) for p in mod["main"].params]
    assert_same(mod, [rewritten])


@pytest.mark.parametrize(
    "proto",
    [
        network(8, 8, 16, 16, strides=[2, 2], epilogue=False),
        network(8, 8, 16, 16, dilations=[2, 2], pad=2, epilogue=False),
        network(8, 8, 32, 32, group=2, epilogue=False),
        model([node("MatMul", ["a", "b"], ["y"])], {"a": [4, 32, 48], "b": [4, 48, 64]}, ["y"]),
    ],
    ids=["strided", "dilated", "grouped", "product"],
)
def test_what_winograd_does_not_compute_is_left_alone(proto: Any) -> None:
    mod = load_ir(workload_of(proto).ir)
    assert find_convolution(mod["main"]) is None
    assert winograd_sketches(mod, TARGET) == []
    with pytest.raises(InvalidTrace, match="no convolution"):
        winograd(mod, 4)


def rewritten_sketches(space: Space) -> list[Any]:
    """The sketches of a space that begin with a rewrite, the best first."""
    named = [rewrite_of(json.loads(encode_trace(schedule.trace.simplified(True)))[0]) for schedule in space.schedules]
    return [sketch for sketch, name in zip(space.sketches, named, strict=True) if name is not None]


def candidates_of(workload: Workload, target: Target) -> list[Any]:
    """A candidate of each of these sketches."""
    space = space_of(workload, target)
    drawn = [[space.candidate(sketch, seed) for seed in (10**8, 10**9)] for sketch in rewritten_sketches(space)]
    found = [next((candidate for candidate in candidates if candidate is not None), None) for candidates in drawn]
    assert None not in found
    return found


@pytest.mark.long
@pytest.mark.parametrize(("target", "built"), [(TARGET, range(8)), (AVX2, (0, 7))], ids=["here", "AVX2"])
def test_candidates_compute_what_the_direct_program_computes(target: Target, built: Sequence[int]) -> None:
    workload = workload_of(network(11, 14, 32, 64))
    found = candidates_of(workload, target)
    rewrites = [rewrite_of(json.loads(encode_trace(candidate.trace))[0]) for candidate in found]
    # Two widths, each with the input transformed at the block and at the root.
    assert sorted(rewrites) == ["winograd-2.1"] * 4 + ["winograd-4.1"] * 4
    assert_same(load_ir(workload.ir), [found[i].mod for i in built], target)


EPILOGUES: dict[str, list[Any]] = {
    "PReLU": [node("PRelu", ["c", "slope"], ["y"])],
    "SiLU": [node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["y"])],
    "PReLU of a residual": [node("Add", ["c", "x"], ["s"]), node("PRelu", ["s", "slope"], ["y"])],
    "GELU": [
        node("Div", ["c", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
        node("Mul", ["c", "f"], ["g"]),
        node("Mul", ["g", "half"], ["y"]),
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("name", EPILOGUES)
def test_an_epilogue_may_read_the_result_of_the_convolution_more_than_once(name: str) -> None:
    rng = np.random.default_rng(2)
    made = {"w": rng.normal(0, 0.1, (32, 32, 3, 3)), "b": rng.normal(size=32), "slope": rng.normal(size=(32, 1, 1))}
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    filters = {key: np.asarray(value, np.float32) for key, value in (made | numbers).items()}
    convolution = node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4)
    proto = model([convolution, *EPILOGUES[name]], {"x": [1, 32, 11, 14]}, ["y"], filters)
    ingested, weights = ingest_here(proto)
    workload, inputs = workload_of(proto), inputs_of(ingested)
    with capture_logs() as refused:
        found = candidates_of(workload, TARGET)
    assert len(found) == 8
    assert not refused
    for candidate in (found[0], found[-1]):
        scheduled = schedule_model(ingested, TARGET, {workload.digest: encode_trace(candidate.trace)})
        assert scheduled.tuned == (workload.digest,)
        (ours,) = run(scheduled.module, ingested, weights, inputs, to_tvm_target(TARGET))
        np.testing.assert_allclose(ours, expected(proto, inputs)[0], rtol=1e-4, atol=1e-4)


def test_a_neighbour_of_a_rewritten_candidate_is_one_too_and_has_features() -> None:
    workload = workload_of(network(11, 14, 32, 64))
    space = space_of(workload, TARGET)
    trace = space.candidate(rewritten_sketches(space)[0], 1).trace.simplified(True)
    neighbours = [space.neighbour(trace, np.random.default_rng(seed)) for seed in range(16)]
    applied = [space.candidate(neighbour, 1) for neighbour in neighbours if neighbour is not None]
    found = [candidate for candidate in applied if candidate is not None]
    assert found
    for candidate in found:
        assert rewrite_of(json.loads(encode_trace(candidate.trace))[0]) == rewrite_of(
            json.loads(encode_trace(trace))[0]
        )
    features = space.features(found[0])
    assert features.shape[1] == 164
    assert np.isfinite(features).all()


def test_a_trace_carries_its_rewrite_in_its_text() -> None:
    workload = workload_of(network(11, 14, 32, 64))
    mod, space = load_ir(workload.ir), space_of(workload, TARGET)
    candidate = space.candidate(rewritten_sketches(space)[0], 1)
    text = encode_trace(candidate.trace)
    assert decode_trace(text) == text
    schedule = apply_trace(mod, text)
    assert encode_trace(schedule.trace) == text
    assert tvm_ffi.structural_equal(schedule.mod, candidate.mod)
    assert rewrite_of(json.loads(without_postproc(text))[0]) in WINOGRAD
    instructions, decisions = json.loads(text)
    unknown = [instructions[0], ["Annotate", ["b0", '"winograd-4.0"'], [REWRITE], []]]
    late = [*instructions[:3], ["Annotate", ["b0", '"winograd-4.1"'], [REWRITE], []]]
    for refused in (unknown, late):
        with pytest.raises(InvalidTrace, match="rewrite"):
            decode_trace(json.dumps([refused, []]))
    with pytest.raises(InvalidTrace):
        apply_trace(load_ir(workload_of(network(8, 8, 32, 32, group=2, epilogue=False)).ir), text)
    with pytest.raises(InvalidTrace):  # Without its rewrite it finds none of its blocks.
        apply_trace(mod, json.dumps([[instructions[0], *instructions[2:]], [[i - 1, d] for i, d in decisions]]))


def test_stock_tvm_is_given_no_trace_that_it_cannot_apply(tmp_path: Path) -> None:
    workload = workload_of(network(11, 14, 32, 64))
    space = space_of(workload, TARGET)
    rewritten = rewritten_sketches(space)
    direct = next(sketch for sketch in space.sketches if sketch not in rewritten)
    traces = [encode_trace(space.candidate(sketch, 1).trace) for sketch in (rewritten[0], direct)]
    assert export_metaschedule([(workload, trace, 1e-3) for trace in traces], TARGET, tmp_path) == 1


def test_a_deployed_model_transforms_its_weights_once_and_as_they_were_measured() -> None:
    proto = network(11, 14, 32, 64)
    ingested, weights = ingest_here(proto)
    workload = workload_of(proto)
    space = space_of(workload, TARGET)
    candidate = space.candidate(rewritten_sketches(space)[0], 5)
    scheduled = schedule_model(ingested, TARGET, {workload.digest: encode_trace(candidate.trace)})
    assert scheduled.tuned == (workload.digest,)
    assert not any("prepack" in name and "weight" in name for name in call_counts(scheduled.module))
    inputs = inputs_of(ingested)
    (found,) = run(scheduled.module, ingested, weights, inputs, to_tvm_target(TARGET))
    np.testing.assert_allclose(found, expected(proto, inputs)[0], rtol=1e-4, atol=1e-4)

    target = to_tvm_target(TARGET)
    with target:
        machine = tvm.relax.VirtualMachine(tvm.compile(scheduled.module, target=target), tvm.cpu())
    bound = [value.numpy() for value in machine[TRANSFORM]([tvm.runtime.tensor(weights[s.name]) for s in ingested.params])]  # fmt: skip
    built = build(candidate.mod, target)
    ((index, pack),) = built.packings.items()
    packed = tvm.runtime.empty(built.packed[index].shape, "float32")
    pack(tvm.runtime.tensor(np.ascontiguousarray(weights["w"].transpose(2, 3, 1, 0))), packed)
    assert sum(value.shape == packed.numpy().shape and np.array_equal(value, packed.numpy()) for value in bound) == 1


@pytest.mark.parametrize("mcpu", ["znver5", "haswell", "x86-64"])
@pytest.mark.parametrize(("rows", "columns"), [(14, 14), (7, 7), (4, 4), (2, 2), (13, 13), (1, 1)])
def test_register_tiles_fit_the_registers_and_divide_the_tiles(mcpu: str, rows: int, columns: int) -> None:
    unit = VectorUnit.of(Target.parse({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}), 32)
    tiles = _register_tiles(rows, columns, 64, unit)
    assert len(tiles) == 2
    for tile in tiles:
        vectors = tile.channels // unit.lanes
        assert tile.rows * tile.columns * vectors + vectors + 1 <= unit.registers
        assert (rows % tile.rows, columns % tile.columns, 64 % tile.channels) == (0, 0, 0)


def test_few_tiles_do_not_pay_for_larger_weights() -> None:
    mod = load_ir(workload_of(network(7, 7, 32, 64)).ir)
    assert find_convolution(mod["main"]) is not None
    assert winograd_sketches(mod, TARGET) == []


def test_a_workload_with_narrow_indices_is_searched_without_it() -> None:
    """TVM's own workloads, which are no graph's."""
    mod = IRModule({"main": te.create_prim_func(te_workload.conv2d_nhwc(1, 14, 14, 32, 32, 3, 1, 1))})
    workload = Workload(digest=workload_digest(mod), ir=save_ir(mod))
    assert winograd_sketches(mod, TARGET) == []
    space = space_of(workload, TARGET)
    found = [space.candidate(sketch, 7919 * seed) for seed, sketch in enumerate(space.sketches, 1)]
    assert sum(candidate is not None and len(space.features(candidate)) > 0 for candidate in found) > 3
