"""Prepared and finished models compute what the original computes, with and without schedules that move weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pitchpipe.errors import InvalidModel
from pitchpipe.model.strip import strip_onnx
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tests.compiler.models import attention, model, node, small_network
from tests.compiler.programs import TARGET, UNOPTIMISED
from tuner.deploy.finish import finish
from tuner.graph.prepare import MAIN, TRANSFORM, call_counts, prepare, workload_module
from tuner.ingest import IngestedModel, IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.tasks import workload_functions
from tuner.tvm_compat import PrimFunc, Schedule, Trace, load_ir, ms, relax, to_tvm_target, tvm


def run(
    finished: Any,
    ingested: IngestedModel,
    weights: dict[str, np.ndarray],
    inputs: list[np.ndarray],
    target: Any = UNOPTIMISED,
) -> list[Any]:
    """Outputs of a finished module, its weights bound. Tests of schedules name TVM's target with LLVM's optimisations."""
    with target:
        executable = tvm.compile(finished, target=target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    bound = machine[TRANSFORM]([tvm.runtime.tensor(weights[spec.name]) for spec in ingested.params])
    found = machine[MAIN](*map(tvm.runtime.tensor, inputs), *bound)
    return [found.numpy()] if hasattr(found, "numpy") else [value.numpy() for value in found]


def expected(proto: Any, inputs: list[np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def inputs_of(ingested: IngestedModel, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 20, spec.shape).astype(spec.dtype)
        if spec.dtype.startswith("int")
        else rng.normal(0, 1, spec.shape).astype(spec.dtype)
        for spec in ingested.inputs
    ]


def ingest_here(proto: Any) -> tuple[IngestedModel, dict[str, np.ndarray]]:
    """The reader without its child: these models are ours."""
    stripped = strip_onnx(proto.SerializeToString())
    return read_onnx(stripped.data, IngestLimits()), stripped.weights


@pytest.mark.parametrize("make", [small_network, attention])
def test_a_baseline_build_computes_what_onnx_runtime_computes(make: Callable[[], Any]) -> None:
    proto = make()
    ingested, weights = ingest_here(proto)
    inputs = inputs_of(ingested)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    for ours, theirs in zip(found, expected(proto, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def sampled_trace(workload: Any, seed: int) -> str:
    """A trace that MetaSchedule draws, its postprocessors included; they change the layout of weights."""
    context = ms.TuneContext(
        mod=workload, target=to_tvm_target(TARGET), space_generator="post-order-apply", rand_state=seed, num_threads=1
    )
    spaces = context.generate_design_space()
    for attempt in range(20):
        schedule = Schedule(workload, seed=seed + attempt, error_render_level="none")
        Trace(spaces[attempt % len(spaces)].trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        if all(step.apply(schedule) for step in context.space_generator.postprocs):
            return encode_trace(schedule.trace)
    raise AssertionError("no valid sample")


def test_a_tuned_model_with_weights_laid_out_anew_computes_the_same() -> None:
    kind_of(TARGET).load_intrinsics()
    proto = small_network()
    ingested, weights = ingest_here(proto)
    prepared = prepare(load_ir(ingested.ir), TARGET)
    traces = []
    for variable, function, _ in workload_functions(prepared):
        if "conv2d" in variable.name_hint or "matmul" in variable.name_hint:
            traces.append(sampled_trace(workload_module(function), seed=3))
            prepared.update_func(variable, apply_trace(workload_module(function), traces[-1]).mod["main"])
    assert sum("layout_rewrite_preproc" in trace for trace in traces) >= 2
    finished = finish(prepared, TARGET)
    inputs = inputs_of(ingested)
    (found,) = run(finished, ingested, weights, inputs, to_tvm_target(TARGET))
    np.testing.assert_allclose(found, expected(proto, inputs)[0], rtol=1e-4, atol=1e-5)
    # The new layouts are made once, when weights are bound.
    assert not any("prepack" in name and "weight" in name for name in call_counts(finished))


def test_weights_are_transformed_outside_of_main() -> None:
    ingested, _ = ingest_here(small_network())
    operators = " ".join(call_counts(prepare(load_ir(ingested.ir), TARGET)))
    for work in ("sqrt", "divide", "subtract", "negative"):
        assert work not in operators
    # One transpose into NHWC at the entrance, one at the pooled end; none of a weight.
    assert operators.count("transpose") <= 2


def test_padding_and_clipping_fuse_into_convolutions() -> None:
    ingested, _ = ingest_here(small_network())
    names = list(call_counts(prepare(load_ir(ingested.ir), TARGET)))
    assert sum("conv2d" in name for name in names) == 2
    assert not any("pad" in name or "transpose" in name for name in names[1:-2])
    assert any("conv2d" in name and "relu_minimum" in name for name in names)  # max with 0 is relu


def test_an_encoder_block_has_no_unit_dimensions_and_fused_residuals() -> None:
    ingested, _ = ingest_here(attention())
    prepared = prepare(load_ir(ingested.ir), TARGET)
    counts = call_counts(prepared)
    products = {name: prepared[name] for name in counts if "matmul" in name or "einsum" in name}
    assert all(int(function.params[-1].ty.shape[0]) > 1 for function in products.values())
    # One projection for queries, keys and values; the scale and the mask follow the scores, the residual follows the
    # output projection; permutations are in the scores and in what is weighted by them.
    assert sorted("_".join(_operators(name)) for name in products) == [
        "einsum",
        "einsum_divide_add",
        "matmul_add",
        "matmul_add",
    ]
    assert sum(counts[name] for name in products) == 4
    assert not any("transpose" in name or "reshape" in name for name in counts)


def _operators(name: str) -> list[str]:
    return [part.rstrip("0123456789") for part in name.removeprefix("fused_").split("_")]


def test_preparing_the_same_model_twice_gives_the_same_functions() -> None:
    ingested, _ = ingest_here(small_network())
    first, second = (prepare(load_ir(ingested.ir), TARGET) for _ in range(2))
    digests = [[(name.name_hint, digest) for name, _, digest in workload_functions(each)] for each in (first, second)]
    assert digests[0] == digests[1]
    assert [name for name, _ in digests[0]] == list(call_counts(first))


def test_a_model_without_weights_is_prepared_and_run() -> None:
    proto = model([node("Relu", ["x"], ["h"]), node("Add", ["h", "x"], ["y"])], {"x": [2, 3]}, ["y"])
    ingested, weights = ingest_here(proto)
    inputs = inputs_of(ingested)
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    np.testing.assert_allclose(found, expected(proto, inputs)[0])


def test_a_batch_norm_without_a_convolution_is_arithmetic() -> None:
    rng = np.random.default_rng(0)
    norm = {name: rng.uniform(0.5, 1.5, 6).astype(np.float32) for name in "gbmv"}
    proto = model([node("BatchNormalization", ["x", *"gbmv"], ["y"])], {"x": [2, 6, 4, 4]}, ["y"], norm)
    ingested, weights = ingest_here(proto)
    inputs = inputs_of(ingested)
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    np.testing.assert_allclose(found, expected(proto, inputs)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_norm_is_in_the_weights_of_the_convolution_before_it(axes: int, groups: int) -> None:
    rng = np.random.default_rng(0)
    given = {name: rng.uniform(0.5, 1.5, 6).astype(np.float32) for name in "gbmvc"}
    given["w"] = rng.standard_normal((6, 4 // groups, *[3] * axes)).astype(np.float32)
    convolution = node("Conv", ["x", "w", "c"], ["h"], group=groups, pads=[1] * (2 * axes))
    proto = model(
        [convolution, node("BatchNormalization", ["h", *"gbmv"], ["y"])], {"x": [2, 4, *[5] * axes]}, ["y"], given
    )
    ingested, weights = ingest_here(proto)
    prepared, inputs = prepare(load_ir(ingested.ir), TARGET), inputs_of(ingested)
    assert not any("multiply" in name for name in call_counts(prepared))
    (found,) = run(finish(prepared, TARGET), ingested, weights, inputs)
    np.testing.assert_allclose(found, expected(proto, inputs)[0], rtol=1e-4, atol=1e-5)


def test_binding_weights_uses_all_cores() -> None:
    weights = {"w": np.ones((512, 256), np.float32)}
    ingested, _ = ingest_here(model([node("Gemm", ["x", "w"], ["y"], transB=1)], {"x": [4, 256]}, ["y"], weights))
    finished = finish(prepare(load_ir(ingested.ir), TARGET), TARGET)
    (transpose,) = [name for name in functions_of(finished) if name.startswith("bind_")]
    assert "T.parallel" in finished[transpose].script()
    # What main calls is left to the traces that the caller has.
    (product,) = call_counts(finished)
    assert "T.parallel" not in finished[product].script()


def test_on_a_gpu_nothing_is_left_without_threads() -> None:
    ingested, _ = ingest_here(small_network())
    target = Target.parse({"kind": "cuda", "arch": "sm_90a"})
    finished = finish(prepare(load_ir(ingested.ir), target), target)
    assert all("threadIdx.x" in finished[name].script() for name in functions_of(finished))


def functions_of(module: Any) -> list[str]:
    return [variable.name_hint for variable, value in module.functions.items() if isinstance(value, PrimFunc)]


def test_indices_out_of_bounds_read_no_foreign_memory() -> None:
    proto = attention()
    ingested, weights = ingest_here(proto)
    inputs = inputs_of(ingested)
    inputs[0][:] = 2**40
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    assert all(np.isfinite(value).all() for value in found)


def test_a_weight_used_in_two_ways_keeps_its_meaning() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 1, (8, 8)).astype(np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Gemm", ["a", "w"], ["b"], transB=1),
        node("MatMul", ["b", "b2"], ["y"]),
        node("Transpose", ["b"], ["b2"], perm=[1, 0]),
    ]
    proto = model(nodes, {"x": [8, 8]}, ["y"], weights)
    ingested, values = ingest_here(proto)
    sorted_proto = model([nodes[0], nodes[1], nodes[3], nodes[2]], {"x": [8, 8]}, ["y"], weights)
    inputs = inputs_of(ingested)
    (found,) = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, values, inputs)
    np.testing.assert_allclose(found, expected(sorted_proto, inputs)[0], rtol=1e-4, atol=1e-4)


def test_shapes_that_disagree_with_the_model_are_refused() -> None:
    ingested, _ = ingest_here(small_network())
    with pytest.raises(InvalidModel, match="not TVM JSON"):
        load_ir(ingested.ir[:100])
