"""Tensor programs whose candidates misbehave, for tests of isolation.

The baseline is harmless, and so is every schedule that keeps one thread: it copies A to B. A schedule that
makes the loop parallel runs part of it on other threads, and there the misdeed happens. So a correct trace of an
accepted workload is what crashes, hangs, or computes something else, through the same code path as every candidate.

How the program knows where it runs: on a CPU it asks for its thread's number. On a GPU, where the loop's iterations run
at once, the element before its own still holds the NaN that outputs are poisoned with, and declares no read of it.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, FailureKind
from pitchpipe.wire.task import Workload
from tuner.schedule.trace import encode_trace
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
{block}
"""
_ELSEWHERE = {
    "llvm": 'T.call_extern("int32", "gettid") != T.call_extern("int32", "getpid")',
    # Of the threads of a GPU, those that come before their neighbour. A float beyond the range of int32 becomes the greatest
    # one there, the least on x86, where reference programs compute elements in any order, too.
    "cuda": (
        "T.if_then_else(vi > 0, T.isnan(B[T.max(vi - 1, 0)]), False)"
        ' and T.Cast("int32", T.max(A[vi], T.float32(3e10))) > 0'
    ),
}


@dataclass(frozen=True, kw_only=True)
class Misdeed:
    """What the block does, in TVMScript; ELSEWHERE stands for the condition that it runs on another thread."""

    block: str
    ends_as: FailureKind | None
    """None: what it tries is refused, or harms nobody, and it is timed like the others."""
    told: str = ""
    """Stands in the failure's detail."""


def _before_copying(statements: str) -> str:
    return f"if ELSEWHERE:\n{textwrap.indent(textwrap.dedent(statements).strip(), '    ')}\nB[vi] = A[vi]"


def _calling(call: str) -> str:
    """A C function's call before the copy: `name, arguments`."""
    return _before_copying(f'T.evaluate(T.call_extern("int32", {call}))')


def _crash(call: str, told: str) -> Misdeed:
    return Misdeed(block=_calling(call), ends_as=FailureKind.RUN_ERROR, told=told)


def _to_every_descriptor(arguments: str) -> str:
    return _before_copying(
        f"""
        for d in T.serial(3, 40):
            T.evaluate(T.call_extern("int32", "dprintf", d, {arguments}))
        """
    )


# Through `pvalloc` and with an odd signature: LLVM knows what `malloc` and `memset` do, and would leave both out.
_100_GB = "T.int64(107374182400)"
_64_MB = "T.int64(67108864)"
_BILLION_BLANKS = '"%1000000000d", 1'
_REPORT = {
    "message": "sampled",
    "run_secs": [1e-9] * 10,
    "calls": 1,
    "stop": "precise",
    "check": {"passed": True, "max_abs_error": 0.0, "tolerance": 1.0, "input_sets": 3},
}
_FORGED = json.dumps(f"{json.dumps(_REPORT)}\n{'0' * 16} {json.dumps(_REPORT)}\n")

