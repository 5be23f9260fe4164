"""Inside a fork that uses the GPU: templates in place of default schedules, where they are right and faster.

The default schedule of a workload on a GPU follows from rules; the first points of its templates follow from what measured
points of other workloads taught (tuner/templates/experience.py), and are faster as a rule. So both are compiled, checked as
candidates are, and timed in turns, among stand-ins and in the turn of this process on the GPU, as in a search.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from pitchpipe.errors import MeasurementFailed
from pitchpipe.gpu.program import Program
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import fit, kind_of
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from tuner.deploy.default_check import Answer, Checked, Named, expected_outputs, reference_programs
from tuner.measure.ahead import import_ahead
from tuner.measure.build import apply
from tuner.measure.candidate import Bench, Measuring, WrongOutput
from tuner.measure.cuda_driver import Cuda, CudaError
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu import HEARTBEAT_SOURCE, DeviceProgram, GpuDevice
from tuner.measure.gpu_code import compile_program
from tuner.measure.gpu_turn import turn_on
from tuner.templates import compiler as templates
from tuner.templates.assembler import AssemblerError
from tuner.workload.compulsory import least_flops

POINTS = 4
"""Of a workload's templates that are compiled, in a quarter of a second each. On held-out networks the first is 1.15 times
as slow as the best of all points, and the best of the first four 1.04 (ADR 0087)."""
FLOPS_PER_CORE = 1e10
"""Of the largest workload that is checked, for each core of the host: it computes the outputs that are expected in some
seconds."""
ROUNDS, CALLS = 7, 16
"""Samples of a program, whose median counts, and calls of a sample: a few milliseconds a workload."""


def prepare_checks(target: Target) -> bool:
    """Whether this machine has Triton for templates, and a GPU that runs the target's code. Then imports what forks need."""
    if target.arch is None or not templates.available():
        return False
    kind = kind_of(target)
    try:
        here = kind.detect()
        if here is None or not fit(here, target).fits:
            return False
        templates.warm_up(target.arch)
    except (MeasurementFailed, templates.NotCompiled, AssemblerError):
        # A GPU that is too old for any target, or a Triton that is broken.
        return False
    kind.load_intrinsics()
    import_ahead()
    return True


def check_gpu_defaults(asked: Sequence[Named], target: Target) -> bytes:
    """The template that each workload gets, or the baseline's trace: its default schedule. Answers one behind another.

    Raises MemoryError, and CudaError of a device that has no memory left or, where several were asked for, of one that a
    schedule has left unusable: the others need another process.
    """
    assert target.arch is not None
    compiler, kind = DeviceCompiler(target.arch), kind_of(target)
    found = {one.name: Answer(checked=Checked(trace=BASELINE_TRACE)) for one in asked}
    offered = list[tuple[Named, list[str], Bench]]()
    for one in asked:
        bench = Bench(one.workload.ir, target, 0)
        texts = [point.text for point in kind.templates(one.workload, target)[:POINTS]]
        if texts and least_flops(bench.mod["main"]) <= FLOPS_PER_CORE * usable_cores():
            offered.append((one, texts, bench))
    heartbeat = compiler.compile(HEARTBEAT_SOURCE) if offered else b""
    cuda: Cuda | None = None
    references = reference_programs([bench for _, _, bench in offered])
    for (one, texts, bench), reference in zip(offered, references, strict=True):
        programs = dict(_compiled(bench, [kind.default_trace(one.workload, target), *texts], compiler))
        bench.reference_outputs = dict(expected_outputs(bench, reference))
        if bench.reference_outputs and not programs.keys().isdisjoint(texts):
            cuda = cuda or Cuda()
            try:
                found[one.name] = Answer(checked=_fastest(cuda, bench, heartbeat, programs, texts))
            except CudaError as error:
                if not error.sticky or error.of_device or len(asked) > 1:
                    raise
                found[one.name] = Answer(checked=Checked(trace=texts[0], fault=str(error)))
    return b"".join(found[one.name].encode() for one in asked)


def _compiled(bench: Bench, traces: Sequence[str], compiler: DeviceCompiler) -> Iterator[tuple[str, Program]]:
    """(trace, program) of those that compile."""
    for trace in traces:
        try:
            yield trace, compile_program(apply(bench.mod, trace), bench.tvm_target, bench.properties, compiler)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - Triton and TVM raise whatever they met; another schedule runs
            continue


def _fastest(
    cuda: Cuda, bench: Bench, heartbeat: bytes, programs: Mapping[str, Program], texts: Sequence[str]
) -> Checked:
    """The fastest template, if it is faster than the default schedule; else the baseline's trace. Why a template is not
    right is told where no other one is chosen."""
    right, fault = dict[str, DeviceProgram](), None
    with turn_on(cuda.uuid):
        device = GpuDevice(bench, heartbeat, cuda)
        for trace, program in programs.items():
            try:
                running = DeviceProgram(device, program)
                Measuring(bench, running).check(list(bench.reference_outputs))
                right[trace] = running
            except (WrongOutput, CudaError) as error:
                if isinstance(error, CudaError) and error.spent:
                    raise
                fault = fault or (Checked(trace=trace, fault=str(error)) if trace in texts else None)
        samples: dict[str, list[float]] = {trace: [] for trace in right}
        for turns in range(ROUNDS):
            for trace in list(right)[:: 1 if turns % 2 == 0 else -1]:
                samples[trace].append(right[trace].call(CALLS))
    for running in right.values():
        running.close()
    secs = {trace: statistics.median(found) for trace, found in samples.items()}
    best = min(secs, key=secs.__getitem__, default=BASELINE_TRACE)
    return Checked(trace=best) if best in texts else fault or Checked(trace=BASELINE_TRACE)
