"""Builds and runs a part of a model in a child, and says how far it came.

The child is a fork of this process, which has imported the compiler and the framework: an attempt costs its build. For
that to be safe this process must never have run either on several threads; driver.py sees to it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pitchpipe.errors import InvalidModel, PitchpipeError, from_problem
from pitchpipe.processes.lifeline import end_with_parent
from pitchpipe.target_kind import HOST, kind_named, kind_of
from pitchpipe.wire.finding import WALL_SECS, FindingKind
from pitchpipe.wire.target import Target
from tuner.deploy.build import Scheduled, compile_scheduled
from tuner.deploy.finish import finish
from tuner.graph.prepare import TRANSFORM, prepare
from tuner.ingest import parse_container
from tuner.minify import Part
from tuner.tvm_compat import load_ir, relax, to_tvm_target, tvm

MEMORY_BYTES = 32 << 30
"""Address space of an attempt, which has this process's and what it makes."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended."""

    stage: str
    """What it said last that it began."""
    result: Any = None
    """What the work returned; None when it did not."""
    error: PitchpipeError | None = None
    """What it raised, when that is an error with a name."""
    raised: str | None = None
    """Any other exception, in a line."""
    signal: int | None = None
    timed_out: bool = False
    complaint: str = ""
    """The last line that it wrote to standard error."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an attempt came to."""

    kind: FindingKind
    detail: str = ""
    stage: str = ""
    """Where it crashed: import, rewrite NAME, build, run."""
    at: int = 0
    """Which of several input sets shows it."""

    def like(self, other: Outcome) -> bool:
        """Whether both show the same fault: crashes of the same kind in the same way count as one, where they differ in
        words."""
        same_end = self.detail.partition(":")[0] == other.detail.partition(":")[0]
        return self.kind is other.kind and (self.kind is FindingKind.WRONG or same_end)


def in_fork(work: Callable[[Say], Any], *, wall_secs: float = WALL_SECS) -> Ended:
    """Runs `work` in a fork with limits of time and memory. What it returns is JSON; it says where it is."""
    parent = os.getpid()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as complaints:
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(work, writing, complaints.fileno(), parent, wall_secs)
        os.close(writing)
        try:
            said, timed_out = _listen(reading, time.monotonic() + wall_secs)
        finally:
            os.close(reading)
            os.kill(child, signal.SIGKILL)  # it has ended or is late; as a zombie it does not mind
            _, status = os.waitpid(child, 0)
        complaints.seek(0, os.SEEK_END)
        complaints.seek(max(0, complaints.tell() - 4096))
        words = complaints.read().decode(errors="replace").strip().splitlines()
    return replace(_ended(said, status, timed_out), complaint=words[-1][:500] if words else "")


def _child(work: Callable[[Say], Any], writing: int, complaints: int, parent: int, wall_secs: float) -> None:
    """Everything that the fork does; never returns."""
    try:
        end_with_parent(parent)
        faulthandler.disable()  # a crash here is an answer
        os.dup2(complaints, 2)
        os.dup2(2, 1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        cpu_secs = int(wall_secs) * (os.cpu_count() or 1) + 1  # what all cores of the machine could do
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_secs, cpu_secs + 1))

        def tell(**message: Any) -> None:
            os.write(writing, json.dumps(message).encode() + b"\n")

        try:
            tell(result=work(lambda stage: tell(stage=stage)))
        except PitchpipeError as error:
            tell(code=error.code, status=error.status, detail=error.detail)
        except BaseException as error:  # noqa: BLE001 - compilers and frameworks raise whatever they met
            tell(raised=f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:500]}")
    finally:
        os._exit(0)


def _listen(reading: int, deadline: float) -> tuple[list[Any], bool]:
    """The messages of a child until it ends, and whether it did not in time."""
    text = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return _messages(text), True
        chunk = os.read(reading, 1 << 20)
        if not chunk:
            return _messages(text), False
        text += chunk


def _messages(text: bytearray) -> list[Any]:
    *lines, _ = bytes(text).split(b"\n")  # what follows the last one was cut off
    return [json.loads(line) for line in lines]


def _ended(said: list[Any], status: int, timed_out: bool) -> Ended:
    stage = next((message["stage"] for message in reversed(said) if "stage" in message), "start")
    last = said[-1] if said else {}
    if "result" in last:
        return Ended(stage=stage, result=last["result"])
    if "code" in last:
        return Ended(stage=stage, error=from_problem(last["status"], last["code"], last["detail"]))
    if "raised" in last:
        return Ended(stage=stage, raised=last["raised"])
    return Ended(stage=stage, timed_out=timed_out, signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)


