"""Build, output check and timing of real programs in the sandbox."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.ids import canonical_json
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind, MeasureConfig, Measurement, Timed
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, conv, dense
from tuner.measure import candidate
from tuner.measure.build import apply, build, compile_module
from tuner.measure.candidate import Bench, Measuring, Running
from tuner.measure.check import SETS
from tuner.measure.timing import CONFIRM_PROCESSES, run_interval
from tuner.schedule.packing import packings_of
from tuner.schedule.trace import encode_trace
from tuner.tvm_compat import IRModule, Schedule, load_ir, ms, save_ir, te, to_tvm_target, tvm
from workers.sandbox.sandbox import Sandbox

CONFIG = MeasureConfig(max_secs=0.02, target_sample_secs=5e-4)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(TARGET) as opened:
        yield opened


def measure(
    sandbox: Sandbox,
    workload: Workload,
    traces: list[str],
    purpose: Purpose = Purpose.SEARCH,
    incumbent_secs: float | None = None,
) -> list[Measurement]:
    """Results in the order of the traces."""
    candidates = [Candidate.of(workload.digest, trace) for trace in traces]
    results = {
        result.candidate: result
        for result in sandbox.measure(workload, candidates, CONFIG, purpose=purpose, incumbent_secs=incumbent_secs)
    }
    assert len(results) == len(traces)
    return [results[candidate.digest] for candidate in candidates]


def traces(workload: Workload, count: int, seed: int = 1) -> list[str]:
    """Random members of MetaSchedule's space that its postprocessors accept."""
    kind_of(TARGET).load_intrinsics()
    mod = load_ir(workload.ir)
    context = ms.TuneContext(
        mod,
        target=to_tvm_target(TARGET),
        space_generator=ms.space_generator.PostOrderApply(),
        search_strategy=ms.search_strategy.ReplayTrace(),
        rand_state=seed,
        num_threads=1,
    )
    context.pre_tuning(max_trials=count, num_trials_per_iter=count, design_spaces=context.generate_design_space())
    return [encode_trace(candidate.sch.trace) for candidate in context.generate_measure_candidates()]


def packing_trace(workload: Workload) -> str:
    """A trace that rewrites a weight's layout."""
    for trace in traces(workload, 8):
        if build(apply(load_ir(workload.ir), trace), to_tvm_target(TARGET)).packings:
            return trace
    raise AssertionError("the space has no such trace")


def test_a_matmul_is_built_checked_on_three_sets_and_timed(sandbox: Sandbox) -> None:
    results = measure(sandbox, dense(64, 64, 64), [BASELINE_TRACE, *traces(dense(64, 64, 64), 2)])
    timed = [result for result in results if isinstance(result, Timed)]
    assert len(timed) == len(results)
    assert min(timed, key=lambda result: result.secs).check.input_sets == 3, "others are slower than the batch's best"
    assert all(result.check.max_abs_error <= result.check.tolerance for result in timed)
    assert all(len(result.run_secs) >= CONFIG.min_samples or result.check.input_sets == 1 for result in timed)


def test_a_convolution_with_a_rewritten_weight_is_checked_with_the_weight_packed(sandbox: Sandbox) -> None:
    workload = conv()
    (result,) = measure(sandbox, workload, [packing_trace(workload)])
    assert isinstance(result, Timed), result
    assert result.check.input_sets == 3


def test_large_weights_and_activations_and_nothing_else_are_evicted_before_every_timed_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = dense(4096, 256, 128)
    bench = Bench(large.ir, TARGET, 0)
    bench.fill(SETS[0])
    assert bench.cold() == (0, 1, 3)
    assert bench.cold_bytes() == 4 * (4096 * 256 + 256 * 128 + 4096 * 128)
    assert Bench(dense(8, 256, 128).ir, TARGET, 0).cold() == (1,)
    assert Bench(dense().ir, TARGET, 0).cold() == ()
    running = Running(bench, build(bench.mod, bench.tvm_target))
    evicted: list[list[tuple[int, ...]]] = []
    monkeypatch.setattr(candidate, "evict", lambda tensors: evicted.append([tuple(t.shape) for t in tensors]))
    assert running.call(2) > 0
    assert evicted == [[(4096, 256), (256, 128), (4096, 128)]] * 2


def test_a_look_up_in_a_large_table_is_called_few_times_for_a_sample_since_all_of_the_table_is_evicted_before_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, rows = te.placeholder((30_522, 768), name="table"), te.placeholder((64,), name="rows", dtype="int64")
    taken = te.compute((64, 768), lambda i, j: table[rows[i], j], name="taken")
    function = te.create_prim_func([table, rows, taken]).with_attr("layout_free_buffers", [0])
    bench = Bench(save_ir(IRModule({"main": function.with_attr("global_symbol", "main")})), TARGET, 0)
    bench.fill(SETS[0])
    running = Running(bench, build(bench.mod, bench.tvm_target))
    evicted: list[int] = []
    monkeypatch.setattr(candidate, "evict", lambda tensors: evicted.append(len(tensors)))
    calls, _ = Measuring(bench, running).warm(CONFIG, 8e-6)
    assert calls == 2
    assert len(evicted) < 10


