"""Register tiles: what is recognised, what the tiles compute, and that they fit the target's registers."""

from __future__ import annotations

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_tasks import tasks_of
from tuner.space.metaschedule import generate
from tuner.space.tiles import VectorUnit, find_contraction, tiled_sketches
from tuner.tvm_compat import Schedule, load_ir, to_tvm_target, tvm


def convolution(stride: int = 1):
    weights = {"w": np.ones((32, 16, 3, 3), np.float32), "b": np.ones(32, np.float32)}
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride, stride]}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], **attributes), node("Relu", ["c"], ["y"])]
    return model(nodes, {"x": [1, 16, 14, 14]}, ["y"], weights)


def dense():
    weights = {"w": np.ones((64, 96), np.float32)}
    return model([node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [24, 64]}, ["y"], weights)


def product_of_activations():
    return model([node("MatMul", ["a", "b"], ["y"])], {"a": [4, 32, 48], "b": [4, 48, 64]}, ["y"])


def workload_of(proto):
    tasks = [task for task in tasks_of(proto) if find_contraction(Schedule(load_ir(task.workload.ir))) is not None]
    assert len(tasks) == 1
    return tasks[0].workload


@pytest.mark.parametrize("proto", [convolution(), convolution(stride=2), dense(), product_of_activations()])
def test_a_tile_computes_what_the_untransformed_program_computes(proto) -> None:
    workload = workload_of(proto)
    mod = load_ir(workload.ir)
    sketches = tiled_sketches(mod, TARGET)
    assert sketches
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in param.shape] for param in mod["main"].params]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def run(module) -> np.ndarray:
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        tvm.compile(module, target=to_tvm_target(TARGET))["main"](*tensors)
        return tensors[-1].numpy()

    expected = run(mod)
    space = generate(workload, TARGET).joined(sketches)
    for number, sketch in enumerate(space.sketches[-len(sketches) :]):
        candidates = [space.candidate(sketch, seed) for seed in range(1, 9)]
        found = [candidate for candidate in candidates if candidate is not None]
        assert found, f"sketch {number} never gave a candidate"
        np.testing.assert_allclose(run(found[0].mod), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mcpu", "lanes", "registers"), [("znver5", 16, 32), ("haswell", 8, 16), ("x86-64", 4, 16)])
def test_the_vector_unit_comes_from_the_target(mcpu: str, lanes: int, registers: int) -> None:
    unit = VectorUnit.of(Target.parse({"kind": "llvm", "mcpu": mcpu, "num-cores": 2}), 32)
    assert (unit.lanes, unit.registers) == (lanes, registers)


def test_what_holds_no_contraction_has_no_tiles() -> None:
    relu = model([node("Relu", ["x"], ["y"])], {"x": [64, 64]}, ["y"])
    (task,) = tasks_of(relu)
    assert tiled_sketches(load_ir(task.workload.ir), TARGET) == []


def test_tiles_are_for_processors() -> None:
    mod = load_ir(workload_of(dense()).ir)
    assert tiled_sketches(mod, Target.parse({"kind": "cuda", "arch": "sm_90"})) == []
