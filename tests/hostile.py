"""Tensor programs whose candidates misbehave, for tests of isolation.

The untransformed program is harmless: it runs on one thread. A schedule that makes the loop parallel runs half of it on
another thread, and there the expression `misdeed` is evaluated. So a correct trace of an accepted workload is what
crashes, hangs, or computes something else, through the same code path as every candidate.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate
from pitchpipe.wire.task import Workload
from tuner.trace import encode_trace
from tuner.tvm_compat import Schedule, load_ir, save_ir, tvm

_SOURCE = """
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        T.func_attr({{"global_symbol": "main", "tirx.noalias": True}})
        for i in T.serial(64):
            with T.sblock("B"):
                vi = T.axis.spatial(64, i)
                T.reads(A[vi])
                T.writes(B[vi])
                B[vi] = A[vi] + T.Cast("float32", {expression})
"""
_ON_ANOTHER_THREAD = 'T.call_extern("int32", "gettid") != T.call_extern("int32", "getpid")'
_100_GB = "T.int64(107374182400)"

MISDEEDS = {
    "segfault": 'T.call_extern("int32", "raise", 11)',
    "illegal_instruction": 'T.call_extern("int32", "raise", 4)',
    "abort": 'T.call_extern("int32", "abort")',
    "silent_exit": 'T.call_extern("int32", "_exit", 0)',
    "hang": 'T.call_extern("int32", "pause")',
    "allocate_100_gb": (
        f'T.call_extern("int32", "swab", T.call_extern("handle", "pvalloc", {_100_GB}),'
        f' T.call_extern("handle", "pvalloc", {_100_GB}), {_100_GB})'
    ),
    "fork": 'T.call_extern("int32", "fork")',
    "flood_of_output": 'T.call_extern("int32", "dprintf", 1, "%1000000000d", 1)',
    "wrong_output": "1",
}


def program(expression: str) -> Workload:
    """B = A + expression, element by element."""
    from tvm.script import ir as script_ir
    from tvm.script import tirx as script_tirx

    mod = tvm.script.from_source(_SOURCE.format(expression=expression), {"T": script_tirx, "I": script_ir})
    ir = save_ir(mod)
    return Workload(digest=sha256(ir.encode()), ir=ir)


def hostile(misdeed: str) -> Workload:
    """A program whose parallel schedules evaluate the misdeed."""
    return program(f"T.if_then_else({_ON_ANOTHER_THREAD}, {misdeed}, 0)")


def parallel(workload: Workload) -> Candidate:
    """The schedule that brings the misdeed out."""
    return _candidate(workload, lambda schedule, loop: schedule.parallel(loop))


def harmless(workload: Workload) -> list[Candidate]:
    """Schedules that stay on one thread: the baseline, and a loop split in two."""
    split = _candidate(workload, lambda schedule, loop: schedule.split(loop, [8, 8]))
    return [Candidate.of(workload.digest, BASELINE_TRACE), split]


def _candidate(workload: Workload, transform: Any) -> Candidate:
    schedule = Schedule(load_ir(workload.ir))
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    transform(schedule, loop)
    return Candidate.of(workload.digest, encode_trace(schedule.trace))
