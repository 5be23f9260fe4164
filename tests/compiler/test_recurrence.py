"""Recurrent layers: one tensor function for all steps, its panels, and the layers of torch that become it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.model.comparison import largest_error
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.task import TaskKind, Workload
from tests.compiler.programs import TARGET
from tests.gpu_interpreter import dtype_of
from tuner.execution.steps import propose
from tuner.schedule.recurrence import DTYPES, GATES, Panels, Recurrence, find_recurrence, tiled, workload
from tuner.schedule.rewrites import PANELS
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace
from tuner.search.requests import ProposeRequest
from tuner.space.default import default_trace
from tuner.space.processor import VectorUnit
from tuner.space.recurrence import _choices, recurrent_sketches
from tuner.tvm_compat import IRModule, load_ir, save_ir, to_tvm_target, tvm
from tuner.workload.digest import workload_digest

LAYERS = [
    Recurrence(cell=cell, steps=steps, rows=rows, units=units, backward=backward)
    for cell in GATES
    for steps, rows, units, backward in ((5, 2, 32, False), (4, 3, 20, True), (1, 1, 16, False))
]
HALF_LAYERS = [
    Recurrence(cell=cell, steps=4, rows=2, units=32, backward=cell == "gru", dtype=dtype)
    for cell in GATES
    for dtype in DTYPES
    if dtype != "float32"
]
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
"""Of the largest value: sums and gates are computed in float32, so that a state is rounded up here and down there."""


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def expected_of(layer: Recurrence) -> list[np.ndarray]:
    """The layer in NumPy, in float64 but for its states, which are of the layer's type between steps."""

    def kept(state: np.ndarray) -> np.ndarray:
        return state.astype(dtype_of(layer.dtype)).astype(np.float64)

    wide = {name: array.astype(np.float64) for name, array in _arrays(layer).items()}
    h, c, size = wide["h"], wide["c"], layer.units
    y = np.zeros((layer.steps, layer.rows, size))
    for t in reversed(range(layer.steps)) if layer.backward else range(layer.steps):
        x, u = (np.split(one, layer.gates, axis=-1) for one in (wide["x"][t], h @ wide["w"]))
        if layer.cell == "lstm":
            i, f, g, o = (a + b for a, b in zip(x, u, strict=True))
            c = kept(_sigmoid(f) * c + _sigmoid(i) * np.tanh(g))
            h = _sigmoid(o) * np.tanh(c)
        elif layer.cell == "gru":
            new = np.tanh(x[2] + _sigmoid(x[0] + u[0]) * (u[2] + wide["b"]))
            h = new + _sigmoid(x[1] + u[1]) * (h - new)
        else:
            h = np.tanh(x[0] + u[0]) if layer.cell == "tanh" else np.maximum(x[0] + u[0], 0)
        y[t] = h = kept(h)
    return [one.astype(np.float32) for one in ((y, c) if layer.cell == "lstm" else (y,))]


