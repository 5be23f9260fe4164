"""Whole models as GPU programs, made and run without a GPU: what is launched, where memory lies, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pitchpipe.errors import PitchpipeError, UnsupportedOperator
from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.gpu.executable import GpuModel
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program
from pitchpipe.gpu.testing import FakeDriver
from pitchpipe.model.strip import strip_onnx
from pitchpipe.target_kind import kind_of
from tests.compiler.gpu_programs import TARGET
from tests.compiler.models import model, node, small_network
from tests.compiler.test_compiled_arrays import AWKWARD, values
from tuner.deploy import gpu_model
from tuner.deploy.build import schedule_model
from tuner.deploy.flow import Flow, Step, Tensor, View, read_flow
from tuner.deploy.gpu_model import assemble, compile_gpu_model, settle
from tuner.ingest import IngestLimits
from tuner.ingest.onnx_reader import read_onnx
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled
from tuner.measure.gpu_lowered import KernelCall, Lowered
from tuner.tvm_compat import IRModule, PrimFunc, tvm


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: str
    shape: tuple[int, ...]


def attention() -> Any:
    """Two heads over 16 tokens of width 32, its output projected, beside its own input."""
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.2, (32, 32)).astype(np.float32) for name in ("q", "k", "v", "o")}
    weights |= {"scale": np.array(0.25, np.float32), "heads": np.array([16, 2, 16]), "flat": np.array([16, 32])}
    nodes = [
        *(node("MatMul", ["x", name], [f"{name}_flat"]) for name in "qkv"),
        *(node("Reshape", [f"{name}_flat", "heads"], [f"{name}_heads"]) for name in "qkv"),
        node("Transpose", ["q_heads"], ["qt"], perm=[1, 0, 2]),
        node("Transpose", ["k_heads"], ["kt"], perm=[1, 2, 0]),
        node("Transpose", ["v_heads"], ["vt"], perm=[1, 0, 2]),
        node("MatMul", ["qt", "kt"], ["raw"]),
        node("Mul", ["raw", "scale"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "vt"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[1, 0, 2]),
        node("Reshape", ["back", "flat"], ["joined"]),
        node("MatMul", ["joined", "o"], ["projected"]),
        node("Add", ["projected", "x"], ["y"]),
    ]
    return model(nodes, {"x": [16, 32]}, ["y"], weights)


def perceptron() -> Any:
    rng = np.random.default_rng(2)
    weights = {"w1": rng.normal(size=(24, 48)), "b1": rng.normal(size=48), "w2": rng.normal(size=(48, 8))}
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b1"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w2"], ["y"]),
    ]
    return model(nodes, {"x": [5, 24]}, ["y"], {name: each.astype(np.float32) for name, each in weights.items()})


def awkward_results() -> Any:
    """Results that are an argument, a constant, a function of weights alone, and a view of another result."""
    nodes = [
        node("Add", ["x", "w"], ["sum"]),
        node("Reshape", ["sum", "shape"], ["seen"]),
        node("Identity", ["x"], ["same"]),
        node("Mul", ["w", "w"], ["square"]),
        node("Constant", [], ["fixed"], value_floats=[1.0, 2.0]),
    ]
    names = ["sum", "seen", "same", "square", "fixed"]
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "shape": np.array([12])}
    return model(nodes, {"x": [3, 4]}, names, weights)


def stored_results() -> Any:
    """A weight, and a function of it: nothing is computed when the model runs."""
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    return model([node("Mul", ["w", "w"], ["square"])], {"x": [3, 4]}, ["square", "w"], weights)


MODELS = {
    "convolutions": (small_network, (1, 8, 12, 12)),
    "attention": (attention, (16, 32)),
    "perceptron": (perceptron, (5, 24)),
    "awkward results": (awkward_results, (3, 4)),
    "stored results": (stored_results, (3, 4)),
}


def eager(made: Any, x: Any) -> list[Any]:
    import onnxruntime

    return list(onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x}))


def interpreted(function: Any) -> Any:
    """A kernel of the fake driver: the unscheduled tensor function, compiled for the host."""
    built = tvm.compile(IRModule({"main": function.with_attr("global_symbol", "main")}), target="llvm")["main"]
    types = [(str(param.ty.dtype), tuple(map(int, param.ty.shape))) for param in function.params]

    def kernel(driver: FakeDriver, _launch: Any, *addresses: int) -> None:
        memory = []
        for address, (dtype, shape) in zip(addresses, types, strict=True):
            kind = np.dtype(dtype)
            memory.append(np.frombuffer(driver.view(address, int(np.prod(shape)) * kind.itemsize), kind).reshape(shape))
        tensors = [tvm.runtime.tensor(array) for array in memory]
        built(*tensors)
        for array, tensor in zip(memory, tensors, strict=True):
            array[...] = tensor.numpy()

    return kernel


def as_it_is(name: str, function: Any) -> Lowered:
    """As if one kernel did all that the function does."""
    call = KernelCall(
        kernel=name,
        arguments=tuple(range(len(function.params))),
        grid=(1, 1, 1),
        block=(1, 1, 1),
        shared_bytes=0,
    )
    return Lowered(calls=(call,), workspaces=(), source=name)


@pytest.mark.parametrize("name", MODELS)
def test_a_program_computes_what_the_model_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow, memory and copies are those of a deployment; each kernel is the function it was made of, run on the host."""
    make, shape = MODELS[name]
    made = make()
    stripped = strip_onnx(made.SerializeToString())
    ingested = read_onnx(stripped.data, IngestLimits())
    monkeypatch.setattr(type(kind_of(TARGET)), "default_schedule", lambda self, module, target: module)
    module = schedule_model(ingested, TARGET, {}).module
    functions = {v.name_hint: f for v, f in module.functions.items() if isinstance(f, PrimFunc)}
    flow = read_flow(module)
    settle(flow, lambda view: gpu_model._copy(view, functions, TARGET))
    used = {step.function for step in (*flow.prepare, *flow.run)}
    lowered = {name: as_it_is(name, functions[name]) for name in used}
    program = assemble(flow, lowered, {one.source: b"code" for one in lowered.values()})
    driver = FakeDriver({name: interpreted(functions[name]) for name in used})
    ours = GpuModel(
        decode(encode(program)),
        [Spec(spec.name, spec.dtype, tuple(spec.shape)) for spec in ingested.inputs],
        [Spec(spec.name, spec.dtype, tuple(spec.shape)) for spec in ingested.params],
        using=lambda: driver,
    )
    ours.bind(stripped.weights)
    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        found = ours(x)
        results = list(found) if isinstance(found, tuple) else [found]
        for result, right in zip(results, eager(made, x), strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-4)