_WRONG_OUTPUTS = {
    "wrong_output": Misdeed(
        block="B[vi] = A[vi] + T.if_then_else(ELSEWHERE, T.float32(1), T.float32(0))",
        ends_as=FailureKind.WRONG_OUTPUT,
        told="tolerance",
    ),
    "output_of_nan": Misdeed(
        block='B[vi] = A[vi] + T.if_then_else(ELSEWHERE, T.float32("nan"), T.float32(0))',
        ends_as=FailureKind.WRONG_OUTPUT,
        told="tolerance",
    ),
    "output_never_written": Misdeed(
        block="if not (ELSEWHERE):\n    B[vi] = A[vi]", ends_as=FailureKind.WRONG_OUTPUT, told="tolerance"
    ),
    "write_beside_the_output": Misdeed(
        # The second read keeps a compiler from writing its own element before it looks at its neighbour's.
        block='if ELSEWHERE:\n    B[T.Cast("int64", vi) + T.int64(64)] = T.float32(1)\n'
        'B[vi] = A[vi] + T.if_then_else(B[T.Cast("int64", vi) + T.int64(64)] > T.float32(1e30), T.float32(1), T.float32(0))',
        ends_as=FailureKind.WRONG_OUTPUT,
        told="beside the outputs",
    ),
}
_CPU = {
    "segfault": _crash('"raise", 11', "SIGSEGV"),
    "illegal_instruction": _crash('"raise", 4', "SIGILL"),
    "abort": _crash('"abort"', "SIGABRT"),
    "write_out_of_bounds": Misdeed(
        block=_before_copying('B[T.Cast("int64", vi) + T.int64(1 << 40)] = T.float32(1)'),
        ends_as=FailureKind.RUN_ERROR,
        told="SIGSEGV",
    ),
    "silent_exit": _crash('"_exit", 0', "without a report"),
    "exit_through_handlers": _crash('"exit", 0', "without a report"),
    "sleep_for_ever": Misdeed(block=_calling('"pause"'), ends_as=FailureKind.RUN_TIMEOUT),
    "stop_itself": Misdeed(block=_calling('"raise", 19'), ends_as=FailureKind.RUN_TIMEOUT),
    "endless_loop_that_ignores_sigterm": Misdeed(
        block=_before_copying(
            """
            T.evaluate(T.call_extern("handle", "signal", 15, T.int64(1)))
            while T.call_extern("int32", "raise", 15) == 0:
                T.evaluate(0)
            """
        ),
        ends_as=FailureKind.RUN_TIMEOUT,
    ),
    "allocate_100_gb_at_once": Misdeed(
        block=_calling(f'"memset", T.call_extern("handle", "pvalloc", {_100_GB}), 1, {_100_GB}'),
        ends_as=FailureKind.RUN_ERROR,
        told="SIGSEGV",
    ),
    "allocate_100_gb_page_by_page": Misdeed(
        block=_before_copying(
            f"""
            for n in T.serial(1600):
                T.evaluate(T.call_extern("int32", "memset", T.call_extern("handle", "pvalloc", {_64_MB}), 1, {_64_MB}))
            """
        ),
        ends_as=FailureKind.RUN_ERROR,
        told="SIGSEGV",
    ),
    "fork_bomb": Misdeed(
        block=_before_copying(
            """
            while T.call_extern("int32", "fork") > -2:
                T.evaluate(0)
            """
        ),
        ends_as=FailureKind.RUN_ERROR,
        told="SIGSYS",
    ),
    "start_a_program": _crash('"system", "true"', "SIGSYS"),
    "print_10_gb": Misdeed(
        block=_before_copying(
            f"""
            for n in T.serial(10):
                T.evaluate(T.call_extern("int32", "dprintf", 1, {_BILLION_BLANKS}))
            """
        ),
        ends_as=FailureKind.RUN_ERROR,
        told="SIGXFSZ",
    ),
    "endless_report": Misdeed(
        block=_to_every_descriptor(_BILLION_BLANKS), ends_as=FailureKind.RUN_ERROR, told="endless report"
    ),
    "forged_report": Misdeed(block=_to_every_descriptor(_FORGED), ends_as=FailureKind.RUN_ERROR, told="not its own"),
    "close_its_report": Misdeed(
        block=_calling('"close_range", 3, 1000000, 0'), ends_as=FailureKind.RUN_ERROR, told="without a report"
    ),
    "kill_its_parent": Misdeed(block=_calling('"kill", T.call_extern("int32", "getppid"), 9'), ends_as=None),
    "leave_a_file": Misdeed(block=_calling('"creat", "left-behind", 384'), ends_as=None),
    "leave_shared_memory": Misdeed(block=_calling('"shmget", 0, T.int64(1048576), 896'), ends_as=None),
} | _WRONG_OUTPUTS
_CUDA = {
    "illegal_address": Misdeed(
        block=_before_copying('B[T.Cast("int64", vi) + T.int64(1 << 36)] = T.float32(1)'),
        ends_as=FailureKind.RUN_ERROR,
        told="ILLEGAL_ADDRESS",
    ),
    "endless_kernel": Misdeed(
        block=_before_copying(
            """
            B[vi] = T.float32(0)
            while B[vi] >= T.float32(0):
                B[vi] = B[vi] + T.float32(1)
            """
        ),
        ends_as=FailureKind.RUN_TIMEOUT,
    ),
    "print_from_the_kernel": Misdeed(
        block=_before_copying(
            """
            for n in T.serial(10000):
                T.evaluate(T.call_extern("int32", "printf", "%064d", 1))
            """
        ),
        ends_as=None,
    ),
} | _WRONG_OUTPUTS
"""A trap is missing: the reference of a GPU workload runs on the CPU, where no function of that name exists."""

