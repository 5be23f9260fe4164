"""Recurrent layers on a GPU: kernels of any shape run thread by thread on the host, and whole layers of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitchpipe.errors import InvalidTrace
from pitchpipe.gpu.program import Scalar
from pitchpipe.model.comparison import largest_error
from pitchpipe.wire.task import Workload
from tests.compiler.graphs import GPU, run_here
from tests.compiler.test_gpu_model import here
from tests.compiler.test_recurrence import TOLERANCE, arguments, expected_of, module_of
from tests.gpu_interpreter import dtype_of, run
from tuner.deploy.build import schedule_model
from tuner.deploy.gpu_model import compile_gpu_model
from tuner.execution.steps import propose
from tuner.graph.prepare import prepare
from tuner.ingest import parse_container
from tuner.measure.candidate import Bench
from tuner.measure.check import SETS, ReferenceOutputs
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_code import lower
from tuner.schedule.recurrence import DTYPES, GATES, STATE_WEIGHTS, Recurrence, find_recurrence
from tuner.schedule.recurrence_kernels import Kernels, in_kernels
from tuner.schedule.rewrites import KERNELS
from tuner.schedule.trace import apply_trace, decode_trace, encode_trace
from tuner.search.requests import ProposeRequest
from tuner.space.gpu.recurrence import MOST_STEPS, recurrent_kernels
from tuner.target_kinds.cuda.default import default_trace
from tuner.tasks import split
from tuner.tvm_compat import load_ir, save_ir, to_tvm_target
from tuner.workload.digest import workload_digest


def check(layer: Recurrence, scheduled: Any) -> Any:
    """What ran, after it computed what the equations say."""
    read, written = arguments(layer)
    lowered = run(scheduled, GPU, [*read, *written])
    found = [one.astype(np.float32) for one in written]
    assert largest_error(found, expected_of(layer)) < TOLERANCE[layer.dtype]
    return lowered


def workload_of(layer: Recurrence) -> Workload:
    module = module_of(layer)
    return Workload(digest=workload_digest(module), ir=save_ir(module))


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    layer=st.builds(
        Recurrence,
        cell=st.sampled_from(sorted(GATES)),
        steps=st.integers(1, 4),
        rows=st.integers(1, 5),
        units=st.integers(1, 40),
        backward=st.booleans(),
        dtype=st.sampled_from(DTYPES),
    ),
    kernels=st.builds(
        Kernels,
        rows=st.sampled_from((1, 2, 4, 8)),
        units=st.sampled_from((8, 16, 32)),
        parts=st.sampled_from((1, 2, 4, 8)),
        held=st.booleans(),
    ),
)
def test_kernels_compute_what_the_equations_say(layer: Recurrence, kernels: Kernels) -> None:
    lowered = check(layer, in_kernels(module_of(layer), kernels))
    assert len(lowered.calls) == (1 if kernels.held else layer.steps)
    assert all(call.programmatic for call in lowered.calls)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", GATES)
def test_every_sketch_is_a_trace_that_gives_the_layer_in_machine_code(cell: str, dtype: str) -> None:
    layer = Recurrence(cell=cell, steps=3, rows=3, units=24, dtype=dtype)
    module = module_of(layer)
    sketches = recurrent_kernels(module, GPU)
    assert {KERNELS[str(one.trace.insts[1].inputs[1])][-1] for one in sketches} == {False, True}
    for sketch in sketches:
        trace = decode_trace(encode_trace(sketch.trace))
        lowered = check(layer, apply_trace(module, trace).mod)
    if here():
        assert DeviceCompiler("sm_90a").compile(lowered.source)[:4] == b"\x7fELF"


def compared(layer: Recurrence, *, held: bool, lost: bool = False) -> dict[str, bool]:
    """Whether kernels pass the output check of a trial, by input set. lost: the last product of every sum is missing."""
    bench, found = Bench(workload_of(layer).ir, GPU, seed=0), {}
    scheduled = in_kernels(bench.mod, Kernels(rows=1, units=32, parts=4, held=held))
    program = bench.reference_program()
    for name in SETS:
        bench.fill(name)
        outputs, changes = bench.run_reference(program, name)
        given = [np.array(one.numpy()) for one in bench.inputs[name]]
        if lost:
            given[STATE_WEIGHTS][-1] = 0
        written = [np.full(one.shape, np.nan).astype(dtype_of(layer.dtype)) for one in outputs]
        run(scheduled, GPU, [*given, *written])
        found[name] = ReferenceOutputs(bench.properties, name, outputs, changes).compare(written)[0]
    return found


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", GATES)
def test_right_kernels_pass_the_check_of_a_long_sequence(cell: str, dtype: str) -> None:
    layer = Recurrence(cell=cell, steps=32, rows=2, units=48, dtype=dtype)
    assert all(compared(layer, held=dtype != "float16").values())


def test_kernels_that_lose_a_product_do_not() -> None:
    layer = Recurrence(cell="lstm", steps=8, rows=2, units=48)
    assert not any(compared(layer, held=True, lost=True).values())


@pytest.mark.parametrize(("units", "steps", "calls"), [(32, 100, 1), (256, 100, 100), (256, MOST_STEPS + 1, 1)])
def test_steps_are_launched_where_more_than_one_multiprocessor_pays_and_they_are_not_too_many(
    units: int, steps: int, calls: int
) -> None:
    layer = Recurrence(cell="lstm", steps=steps, rows=1, units=units)
    scheduled = apply_trace(module_of(layer), default_trace(workload_of(layer), GPU)).mod
    lowered = lower(scheduled, to_tvm_target(GPU))
    assert len(lowered.calls) == calls
    assert len({call.kernel for call in lowered.calls}) == min(calls, 2), "the first step reads other states"


def test_the_search_proposes_kernels_that_can_be_ranked() -> None:
    found = workload_of(Recurrence(cell="gru", steps=6, rows=2, units=64, dtype="float16"))
    request = ProposeRequest(workload=found, target=GPU, measured=(), seen=frozenset(), model=None, n=4, seed=1)
    proposed = propose(request)
    assert len(proposed) == 4
    for one in proposed:
        apply_trace(load_ir(found.ir), one.candidate.trace)


def test_what_is_no_recurrent_layer_is_refused() -> None:
    module = module_of(Recurrence(cell="gru", steps=2, rows=2, units=8))
    rewritten = in_kernels(module, Kernels(rows=1, units=8, parts=4, held=True))
    assert find_recurrence(rewritten["main"]) is None
    with pytest.raises(InvalidTrace):
        in_kernels(rewritten, Kernels(rows=1, units=8, parts=4, held=True))


@pytest.mark.long
@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_layers_of_torch_stay_whole_on_a_gpu_in_every_type(cell: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from tuner.ingest.torch_export import from_torch

    torch.manual_seed(0)
    layer = getattr(torch.nn, cell)(12, 16, num_layers=2, bidirectional=True, batch_first=True).eval()
    x, h, c = (torch.randn(shape) for shape in ((3, 5, 12), (4, 3, 16), (4, 3, 16)))
    given = [x, (h, c)] if cell == "LSTM" else [x, h]
    map_, leaves = torch.utils._pytree.tree_map, torch.utils._pytree.tree_leaves
    with torch.no_grad():
        expected = [one.numpy() for one in leaves(layer(*given))]
    kind = getattr(torch, dtype)
    data, weights = from_torch(layer.to(kind), tuple(map_(lambda one: one.to(kind), given)))
    model = parse_container(data)
    prepared = prepare(load_ir(model.ir), GPU)
    whole = [task for task in split(prepared, GPU) if find_recurrence(load_ir(task.workload.ir)["main"]) is not None]
    assert sum(task.weight for task in whole) == 4, "two layers in two directions"
    assert all(task.flops_type == dtype and "recurrence-" in str(task.fixed) for task in whole)
    inputs = [one.numpy().astype(dtype_of(dtype)) for one in leaves(given)]
    found = run_here(prepared, inputs, [weights[one.name] for one in model.params])
    error = largest_error([one.astype(np.float32) for one in found], expected)
    assert error < 3 * TOLERANCE[dtype], "weights are rounded, too"


@pytest.mark.long
@pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")
def test_a_longer_sequence_needs_more_launches_and_no_more_kernels() -> None:
    torch = pytest.importorskip("torch")
    from tuner.ingest.torch_export import from_torch

    layer = torch.nn.LSTM(16, 128).eval()
    programs = []
    for steps in (16, 100):
        model = parse_container(from_torch(layer, (torch.randn(steps, 1, 16),))[0])
        programs.append(compile_gpu_model(schedule_model(model, GPU, {}).module, GPU))
    short, long = programs
    assert len(long.kernels) == len(short.kernels)
    assert len(long.run) - len(short.run) == 100 - 16
    numbers = [one for launch in long.run for one in launch.arguments if isinstance(one, Scalar)]
    assert len(set(numbers)) == 99, "each step but the first is told its number"
