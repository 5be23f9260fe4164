"""Programs for a CPU that one process compiles and others load."""

from __future__ import annotations

import os
from multiprocessing import shared_memory
from typing import Any

import numpy as np
import pytest

from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.task import Workload
from tests.compiler.programs import TARGET, conv, dense, workload
from tuner.measure.build import apply
from tuner.measure.candidate import Bench, Running
from tuner.measure.check import SETS
from tuner.measure.machine_code import compile_program, load_program
from tuner.search.evolution import ProposeRequest, propose
from tuner.syscalls import deny_system_calls
from tuner.tvm_compat import relax


def bench_of(made: Workload) -> Bench:
    bench = Bench(made.ir, TARGET, 0)
    program = bench.reference_program()
    for name in SETS:
        bench.fill(name)
        buffer = memoryview(bytearray(bench.reference_bytes()))
        bench.compute_reference_outputs(program, name, buffer)
        bench.set_reference_outputs(name, buffer)
    return bench


def candidates(made: Workload, count: int) -> list[str]:
    """The baseline, and what a search begins with: among them traces that pack weights."""
    kind_of(TARGET).load_intrinsics()
    request = ProposeRequest(
        workload=made,
        target=TARGET,
        measured=(),
        seen=frozenset(),
        model=None,
        n=count,
        donors=(),
        donors_only=False,
        seed=0,
    )
    return [BASELINE_TRACE, *(proposal.candidate.trace for proposal in propose(request))]


def gelu_norm(builder: Any, x: Any) -> Any:
    """Elementary functions, which the compiler turns into arithmetic or calls."""
    return relax.op.power(relax.op.exp(relax.op.tan(x)), x)


@pytest.mark.long
@pytest.mark.parametrize(
    "made",
    [conv(), conv(28, 32, 32), dense(), workload(gelu_norm, (64, 64))],
    ids=["convolution", "winograd", "product", "functions"],
)
def test_what_was_compiled_once_computes_the_same_wherever_it_is_loaded(made: Workload) -> None:
    bench = bench_of(made)
    packed = 0
    for trace in candidates(made, 6):
        data = compile_program(apply(bench.mod, trace), bench.tvm_target)
        running = Running(bench, program := load_program(data))
        packed += len(program.packings)
        for name in SETS:
            running.run(name)
            close, _, _ = bench.reference_outputs[name].compare(running.outputs())
            assert close, (trace, name)
        assert running.call(3) > 0
    assert packed or not bench.constant(), "weights were packed"


def test_a_confined_process_compiles_and_another_loads_without_a_file_or_a_program() -> None:
    bench = bench_of(conv())
    shared = shared_memory.SharedMemory(create=True, size=1 << 20)
    try:
        for role in ("builder", "runner"):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    assert deny_system_calls()
                    if role == "builder":
                        data = compile_program(bench.mod, bench.tvm_target)
                        shared.buf[: 8 + len(data)] = len(data).to_bytes(8, "little") + data
                    else:
                        size = int.from_bytes(shared.buf[:8], "little")
                        running = Running(bench, load_program(bytes(shared.buf[8 : 8 + size])))
                        running.run(SETS[0])
                        assert bench.reference_outputs[SETS[0]].compare(running.outputs())[0]
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, role
    finally:
        shared.close()
        shared.unlink()


def test_each_process_has_memory_of_its_own_for_the_code() -> None:
    bench = bench_of(dense())
    data = compile_program(bench.mod, bench.tvm_target)
    first, second = (Running(bench, load_program(data)) for _ in range(2))
    first.run(SETS[0])
    second.run(SETS[0])
    assert np.array_equal(first.outputs()[0], second.outputs()[0])
