"""Runs a step in a process of its own: what it compiles and runs cannot take the caller down.

Arguments and results are JSON, the model is bytes and arrays are .npy members (never pickled), in a scratch folder. The
child (launch.py) has the limits of its step (pitchpipe/wire/limits.py) and ends with everything it started: parser,
compiler, linker.
"""

from __future__ import annotations

import json
import math
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pitchpipe.arrays import load_arrays, save_arrays
from pitchpipe.errors import PitchpipeError, StepDied, StepTimeout, from_problem
from pitchpipe.processes.launch import launch
from pitchpipe.processes.lifeline import ending
from pitchpipe.processes.limits import limited
from pitchpipe.processes.plugins import names, step
from pitchpipe.wire.limits import OTHER_CLIENT_STEPS, STEP_LIMITS, StepLimits

WITH_TORCH = "pitchpipe.preloaded_with_torch"
"""Group of entry points: modules of steps that need PyTorch, by the step's name."""
_WORDS_BYTES = 1000
"""Of what a child that died had printed."""


def run_step(
    name: str,
    model: bytes = b"",
    arrays: Mapping[str, Any] | None = None,
    *,
    timeout_secs: float | None = None,
    meanwhile: Callable[[], object] | None = None,
    **arguments: Any,
) -> Any:
    """`step(name)(model, arrays, **arguments)` in a child; the result must be JSON.

    `meanwhile` is called here while the child works; what it raises ends the child and is raised.
    Raises the PitchpipeError the step raised, StepDied when its child died (or it raised any other error), StepTimeout
    past the step's limits of time or after `timeout_secs`, whichever is less.
    """
    wall_secs = min(timeout_secs or math.inf, _limits(name).wall_secs)
    with tempfile.TemporaryDirectory(prefix="pitchpipe-step-") as scratch:
        folder = Path(scratch)
        (folder / "arguments.json").write_text(json.dumps(arguments))
        (folder / "model").write_bytes(model)
        if arrays:
            save_arrays(folder / "arrays.npz", arrays)
        with (folder / "words").open("wb") as words:
            child = launch(
                f"{__name__}:main",
                name,
                scratch,
                stdout=words,
                stderr=words,
                launches=True,
                with_torch=name in names(WITH_TORCH),
            )
        deadline = time.monotonic() + wall_secs
        try:
            if meanwhile is not None:
                meanwhile()
            in_time = child.wait(deadline - time.monotonic())
        finally:
            child.close()  # Also after Ctrl-C, which does not reach it.
        if not in_time:
            raise StepTimeout(f"the step {name} took longer than {wall_secs:g} s and was killed")
        outcome = folder / "outcome.json"
        if not outcome.exists():
            if child.returncode == -signal.SIGXCPU:
                cpu_secs = _limits(name).cpu_secs
                raise StepTimeout(f"the step {name} took more than {cpu_secs} s of processor time and was killed")
            last = (folder / "words").read_text(errors="replace").strip()[-_WORDS_BYTES:]
            raise StepDied(f"the step {name} died: its child {ending(child.returncode)}: {last}")
        found = json.loads(outcome.read_text())
    if "error" in found:
        raise from_problem(found["status"], found["error"], found["detail"])
    return found["result"]


def _limits(name: str) -> StepLimits:
    return STEP_LIMITS.get(name, OTHER_CLIENT_STEPS)


def main(name: str, scratch: str) -> None:
    """The child: leaves its outcome in the folder."""
    folder = Path(scratch)
    arguments = json.loads((folder / "arguments.json").read_text())
    arrays = load_arrays(folder / "arrays.npz") if (folder / "arrays.npz").exists() else {}
    try:
        function = step(name)
        with limited(_limits(name)):
            outcome = {"result": function((folder / "model").read_bytes(), arrays, **arguments)}
    except MemoryError:
        died = StepDied(f"the step {name} needed more memory than it may take")
        outcome = {"error": died.code, "status": died.status, "detail": died.detail}
    except PitchpipeError as error:
        outcome = {"error": error.code, "status": error.status, "detail": error.detail}
    (folder / "outcome.part").write_text(json.dumps(outcome))
    (folder / "outcome.part").rename(folder / "outcome.json")
