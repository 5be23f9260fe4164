"""Default schedules on a GPU: what a task that gets no trials runs, chosen without measuring.

A default schedule is a trace, so it is stored, replayed and checked like any other candidate. What a rule of tuner/space/gpu
makes counts only if its trace, applied anew, gives the same program, and if TVM makes CUDA C++ of it within the limits of
the target; else the next rule is asked. TVM's own rule, one thread for each output element, takes what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.measure.gpu_code import lower
from tuner.schedule.rewrites import NETWORK, THREADS
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.space.gpu.attention import schedule_attention
from tuner.space.gpu.combining import atomic_kernels
from tuner.space.gpu.limits import Limits, NoSchedule
from tuner.space.gpu.plan import schedule_memory_bound
from tuner.space.gpu.product import schedule_products
from tuner.space.gpu.recurrence import recurrent_kernels
from tuner.space.lines import whole_rewrite
from tuner.space.refusals import tell_refused
from tuner.tensor_intrinsics import load_cuda_intrinsics
from tuner.tvm_compat import Schedule, dlight, load_ir, to_tvm_target, tvm_ffi

KEPT = 1024
"""Traces kept per process: a task asks for its default and for its baseline, which are one, and choosing takes 0.1 s."""
RULES: tuple[tuple[str, Callable[[Any, Limits], None]], ...] = (
    ("attention", schedule_attention),
    ("products", schedule_products),
    ("products on plain cores", partial(schedule_products, tensor_cores=False)),
    ("memory bound", schedule_memory_bound),
)
"""Name of a rule, and the function that schedules a workload or raises; in the order in which they are asked."""


@lru_cache(maxsize=KEPT)
def default_trace(workload: Workload, target: Target) -> str:
    """The default schedule of a workload. Raises InvalidTrace where not even TVM's own rule applies."""
    return _chosen(load_ir(workload.ir), target)


def default_schedule(mod: Any, target: Target) -> Any:
    """A module of one function, `main`, with its default schedule; as it is where no rule applies."""
    try:
        return apply_trace(mod, _chosen(mod, target), checked=False).mod
    except InvalidTrace:
        return mod


def _chosen(mod: Any, target: Target) -> str:
    load_cuda_intrinsics()
    if kernels := recurrent_kernels(mod, target) or atomic_kernels(mod):
        return encode_trace(kernels[0].trace)
    for rewrite in (NETWORK, THREADS):
        if (whole := whole_rewrite(mod, rewrite)) is not None:
            return encode_trace(whole.trace)
    tvm_target, limits = to_tvm_target(target), Limits.of(target)
    for name, rule in RULES:
        try:
            schedule = Schedule(mod, seed=1, debug_mask=0, error_render_level="none")
            rule(schedule, limits)
            trace = encode_trace(schedule.trace)
            if tvm_ffi.structural_equal(apply_trace(mod, trace).mod, schedule.mod):
                check_limits(schedule.mod, target)
                return trace
        except NoSchedule:
            continue
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the next rule may apply
            tell_refused("gpu default", error, choice=name)
    try:
        with tvm_target:
            schedule = dlight.gpu.Fallback().apply(mod["main"], tvm_target, False)
    except Exception as error:
        raise InvalidTrace(f"TVM's default GPU schedule does not apply to the workload: {error}"[:300]) from error
    if schedule is None:
        raise InvalidTrace("TVM's default GPU schedule does not apply to the workload")
    return encode_trace(schedule.trace)


def check_limits(scheduled: Any, target: Target, most_source: int | None = None) -> None:
    """Has TVM make CUDA C++ of a scheduled module. Raises InvalidTrace beyond the target's limits, or if it has more than
    `most_source` characters, else what TVM raises."""
    lowered = lower(scheduled, to_tvm_target(target))
    if most_source is not None and len(lowered.source) > most_source:
        raise InvalidTrace(f"{len(lowered.source)} characters of CUDA C++: unrolled too far")
    limits = Limits.of(target)
    for launch in lowered.calls:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > limits.threads or launch.shared_bytes > limits.shared_bytes:
            raise InvalidTrace(
                f"{threads} threads and {launch.shared_bytes} bytes of shared memory a block, where there are"
                f" {limits.threads} and {limits.shared_bytes}"
            )