def arguments(layer: Recurrence) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(what the layer's function reads, its results with no numbers yet), in the order of its parameters."""
    arrays = _arrays(layer)
    names = ["x", "w", *(["b"] if layer.cell == "gru" else []), "h", *(["c"] if layer.cell == "lstm" else [])]
    shapes = [(layer.steps, layer.rows, layer.units), (layer.rows, layer.units)][: 2 if layer.cell == "lstm" else 1]
    return [arrays[name] for name in names], [np.full(shape, np.nan).astype(dtype_of(layer.dtype)) for shape in shapes]


def _arrays(layer: Recurrence) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(layer.units)
    width = layer.gates * layer.units
    shapes = {
        "x": (layer.steps, layer.rows, width),
        "w": (layer.units, width),
        "b": (layer.units,),
        "h": (layer.rows, layer.units),
        "c": (layer.rows, layer.units),
    }
    drawn = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    drawn["w"] /= np.float32(layer.units**0.5)  # else a plain RNN magnifies rounding from step to step
    return {name: array.astype(dtype_of(layer.dtype)) for name, array in drawn.items()}


def _run(mod: object, layer: Recurrence) -> list[np.ndarray]:
    mod = kind_of(TARGET).before_codegen(mod)
    function = mod["main"].with_attr("global_symbol", "main")
    executable = tvm.compile(IRModule({"main": function}), target=to_tvm_target(TARGET))
    given, results = ([tvm.runtime.tensor(one) for one in each] for each in arguments(layer))
    executable["main"](*given, *results)
    return [one.numpy().astype(np.float32) for one in results]


def module_of(layer: Recurrence) -> object:
    return load_ir(save_ir(IRModule({"main": workload(layer).with_attr("global_symbol", "main")})))


@pytest.mark.parametrize("layer", [*LAYERS, *HALF_LAYERS], ids=str)
def test_a_layer_and_its_panels_compute_what_the_equations_say(layer: Recurrence) -> None:
    module = module_of(layer)
    assert find_recurrence(module["main"]) == layer  # type: ignore[index]
    expected = expected_of(layer)
    assert largest_error(_run(module, layer), expected) < TOLERANCE[layer.dtype]
    panels = Panels(rows=layer.rows, units=layer.units // 2 if layer.units % 8 == 0 else 4, lanes=4, parallel=True)
    assert largest_error(_run(tiled(module, panels), layer), expected) < TOLERANCE[layer.dtype]


def test_every_sketch_of_a_layer_is_a_trace_that_gives_the_layer() -> None:
    layer = Recurrence(cell="lstm", steps=3, rows=4, units=64)
    module = module_of(layer)
    sketches = recurrent_sketches(module, TARGET)
    assert sketches
    expected = expected_of(layer)
    for sketch in sketches:
        trace = decode_trace(encode_trace(sketch.trace))
        assert largest_error(_run(apply_trace(module, trace).mod, layer), expected) < 1e-5


@pytest.mark.parametrize(("units", "divided"), [(32, False), (256, True)])
def test_a_step_is_divided_among_threads_where_that_saves_more_than_their_meeting(units: int, divided: bool) -> None:
    layer = Recurrence(cell="lstm", steps=8, rows=1, units=units)
    first = _choices(layer, VectorUnit.of(TARGET, 32), 2)[0]
    assert PANELS[first][-1] is divided


def test_the_search_proposes_panels_and_a_task_without_trials_gets_one() -> None:
    module = module_of(Recurrence(cell="gru", steps=6, rows=2, units=64))
    found = Workload(digest=workload_digest(module), ir=save_ir(module))
    request = ProposeRequest(workload=found, target=TARGET, measured=(), seen=frozenset(), model=None, n=4, seed=1)
    assert any('"recurrence-' in one.candidate.trace.replace("\\", "") for one in propose(request))
    assert "recurrence-" in default_trace(found, TARGET)


@pytest.fixture(scope="module")
def torch_layers() -> list[object]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return [
        torch.nn.LSTM(12, 16, batch_first=True),
        torch.nn.LSTM(12, 16, num_layers=2, bidirectional=True, bias=False),
        torch.nn.LSTM(12, 16, proj_size=8),
        torch.nn.GRU(12, 16, num_layers=2, bidirectional=True, batch_first=True),
        torch.nn.GRU(12, 16, bias=False),
        torch.nn.RNN(12, 16, num_layers=2),
        torch.nn.RNN(12, 16, nonlinearity="relu", bidirectional=True),
    ]


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
def test_the_layers_of_torch_come_out_right_and_whole(torch_layers: list[object]) -> None:
    import torch

    from tuner.deploy.build import schedule_model
    from tuner.deploy.evaluate import _Runner
    from tuner.graph.prepare import prepare
    from tuner.ingest import parse_container
    from tuner.ingest.torch_export import from_torch
    from tuner.tasks import split

    for layer in torch_layers:
        x = torch.randn(3, 5, 12)
        data, weights = from_torch(layer.eval(), (x,))  # type: ignore[attr-defined]
        model = parse_container(data)
        tasks = split(prepare(load_ir(model.ir), TARGET), TARGET)
        whole = [task for task in tasks if find_recurrence(load_ir(task.workload.ir)["main"]) is not None]
        assert bool(whole) == (getattr(layer, "proj_size", 0) == 0)
        assert all(task.kind is TaskKind.FIXED or task in whole for task in tasks if task.flops < 1e5)
        traces = {task.workload.digest: task.fixed for task in whole}
        runner = _Runner(schedule_model(model, TARGET, traces), model, [weights[one.name] for one in model.params])
        y, states = layer(x)  # type: ignore[operator]
        expected = [one.detach().numpy() for one in (y, *(states if isinstance(states, tuple) else (states,)))]
        assert largest_error(runner.outputs([x.numpy()]), expected) < 1e-5, layer


@pytest.mark.long
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_a_captured_layer_stays_whole_and_torch_gets_its_own_programs_back(cell: str) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.backends.common import aot_autograd

    from pitchpipe.torch_backend.decompositions import whole_operators
    from pitchpipe.torch_operators.decompositions import inference_decompositions
    from pitchpipe.torch_operators.recurrent import whole_layers

    captured: list[Any] = []

    def note(graph: Any, _examples: Any) -> Any:
        captured.extend(graph.graph.find_nodes(op="call_function", target=whole))
        return graph

    whole = torch.ops.pitchpipe.recurrent_layer.default
    before = {each: dict(each.py_kernels) for each in whole_layers()}
    layer = getattr(torch.nn, cell)(8, 16, num_layers=2, bidirectional=True).eval()
    capture = aot_autograd(fw_compiler=note, decompositions=inference_decompositions())
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad(), whole_operators():
        found = torch.compile(layer, backend=capture, dynamic=True)(x := torch.randn(5, 3, 8))
    assert len(captured) == 4
    assert all(type(node.args[0].meta["val"].shape[0]) is int for node in captured), "the number of steps is fixed"
    with torch.no_grad():
        torch.testing.assert_close(found[0], layer(x)[0])
    assert {each: dict(each.py_kernels) for each in whole_layers()} == before
