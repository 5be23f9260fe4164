"""A workload and a trace of it: whether the schedule computes what the workload says, and which instruction breaks it.

Measured as a worker measures: the same builds, the same three sets of inputs, the same tolerance (tuner/measure/check.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitchpipe.errors import InvalidTarget, InvalidTrace
from pitchpipe.target_kind import HOST, kind_of
from pitchpipe.wire.finding import WALL_SECS, Finding, FindingKind
from pitchpipe.wire.ids import canonical_json
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import TensorShape
from tuner.measure.build import build
from tuner.measure.candidate import Bench, Running
from tuner.measure.check import SETS, ReferenceOutputs, mostly_finite
from tuner.measure.input_sets import make_inputs
from tuner.measure.properties import inspect
from tuner.minify.attempts import Outcome, Say, in_fork, outcome_of
from tuner.minify.reduction import bisected
from tuner.minify.script_of_task import write_task_script
from tuner.schedule.trace import apply_trace, decode_trace
from tuner.syscalls import deny_system_calls
from tuner.templates.text import is_template
from tuner.tvm_compat import load_ir

SEED = 0


def minify_task(
    _model: bytes,
    _arrays: Mapping[str, Any],
    *,
    ir: str,
    trace: str,
    target: str,
    label: str,
    out: str | None,
    wall_secs: float = WALL_SECS,
) -> dict[str, Any]:
    """Step: a Finding as JSON, of a workload's TVM JSON and a trace, on the CPU target of that key.

    `label` is what the workload is called. Raises InvalidModel, InvalidTrace or InvalidTarget for what cannot be tried.
    """
    wanted = Target.parse(target)
    if wanted.kind != HOST:
        raise InvalidTarget(f"tasks are tried on CPUs; a worker tries one for {wanted.kind}")
    trace = decode_trace(trace)
    if is_template(trace):
        raise InvalidTrace("a template has no instructions of which one could be the cause")
    kind_of(wanted).load_intrinsics()
    properties = inspect(load_ir(ir))
    whole = _try(ir, trace, wanted, wall_secs)
    arguments = tuple(
        TensorShape(shape=properties.params[i].shape, dtype=properties.params[i].dtype) for i in properties.inputs
    )
    finding = Finding(
        kind=whole.kind,
        detail=whole.detail or "the schedule builds, runs, and computes what the workload says",
        reference="the unscheduled workload",
        operator=label,
        arguments=arguments,
    )
    if whole.kind in (FindingKind.NOTHING, FindingKind.REFUSED):
        return finding.model_dump(mode="json")
    count = _shortest(ir, trace, wanted, whole, wall_secs)
    instruction = json.loads(trace)[0][count - 1] if count else ["the unscheduled workload"]
    cause = (
        f"instruction {count} of the trace, {instruction[0]}" if count else "the workload itself, whatever its schedule"
    )
    finding = finding.model_copy(update={"cause": cause, "nodes": tuple(i[0] for i in json.loads(trace)[0][:count])})
    if out is not None:
        name_of_set = SETS[whole.at]
        inputs = make_inputs(properties, name_of_set, SEED)
        scheduled = apply_trace(load_ir(ir), _prefix(trace, count)).mod
        path = write_task_script(Path(out), finding, load_ir(ir), scheduled, properties, inputs, wanted, wall_secs)
        finding = finding.model_copy(update={"script": str(path)})
    return finding.model_dump(mode="json")


def _try(ir: str, trace: str, target: Target, wall_secs: float) -> Outcome:
    """Builds and runs the scheduled workload beside the unscheduled one, in a child."""

    def work(say: Say) -> str:
        say("reference")
        bench = Bench(ir, target, seed=SEED)
        for name in SETS:
            bench.fill(name)
        unscheduled = build(bench.mod, bench.tvm_target)
        say("build")
        deny_system_calls()  # the workload and its trace may be from anyone
        running = Running(bench, build(apply_trace(load_ir(ir), trace).mod, bench.tvm_target))
        for at, name in enumerate(SETS):
            say(f"run {at}")
            expected, changes = bench.run_reference(unscheduled, name)
            if not mostly_finite(expected):
                continue
            right, error, tolerance = ReferenceOutputs(bench.properties, name, expected, changes).compare(
                running.outputs_on(name)
            )
            if not right:
                return f"on the {name} inputs the error is up to {error:g}, tolerance {tolerance:g}"
        return ""

    return outcome_of(in_fork(work, wall_secs=wall_secs), wall_secs)


def _shortest(ir: str, trace: str, target: Target, whole: Outcome, wall_secs: float) -> int:
    """How many instructions of the trace make the same fault, where one less does not; 0 if none is needed."""

    def fails(count: int) -> bool:
        return _try(ir, _prefix(trace, count), target, wall_secs).like(whole)

    return 0 if fails(0) else bisected(0, len(json.loads(trace)[0]), fails)


def _prefix(trace: str, count: int) -> str:
    instructions, decisions = json.loads(trace)
    return canonical_json([instructions[:count], [each for each in decisions if each[0] < count]]).decode()