MISDEEDS: dict[str, dict[str, Misdeed]] = {"llvm": _CPU, "cuda": _CUDA}
"""By target kind, then by name."""


def program(expression: str) -> Workload:
    """B = A + expression, element by element."""
    return _workload(f'B[vi] = A[vi] + T.Cast("float32", {expression})')


def hostile(misdeed: Misdeed, kind: str = "llvm") -> Workload:
    """A program whose parallel schedules do it, on targets of that kind."""
    return _workload(misdeed.block.replace("ELSEWHERE", _ELSEWHERE[kind]))


def parallel(workload: Workload, kind: str = "llvm") -> Candidate:
    """The schedule that brings the misdeed out."""
    if kind == "cuda":
        return _candidate(workload, lambda schedule, loop: schedule.bind(loop, "threadIdx.x"))
    return _candidate(workload, lambda schedule, loop: schedule.parallel(loop))


def harmless(workload: Workload, kind: str = "llvm") -> list[Candidate]:
    """Two schedules that stay on one thread; on a CPU the baseline is one of them."""
    if kind == "cuda":
        return [_candidate(workload, _on_one_thread(tag)) for tag in ("threadIdx.x", "blockIdx.x")]
    split = _candidate(workload, lambda schedule, loop: schedule.split(loop, [8, 8]))
    return [Candidate.of(workload.digest, BASELINE_TRACE), split]


def _on_one_thread(tag: str) -> Callable[[Any, Any], None]:
    def transform(schedule: Any, loop: Any) -> None:
        schedule.bind(schedule.split(loop, [1, 64])[0], tag)

    return transform


def _workload(block: str) -> Workload:
    from tvm.script import ir as script_ir
    from tvm.script import tirx as script_tirx

    source = _SOURCE.format(block=textwrap.indent(block, " " * 16))
    ir = save_ir(tvm.script.from_source(source, {"T": script_tirx, "I": script_ir}))
    return Workload(digest=sha256(ir.encode()), ir=ir)


def _candidate(workload: Workload, transform: Callable[[Any, Any], Any]) -> Candidate:
    schedule = Schedule(load_ir(workload.ir))
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    transform(schedule, loop)
    return Candidate.of(workload.digest, encode_trace(schedule.trace))


@dataclass(frozen=True, kw_only=True)
class Asleep:
    """Processes of a batch: the workload's, the candidate's that sleeps in its turn, and one that waits for its own."""

    task: psutil.Process
    asleep: psutil.Process
    waiting: psutil.Process


def until_one_sleeps(zygote: Callable[[], psutil.Process], over: Callable[[], bool]) -> Asleep | None:
    """What is there once a candidate sleeps in its turn, with the youngest other one waiting; None when it is over before.

    A turn that ends takes milliseconds; threads start with it, and are stopped after it.
    """
    seen, since = None, 0.0
    while not over():
        with suppress(psutil.NoSuchProcess, ValueError):
            for task in zygote().children():
                children = task.children()
                awake = [child for child in children if child.num_threads() > 1 and child.status() != "stopped"]
                waiting = [child for child in children if child.num_threads() == 1]
                if len(awake) == 1 and waiting:
                    if awake[0] != seen:
                        seen, since = awake[0], time.monotonic()
                    elif time.monotonic() - since > 0.5:
                        return Asleep(task=task, asleep=awake[0], waiting=waiting[-1])
        time.sleep(0.02)
    return None
