"""A deployment takes schedules of other targets, and runs the default of whatever they do not apply to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.task import TaskKind
from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tuner.deploy.build import build_here, identify
from tuner.graph.prepare import prepare
from tuner.ingest import IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.space.default import default_trace
from tuner.tasks import split
from tuner.tvm_compat import load_ir, relax, tvm

OF_ANOTHER_BLOCK = '[[["GetSBlock",[],["another","main"],["b0"]]],[]]'
FOREIGN_CODE = json.dumps(
    [[["GetSBlock", [], ["stage0", "main"], ["b0"]], ["Annotate", ["b0", '"x"'], ["pragma_import_llvm"], []]], []]
)
LIKE_A_GPU = json.dumps(
    [
        [
            ["GetSBlock", [], ["stage0", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
            ["Bind", ["l1"], ["blockIdx.x"], []],
        ],
        [],
    ]
)


def three_products() -> Any:
    rng = np.random.default_rng(0)
    widths = {"w1": (64, 48), "w2": (48, 32), "w3": (32, 64)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in widths.items()}
    nodes = [node("MatMul", [x, w], [y]) for x, w, y in (("x", "w1", "a"), ("a", "w2", "b"), ("b", "w3", "y"))]
    return model(nodes, {"x": [64, 64]}, ["y"], weights)


def run(executable: Any, manifest: dict[str, Any], weights: dict[str, Any], x: Any) -> Any:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    params = [tvm.runtime.tensor(weights[param["name"]]) for param in manifest["params"]]
    return machine["main"](tvm.runtime.tensor(x), *machine["main_transform_params"](params)).numpy()


def test_a_schedule_that_does_not_apply_is_left_out_and_the_reason_kept() -> None:
    stripped = strip_onnx(three_products().SerializeToString())
    asked = {"model_format": "onnx", "target": TARGET.key}
    tasks = split(prepare(load_ir(read_onnx(stripped.data, IngestLimits()).ir), TARGET), TARGET)
    assert {task.workload.digest for task in tasks} == set(identify(stripped.data, {}, **asked)["signatures"])
    first, second, third = (task.workload for task in tasks if task.kind is TaskKind.TUNED)
    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    expected = x @ stripped.weights["w1"] @ stripped.weights["w2"] @ stripped.weights["w3"]
    good = {third.digest: default_trace(third, TARGET)}
    not_applying = {first.digest: OF_ANOTHER_BLOCK, second.digest: FOREIGN_CODE}
    for traces, refused, tuned in (
        ({**good, **not_applying}, {first.digest, second.digest}, [third.digest]),
        ({**good, first.digest: LIKE_A_GPU}, {first.digest, third.digest}, []),
    ):
        manifest, executable = build_here(stripped.data, traces=traces, **asked)
        assert set(manifest["refused"]) == refused
        assert manifest["tuned"] == tuned
        assert sorted([*manifest["tuned"], *manifest["untuned"]]) == sorted(task.workload.digest for task in tasks)
        np.testing.assert_allclose(run(executable, manifest, stripped.weights, x), expected, rtol=1e-3, atol=1e-3)


def test_calls_that_lay_out_one_weight_alike_share_its_copy() -> None:
    w = np.random.default_rng(0).normal(0, 0.06, (256, 256)).astype(np.float32)
    nodes = [node("MatMul", [f"x{n}", "w"], [f"x{n + 1}"]) for n in range(3)]
    stripped = strip_onnx(model(nodes, {"x0": [8, 256]}, ["x3"], {"w": w}).SerializeToString())
    asked = {"model_format": "onnx", "target": TARGET.key}
    (task,) = split(prepare(load_ir(read_onnx(stripped.data, IngestLimits()).ir), TARGET), TARGET)
    traces = {task.workload.digest: default_trace(task.workload, TARGET)}
    manifest, executable = build_here(stripped.data, traces=traces, **asked)
    assert manifest["tuned"] == [task.workload.digest]
    machine = relax.VirtualMachine(executable, tvm.cpu())
    (laid_out,) = machine["main_transform_params"]([tvm.runtime.tensor(w)])
    assert laid_out.shape != w.shape, "the schedule lays its weight out"
    x = np.random.default_rng(1).normal(size=(8, 256)).astype(np.float32)
    np.testing.assert_allclose(run(executable, manifest, {"w": w}, x), x @ w @ w @ w, rtol=1e-3, atol=1e-3)