def here() -> bool:
    try:
        DeviceCompiler("sm_90")
    except NotCompiled:
        return False
    return True


@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_is_compiled_without_a_gpu(name: str) -> None:
    make, shape = MODELS[name]
    ingested = read_onnx(strip_onnx(make().SerializeToString()).data, IngestLimits())
    module = schedule_model(ingested, TARGET, {}).module
    program = compile_gpu_model(module, TARGET)
    assert decode(encode(program)) == program
    assert all(code[:4] == b"\x7fELF" for code in program.codes)
    assert len({kernel.name for kernel in program.kernels}) == len(program.kernels)
    for kernel in program.kernels:
        assert kernel.name.encode() in program.codes[kernel.code]
    assert [program.buffers[at].shape for at in program.at(Place.INPUT)] == [shape]
    taken = {one.buffer for launch in program.run for one in launch.arguments if isinstance(one, Pointer)}
    for at in (*program.at(Place.OUTPUT), *program.at(Place.RESIDENT)):
        assert at in taken
    assert program.in_tuple == (name in ("awkward results", "stored results"))
    again = compile_gpu_model(schedule_model(ingested, TARGET, {}).module, TARGET)
    assert encode(again) == encode(program), "equal models have equal programs"


@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
def test_equal_functions_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(16, 16)).astype(np.float32) for n in range(4)}
    nodes = [node("MatMul", [f"a{n}", f"w{n}"], [f"a{n + 1}"]) for n in range(4)]
    data = strip_onnx(model(nodes, {"a0": [16, 16]}, ["a4"], weights).SerializeToString()).data
    program = compile_gpu_model(schedule_model(read_onnx(data, IngestLimits()), TARGET, {}).module, TARGET)
    assert (len(program.codes), len(program.run)) == (1, 4)
    (scratch,) = program.at(Place.SCRATCH)
    assert program.buffers[scratch].size_bytes == 2 * 16 * 16 * 4, "two buffers in turn"


@pytest.mark.long
@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
def test_kernels_of_functions_with_long_names_are_told_apart() -> None:
    nodes = [
        *(node("Sin" if n % 2 else "Cos", [f"{way}{n}"], [f"{way}{n + 1}"]) for way in "ab" for n in range(80)),
        node("Exp", ["a80"], ["a"]),
        node("Neg", ["b80"], ["b"]),
    ]
    data = strip_onnx(model(nodes, {"a0": [16], "b0": [16]}, ["a", "b"], {}).SerializeToString()).data
    module = schedule_model(read_onnx(data, IngestLimits()), TARGET, {}).module
    assert sum(len(variable.name_hint) > 512 for variable in module.functions) == 2
    names = [kernel.name for kernel in compile_gpu_model(module, TARGET).kernels]
    assert len(set(names)) == len(names) == 2