def attempt(parts: Sequence[Part], target: Target, *, wall_secs: float = WALL_SECS) -> Outcome:
    """Imports, builds and runs a part as a model is; compares what it computes.

    `parts` are one part on several inputs: it is built once.
    """

    def work(say: Say) -> Any:
        say("import")
        data, weights = parts[0].convert()
        model = parse_container(data)
        prepared = prepare(load_ir(model.ir), target, watch=lambda name, _: say(f"rewrite {name}"))
        say("build")
        with to_tvm_target(target):
            module = finish(prepared, target)
        compiled = compile_scheduled(
            Scheduled(module=module, target=target, tuned=(), untuned=(), defaults=(), refused={})
        )
        running = kind_of(target).executable(compiled, model.inputs, model.params, target)
        running.bind({spec.name: np.asarray(weights[spec.name]) for spec in model.params})
        for at, part in enumerate(parts):
            say(f"run {at}")
            found = running(*(np.asarray(array) for array in part.inputs))
            told = part.difference(list(found) if isinstance(found, tuple) else [found])
            if told is not None:
                return told
        return ""

    _import_builder(target)
    return outcome_of(in_fork(work, wall_secs=wall_secs), wall_secs)


def _import_builder(target: Target) -> None:
    """Imports what a build for the target imports, in this process, so that no attempt does it again."""
    kind = kind_of(target)
    kind.load_intrinsics()
    kind.rewrites()
    kind.design_spaces()


def outcome_of(ended: Ended, wall_secs: float = WALL_SECS) -> Outcome:
    """How an attempt went, from how its child did; the work's result is how outputs differ, or nothing."""
    stage, _, at = ended.stage.partition(" ")
    found = _outcome_of(ended, FindingKind.RUN_CRASH if stage == "run" else FindingKind.BUILD_CRASH, wall_secs)
    return replace(found, at=int(at)) if stage == "run" and at else found


def _outcome_of(ended: Ended, crash: FindingKind, wall_secs: float) -> Outcome:
    if ended.result is not None:
        kind = FindingKind.WRONG if ended.result else FindingKind.NOTHING
        return Outcome(kind=kind, detail=ended.result, stage=ended.stage)
    if isinstance(ended.error, InvalidModel):
        return Outcome(kind=FindingKind.REFUSED, detail=ended.error.detail, stage=ended.stage)
    if ended.error is not None:
        return Outcome(kind=crash, detail=f"it raises: {ended.error.detail}", stage=ended.stage)
    if ended.raised is not None:
        return Outcome(kind=crash, detail=f"it raises: {ended.raised}", stage=ended.stage)
    if ended.timed_out:
        return Outcome(kind=crash, detail=f"it was still going after {wall_secs:g} s", stage=ended.stage)
    name = signal.Signals(ended.signal).name if ended.signal else "an exit"
    words = f": {ended.complaint}" if ended.complaint else ""
    return Outcome(kind=crash, detail=f"the process was ended by {name}{words}", stage=ended.stage)


def run(executable: Any, inputs: Sequence[Any], weights: Sequence[Any], *, transform: bool = True) -> list[np.ndarray]:
    """What an executable for the host computes: main(*inputs, *main_transform_params(weights)), or without it
    main(*inputs, *weights)."""
    device = tvm.device(kind_named(HOST).device, 0)
    machine = relax.VirtualMachine(executable, device)
    tensors = [tvm.runtime.tensor(np.array(array, order="C"), device) for array in (*inputs, *weights)]
    given, bound = tensors[: len(inputs)], tensors[len(inputs) :]
    if transform and bound:
        bound = list(machine[TRANSFORM](bound))
    found = machine["main"](*given, *bound)
    return [found.numpy()] if hasattr(found, "numpy") else [each.numpy() for each in found]


def run_naively(module: Any, inputs: Sequence[Any], weights: Sequence[Any]) -> list[np.ndarray]:
    """What a Relax module computes as it stands: each operator a loop of its own, nothing fused or scheduled. On a CPU."""
    names = {variable.name_hint for variable in module.functions}
    return run(compile_naively(module), inputs, weights, transform=TRANSFORM in names)


def compile_naively(module: Any) -> Any:
    """The executable of that."""
    transform = relax.transform
    steps = [transform.DecomposeOpsForInference(), relax.backend.DispatchSortScan(), transform.LegalizeOps()]
    with tvm.target.Target("llvm"), tvm.transform.PassContext(opt_level=0):
        return tvm.compile(tvm.transform.Sequential(steps)(module), target="llvm")
