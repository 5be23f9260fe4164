"""A model splits into its distinct tensor programs, with their weights, costs and kinds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, TaskKind
from tests.compiler.models import attention, model, node, small_network
from tests.compiler.programs import TARGET
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import IngestLimits, container, ingest_bytes
from tuner.ingest.onnx_reader import read_onnx
from tuner.schedule.trace import apply_trace
from tuner.tasks import split, split_ingested, workload_functions
from tuner.tvm_compat import load_ir
from tuner.workload.digest import workload_digest

EXAMPLE = Path(__file__).parents[2] / "examples" / "make_resnet18.py"


def tasks_of(proto: Any, target: Target = TARGET) -> list[Task]:
    return split(prepare(load_ir(read_onnx(proto.SerializeToString(), IngestLimits()).ir), target), target)


@pytest.fixture(scope="module")
def resnet18() -> bytes:
    spec = importlib.util.spec_from_file_location("make_resnet18", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return strip_onnx(example.resnet18().SerializeToString()).data


@pytest.fixture(scope="module")
def resnet18_tasks(resnet18: bytes) -> list[Task]:
    return split_ingested(ingest_bytes(resnet18, ModelFormat.ONNX), ModelFormat.ONNX, [TARGET])


@pytest.mark.long
def test_resnet18_has_its_known_number_of_operations(resnet18_tasks: list[Task]) -> None:
    # He et al. (2015), table 1: 1.8e9 multiply-adds.
    assert sum(task.weight * task.flops for task in resnet18_tasks) == pytest.approx(3.64e9, rel=0.01)


def test_resnet18_is_twenty_convolutions_and_a_product(resnet18_tasks: list[Task]) -> None:
    tuned = [task for task in resnet18_tasks if task.kind is TaskKind.TUNED]
    assert sum(task.weight for task in tuned if "conv2d" in task.name) == 20
    assert [task.name for task in tuned if "conv2d" not in task.name] == ["matmul_add 1x1000"]
    assert {task.weight for task in tuned} == {1, 2}
    fixed = {task.name.split()[0] for task in resnet18_tasks if task.kind is TaskKind.FIXED}
    assert fixed == {"max_pool2d", "mean"}


def test_convolutions_of_one_kind_are_one_group(resnet18_tasks: list[Task]) -> None:
    groups = {task.group for task in resnet18_tasks if task.name.startswith("conv2d_add_relu")}
    assert len(groups) == 1
    assert groups.isdisjoint(task.group for task in resnet18_tasks if task.name.startswith("conv2d_add_add_relu"))


def test_bytes_are_what_is_read_and_written_once(resnet18_tasks: list[Task]) -> None:
    (head,) = (task for task in resnet18_tasks if task.name == "matmul_add 1x1000")
    assert head.bytes == 4 * (512 + 512 * 1000 + 1000 + 1000)


def test_a_workload_is_what_its_digest_says_and_takes_traces(resnet18_tasks: list[Task]) -> None:
    for task in resnet18_tasks:
        module = load_ir(task.workload.ir)
        assert workload_digest(module) == task.workload.digest
        apply_trace(module, '[[["GetSBlock",[],["stage0","main"],["b0"]]],[]]')


def test_functions_of_a_prepared_model_are_found_by_digest(resnet18: bytes, resnet18_tasks: list[Task]) -> None:
    prepared = prepare(load_ir(read_onnx(resnet18, IngestLimits()).ir), TARGET)
    found = [(variable.name_hint, digest) for variable, _, digest in workload_functions(prepared)]
    assert [name for name, _ in found] == list(call_counts(prepared))
    assert list(dict.fromkeys(digest for _, digest in found)) == [task.workload.digest for task in resnet18_tasks]


def test_other_widths_are_other_tasks_of_the_same_group() -> None:
    def dense(width: int) -> Any:
        weights = {"w": np.ones((64, width), np.float32)}
        return model([node("MatMul", ["x", "w"], ["y"])], {"x": [32, 64]}, ["y"], weights)

    (narrow,), (wide,) = tasks_of(dense(64)), tasks_of(dense(128))
    assert narrow.workload.digest != wide.workload.digest
    assert narrow.group == wide.group
    assert wide.flops == 2 * 32 * 64 * 128


def test_small_work_and_data_movement_are_fixed() -> None:
    def kinds(nodes: list[Any], shape: list[int], weights: dict[str, Any] | None = None) -> set[TaskKind]:
        return {task.kind for task in tasks_of(model(nodes, {"x": shape}, ["y"], weights))}

    assert kinds([node("Transpose", ["x"], ["y"], perm=[1, 0])], [512, 512]) == {TaskKind.FIXED}
    assert kinds([node("Relu", ["x"], ["y"])], [512, 512]) == {TaskKind.FIXED}
    assert kinds([node("Softmax", ["x"], ["y"])], [2, 8]) == {TaskKind.FIXED}
    assert kinds([node("Softmax", ["x"], ["y"])], [512, 512]) == {TaskKind.TUNED}
    small = {"w": np.ones((8, 8), np.float32)}
    assert kinds([node("MatMul", ["x", "w"], ["y"])], [8, 8], small) == {TaskKind.FIXED}


def test_every_target_gets_its_tasks_and_the_workloads_are_shared() -> None:
    other = TARGET.model_copy(update={"num_cores": 8})
    data = container(read_onnx(attention().SerializeToString(), IngestLimits()))
    found = split_ingested(data, ModelFormat.RELAX, [TARGET, other])
    by_target = {target: [task.workload for task in found if task.target == target] for target in (TARGET, other)}
    assert by_target[TARGET] == by_target[other]
    assert len(by_target[TARGET]) > 5


def test_a_model_splits_for_a_gpu_as_well() -> None:
    cuda = Target.parse({"kind": "cuda", "arch": "sm_90a"})
    work = [sum(task.flops * task.weight for task in tasks_of(attention(), target)) for target in (cuda, TARGET)]
    assert work[0] == pytest.approx(work[1], rel=0.01)


def test_every_task_carries_its_baseline_and_a_default_schedule() -> None:
    tasks = tasks_of(small_network())
    assert {task.kind for task in tasks} == {TaskKind.TUNED, TaskKind.FIXED}
    for task in tasks:
        assert task.baseline == BASELINE_TRACE
        assert task.fixed is not None
    assert {task.kind for task in tasks if task.fixed != BASELINE_TRACE} == {TaskKind.TUNED, TaskKind.FIXED}


def test_a_signature_tells_shapes_apart_from_epilogues(resnet18_tasks: list[Task]) -> None:
    signed = [task.signature for task in resnet18_tasks if task.name.startswith("conv2d_add")]
    assert all(signed)
    assert {one.anchor for one in signed if one} == {"SSSSRRR products"}
    assert {one.operators for one in signed if one} == {"conv2d_add", "conv2d_add_relu", "conv2d_add_add_relu"}
    (head,) = (task.signature for task in resnet18_tasks if task.name == "matmul_add 1x1000")
    assert head is not None
    assert (head.anchor, head.extents) == ("SSR products", (1, 1000, 512))
    assert [argument.shape for argument in head.arguments] == [(1, 512), (512, 1000), (1000,), (1, 1000)]