@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
def test_a_function_that_the_device_compiler_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ingested = read_onnx(strip_onnx(perceptron().SerializeToString()).data, IngestLimits())
    module = schedule_model(ingested, TARGET, {}).module
    whole = gpu_model.lower

    def spoiled(mod: Any, target: Any, name: str = "main") -> Lowered:
        return replace(whole(mod, target, name), source="this is no CUDA")

    monkeypatch.setattr(gpu_model, "lower", spoiled)
    with pytest.raises(PitchpipeError, match=r"the compiler refused \w*matmul\w*: .*error"):
        compile_gpu_model(module, TARGET)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("how", AWKWARD)
def test_any_array_of_numpys_is_taken(dtype: str, how: str) -> None:
    def copy(driver: FakeDriver, _launch: Any, source: int, to: int) -> None:
        driver._write(to, bytes(driver.view(source, given.nbytes)))

    given = values(dtype)
    launch = Launch(kernel=0, arguments=(Pointer(buffer=0), Pointer(buffer=1)), grid=(1, 1, 1), block=(1, 1, 1))
    program = Program(
        codes=(b"code",),
        kernels=(Kernel(code=0, name="copy"),),
        buffers=tuple(Buffer(place=place, dtype=dtype, shape=given.shape) for place in (Place.INPUT, Place.OUTPUT)),
        run=(launch,),
    )
    driver = FakeDriver({"copy": copy})
    awkward = AWKWARD[how](given)
    found = GpuModel(program, [Spec("x", dtype, given.shape)], [], using=lambda: driver)(awkward)
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, np.asarray(awkward))


def test_work_that_is_left_to_the_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ingested = read_onnx(strip_onnx(perceptron().SerializeToString()).data, IngestLimits())
    monkeypatch.setattr(type(kind_of(TARGET)), "default_schedule", lambda self, module, target: module)
    with pytest.raises(UnsupportedOperator, match=r"matmul\w* cannot be run by a GPU alone"):
        compile_gpu_model(schedule_model(ingested, TARGET, {}).module, TARGET)


@st.composite
def flows(draw: Any) -> tuple[Flow, dict[str, Lowered]]:
    """Random graphs of functions of one, two or three kernels, with workspaces, and views of any tensor as results."""

    def tensor(place: Place) -> View:
        count = draw(st.integers(1, 300))
        return View(
            tensor=Tensor(buffer=Buffer(place=place, dtype="int64", shape=(count,))), dtype="int64", shape=(count,)
        )

    flow, lowered = Flow(), dict[str, Lowered]()
    flow.inputs = [tensor(Place.INPUT) for _ in range(draw(st.integers(1, 3)))]
    flow.weights = [tensor(Place.WEIGHT) for _ in range(draw(st.integers(0, 3)))]

    def steps(known: list[View], into: list[Step], count: int) -> None:
        for _ in range(count):
            reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
            writes = [tensor(Place.SCRATCH) for _ in range(draw(st.integers(1, 2)))]
            name = f"f{len(lowered)}"
            lowered[name] = function(name, len(reads), len(writes))
            into.append(Step(function=name, arguments=(*reads, *writes)))
            known += writes

    def function(name: str, reads: int, writes: int) -> Lowered:
        """Each kernel but the last makes a workspace of what was read and of the workspace before it."""
        sizes = draw(st.lists(st.integers(8, 3000).map(lambda n: 8 * n), max_size=2))
        calls, before = [], list(range(reads))
        params = reads + writes
        for at in range(len(sizes)):
            calls.append((f"{name}_{at}_{len(before)}", (*before, params + at)))
            before = [*before, params + at]
        calls.append((f"{name}_last_{len(before)}", (*before, *range(reads, params))))
        made = [
            KernelCall(kernel=kernel, arguments=arguments, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0)
            for kernel, arguments in calls
        ]
        return Lowered(calls=tuple(made), workspaces=tuple(sizes), source=name)

    if flow.weights:
        prepared = list(flow.weights)
        steps(prepared, flow.prepare, draw(st.integers(0, 3)))
    else:
        prepared = []
    known = [*flow.inputs, *prepared]
    steps(known, flow.run, draw(st.integers(1, 10)))
    flow.outputs, flow.in_tuple = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4)), True
    return flow, lowered