def test_an_argument_may_have_no_axes() -> None:
    x, scale = te.placeholder((16,), name="x"), te.placeholder((), name="scale")
    y = te.compute((16,), lambda i: x[i] * scale(), name="y")
    scaled = IRModule({"main": te.create_prim_func([x, scale, y]).with_attr("global_symbol", "main")})
    bench = Bench(save_ir(scaled), TARGET, 0)
    bench.fill(SETS[0])
    running = Running(bench, build(bench.mod, bench.tvm_target))
    running.run(SETS[0])
    first, second = (tensor.numpy() for tensor in bench.inputs[SETS[0]])
    assert second.shape == ()
    np.testing.assert_allclose(running.outputs()[0], first * second)


def test_a_timing_says_how_much_was_cold(sandbox: Sandbox) -> None:
    for workload, cold in ((dense(8, 256, 128), 4 * 256 * 128), (dense(), 0)):
        (result,) = measure(sandbox, workload, [BASELINE_TRACE])
        assert isinstance(result, Timed), result
        assert result.rule is not None
        assert result.rule.cold_bytes == cold


def test_a_trace_of_another_workload_is_an_invalid_schedule(sandbox: Sandbox) -> None:
    (result,) = measure(sandbox, dense(), traces(conv(), 1))
    assert isinstance(result, Failed)
    assert result.kind is FailureKind.INVALID_SCHEDULE


def test_a_trace_outside_the_allow_list_is_an_invalid_schedule(sandbox: Sandbox) -> None:
    hostile = [
        [["GetSBlock", [], ["root", "main"], ["b0"]], ["Annotate", ["b0", '"x"'], ["pragma_import_llvm"], []]],
        [],
    ]
    (result,) = measure(sandbox, dense(), [canonical_json(hostile).decode()])
    assert isinstance(result, Failed)
    assert result.kind is FailureKind.INVALID_SCHEDULE


def test_what_the_compiler_refuses_is_a_build_error(sandbox: Sandbox) -> None:
    workload = dense()
    schedule = Schedule(load_ir(workload.ir))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.bind(schedule.get_loops(block)[0], "threadIdx.x")
    (result,) = measure(sandbox, workload, [encode_trace(schedule.trace)])
    assert isinstance(result, Failed)
    assert result.kind is FailureKind.BUILD_ERROR


def test_a_candidate_far_from_the_incumbent_is_checked_once_and_timed_briefly(sandbox: Sandbox) -> None:
    (result,) = measure(sandbox, dense(128, 256, 128), [BASELINE_TRACE], incumbent_secs=1e-6)
    assert isinstance(result, Timed)
    assert result.check.input_sets == 1
    assert len(result.run_secs) <= CONFIG.min_samples


def test_a_confirming_run_gives_every_candidate_a_result(sandbox: Sandbox) -> None:
    workload = dense(64, 64, 64)
    good = traces(workload, 2)
    results = measure(sandbox, workload, [BASELINE_TRACE, *good, *traces(conv(), 1)], Purpose.CONFIRM)
    assert [result.outcome for result in results] == ["timed", "timed", "timed", "failed"]
    for result in results[:3]:
        assert isinstance(result, Timed)
        assert result.rule is not None
        assert result.rule.processes == CONFIRM_PROCESSES
        assert len(result.run_secs) >= CONFIRM_PROCESSES
        assert len(result.run_secs) % CONFIRM_PROCESSES == 0
        assert (result.secs_low, result.secs_high) == run_interval(result.run_secs, CONFIRM_PROCESSES)


def test_forked_children_use_all_cores_of_the_target_and_their_parent_has_one_thread() -> None:
    script = """
        import os, sys
        from pitchpipe.wire.target import Target
        from tuner.measure.build import compile_module, threads, warm_up
        from tuner.tvm_compat import tvm
        warm_up(Target.parse(sys.argv[1]))
        before = len(os.listdir("/proc/self/task"))
        print(before, flush=True)
        if os.fork() == 0:
            print(threads(), flush=True)
            os._exit(0)
        os.wait()
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), TARGET.key],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "TVM_NUM_THREADS": str(TARGET.num_cores)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["1", str(TARGET.num_cores)]


def test_numpy_packs_a_weight_as_the_compiled_copy_would() -> None:
    workload = conv()
    packing = max(
        packings_of(apply(load_ir(workload.ir), packing_trace(workload))), key=lambda found: len(found.packed.shape)
    )
    assert packing.positions is not None
    module = compile_module(
        IRModule({"copy": packing.function.with_attr("global_symbol", "copy")}), to_tvm_target(TARGET)
    )
    shape = tuple(len(positions) for positions in packing.positions)
    weight = tvm.runtime.tensor(np.arange(math.prod(shape), dtype="float32").reshape(shape))
    wanted, got = (tvm.runtime.empty(packing.packed.shape, "float32") for _ in range(2))
    module.get_function("copy")(weight, wanted)
    packing.pack(weight, got)
    assert np.array_equal(got.numpy(), wanted.numpy())
