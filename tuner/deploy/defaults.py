"""Default schedules that were checked: what a build gives the workloads that have no trial.

A default schedule is the one that models of the hardware rank best (`TargetKind.default_trace`); nobody has measured it.
So each is checked once before a build uses it, on a machine that can run it: in a fork, on the input sets and with the
tolerances of every candidate (tuner/measure/check.py), against the reference program. The verdict is kept in a folder by
workload and target. The folder stands for what else decides it: the versions of the compiler and of this code.

What fails its check, or ends the fork, runs the baseline, and the build says so by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from pydantic import ValidationError

from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import HOST, fit, kind_of
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest
from pitchpipe.wire.measure import BASELINE_TRACE
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Workload
from tuner.deploy.forks import Lost, in_forks
from tuner.measure.build import apply, build
from tuner.measure.candidate import Bench, Running, WrongOutput
from tuner.measure.check import SETS, ReferenceOutputs, mostly_finite, verdict
from tuner.tvm_compat import tvm

CHECK_SECS = 120.0
"""Longest check of a schedule: a fifth of a second on an idle core, except for the largest embeddings."""


class Checked(Wire):
    """The default schedule of a workload, and whether it computes what the workload does."""

    trace: str
    """The baseline's where none better is known."""
    fault: str | None = None
    """Why it is not used; None of one that is right."""


def checked_defaults(workloads: Sequence[Workload], target: Target, folder: Path) -> Mapping[str, Checked]:
    """The default schedules by workload digest, checked now unless they were before.

    Empty for a target whose code this machine does not run: there nothing can be checked. Forks; at most one thread of the
    process calls it.
    """
    found = dict(remembered_defaults(workloads, target, folder))
    unknown = [workload for workload in workloads if workload.digest not in found]
    if not unknown or not _runs_here(target):
        return found
    kind_of(target).load_intrinsics()
    answers = in_forks(
        lambda at: _checked(unknown[at], target).model_dump_json().encode(),
        len(unknown),
        processes=usable_cores(),
        limit_secs=CHECK_SECS,
    )
    for workload, answer in zip(unknown, answers, strict=True):
        if isinstance(answer, Lost):
            checked, final = Checked(trace=BASELINE_TRACE, fault=answer.reason), answer.final
        else:
            checked, final = Checked.model_validate_json(answer), True
        found[workload.digest] = checked
        if final:
            _remember(_file(folder, workload, target), checked)
    return found


def remembered_defaults(workloads: Sequence[Workload], target: Target, folder: Path) -> Mapping[str, Checked]:
    """The same of those that were checked before."""
    found = {}
    for workload in workloads:
        with suppress(OSError, ValidationError):
            data = _file(folder, workload, target).read_bytes()
            found[workload.digest] = Checked.model_validate_json(data)
    return found


def _file(folder: Path, workload: Workload, target: Target) -> Path:
    return folder / f"{json_digest([workload.digest, target.key])}.json"


def _remember(path: Path, checked: Checked) -> None:
    """In one step. A folder that cannot be written forgets: the next build checks again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
            part.write(checked.model_dump_json())
        Path(part.name).replace(path)


def _runs_here(target: Target) -> bool:
    mcpu = str(tvm.target.codegen.llvm_get_system_cpu())
    here = Target.parse({"kind": HOST, "mcpu": mcpu, "num-cores": usable_cores()})
    return fit(here, target).fits


def _checked(workload: Workload, target: Target) -> Checked:
    """In a fork: chooses the default schedule and checks it. Raises MemoryError, which says nothing about a schedule."""
    trace = BASELINE_TRACE
    try:
        trace = kind_of(target).default_trace(workload, target)
        if trace != BASELINE_TRACE:
            _check(Bench(workload.ir, target, 0), trace)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; the workload runs its baseline
        words = str(error).strip().splitlines() or [type(error).__name__]
        return Checked(trace=trace, fault=words[-1][:300])
    return Checked(trace=trace)


def _check(bench: Bench, trace: str) -> None:
    """Raises WrongOutput, also for a write beside the outputs, ValueError where no input set gives finite outputs, and
    whatever refuses to compile.

    One set after another, so that the inputs of one are held at a time.
    """
    scheduled, reference = build(apply(bench.mod, trace), bench.tvm_target), bench.reference_program()
    results = []
    for name in SETS:
        for positive in (False, True):
            bench.fill(name, positive=positive)
            expected = [array.copy() for array in Running(bench, reference).outputs_on(name)]
            if mostly_finite(expected):
                outputs = ReferenceOutputs(bench.properties, name, expected)
                running = Running(bench, scheduled)
                results.append(outputs.compare(running.outputs_on(name)))
                if not running.stays_inside:
                    raise WrongOutput("it writes beside its outputs")
                if not (judged := verdict(results)).passed:
                    raise WrongOutput.of(judged, name)
                break
        del bench.inputs[name]
    if not results:
        raise ValueError("the reference program gives no finite output")