def mixed(reads: list[Any], count: int, which: int) -> Any:
    """Numbers that tell everything that was read apart."""
    total = sum((at + 2) * int(np.bitwise_xor.reduce(one * (at + 3))) for at, one in enumerate(reads)) + which
    return (np.arange(count, dtype=np.int64) + 1) * np.int64(total % 1_000_003)


@settings(max_examples=150, deadline=None)
@given(flows())
def test_random_graphs_compute_the_same_in_planned_memory(found: tuple[Flow, dict[str, Lowered]]) -> None:
    """A buffer that another overwrites too early, or that is read before it is written, changes what comes out."""
    flow, lowered = found
    plain = settled(flow, lowered)
    program = assemble(flow, lowered, {one.source: b"code" for one in lowered.values()})
    driver = device_of(flow, lowered)
    specs = [
        [Spec(f"t{at}", "int64", program.buffers[at].shape) for at in program.at(place)]
        for place in (Place.INPUT, Place.WEIGHT)
    ]
    ours = GpuModel(program, *specs, using=lambda: driver)
    rng = np.random.default_rng(0)
    weights = {spec.name: rng.integers(0, 1000, spec.shape) for spec in specs[1]}
    ours.bind(weights)
    for seed in range(2):
        given = [np.random.default_rng(seed).integers(0, 1000, spec.shape) for spec in specs[0]]
        right = evaluated(plain, lowered, given, list(weights.values()))
        for result, view in zip(ours(*given), plain.outputs, strict=True):
            np.testing.assert_array_equal(result, right[id(view.tensor)])


def settled(flow: Flow, lowered: dict[str, Lowered]) -> Flow:
    """Settles a flow whose tensors are of int64, adding kernels that copy to `lowered`; gives the flow as it was before."""
    plain = replace(flow, prepare=list(flow.prepare), run=list(flow.run), outputs=list(flow.outputs))

    def copying(view: View) -> str:
        name = f"copy_{view.shape[0]}"
        call = KernelCall(kernel=name, arguments=(0, 1), grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=0)
        lowered[name] = Lowered(calls=(call,), workspaces=(), source=name)
        return name

    settle(flow, copying)
    return plain


def device_of(flow: Flow, lowered: dict[str, Lowered]) -> FakeDriver:
    """A device that has the kernels of a flow. What one writes tells apart all that it read."""
    counts: dict[str, list[int]] = {}
    for step in (*flow.prepare, *flow.run):
        of = lowered[step.function]
        extents = [view.shape[0] for view in step.arguments] + [size // 8 for size in of.workspaces]
        for call in of.calls:
            counts[call.kernel] = [extents[int(at)] for at in call.arguments if isinstance(at, int)]

    def kernel(name: str) -> Any:
        def run(driver: FakeDriver, _launch: Any, *addresses: int) -> None:
            memory = [
                np.frombuffer(driver.view(address, 8 * count), np.int64)
                for address, count in zip(addresses, counts[name], strict=True)
            ]
            if name.startswith("copy"):
                memory[1][...] = memory[0]
                return
            reads = int(name.rpartition("_")[2])
            for which, to in enumerate(memory[reads:]):
                to[...] = mixed(memory[:reads], len(to), which)

        return run

    return FakeDriver({name: kernel(name) for name in counts})


def evaluated(flow: Flow, lowered: dict[str, Lowered], inputs: list[Any], weights: list[Any]) -> dict[int, Any]:
    """Every tensor's right value, by the id of the tensor: each step has new arrays for everything that it writes."""
    right: dict[int, Any] = {id(view.tensor): one for view, one in zip(flow.inputs, inputs, strict=True)}
    right |= {id(view.tensor): one for view, one in zip(flow.weights, weights, strict=True)}
    for step in (*flow.prepare, *flow.run):
        evaluate(lowered[step.function], step, right)
    return right


def evaluate(lowered: Lowered, step: Step, right: dict[int, Any]) -> None:
    """A step with a new array for everything that it writes."""
    keys = [id(view.tensor) for view in step.arguments] + [-1 - at for at in range(len(lowered.workspaces))]
    counts = [view.shape[0] for view in step.arguments] + [size // 8 for size in lowered.workspaces]
    for call in lowered.calls:
        places = [at for at in call.arguments if isinstance(at, int)]
        reads = int(call.kernel.rpartition("_")[2])
        before = [right[keys[at]] for at in places[:reads]]
        for which, at in enumerate(places[reads:]):
            right[keys[at]] = mixed(before, counts[at], which)
