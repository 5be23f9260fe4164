"""Runs a step in a process of its own: what it compiles and runs cannot take the caller down.

Arguments and results are JSON, the model is bytes and arrays are .npy members (never pickled), in a scratch folder. A
subprocess rather than a forked or spawned one, so that it works from any caller: with threads, or without a main guard.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pitchpipe.errors import DeadlineExceeded, MeasurementFailed, PitchpipeError, from_problem
from pitchpipe.lifeline import end_with_parent
from pitchpipe.plugins import step


def run_step(
    name: str,
    model: bytes = b"",
    arrays: Mapping[str, Any] | None = None,
    *,
    timeout_secs: float | None = None,
    **arguments: Any,
) -> Any:
    """`step(name)(model, arrays, **arguments)` in a child; the result must be JSON.

    Raises the PitchpipeError the step raised, MeasurementFailed when the child died, DeadlineExceeded after `timeout_secs`.
    """
    with tempfile.TemporaryDirectory(prefix="pitchpipe-step-") as scratch:
        folder = Path(scratch)
        (folder / "arguments.json").write_text(json.dumps(arguments))
        (folder / "model").write_bytes(model)
        if arrays:
            import numpy as np

            np.savez(folder / "arrays.npz", **{f"a{i}": array for i, array in enumerate(arrays.values())})
            (folder / "names.json").write_text(json.dumps(list(arrays)))
        command = [sys.executable, "-m", "pitchpipe.child", name, scratch, str(os.getpid())]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=timeout_secs, check=False, env=os.environ)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceeded(f"{name} took longer than {timeout_secs:.0f} s") from error
        outcome = folder / "outcome.json"
        if not outcome.exists():
            words = ended.stderr.decode(errors="replace").strip()[-1000:]
            raise MeasurementFailed(f"the child running {name} ended with {ended.returncode}: {words}")
        found = json.loads(outcome.read_text())
    if "error" in found:
        raise from_problem(found["status"], found["error"], found["detail"])
    return found["result"]


def _main(name: str, folder: Path) -> None:
    arguments = json.loads((folder / "arguments.json").read_text())
    arrays: dict[str, Any] = {}
    if (folder / "arrays.npz").exists():
        import numpy as np

        with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
            arrays = {array: stored[f"a{i}"] for i, array in enumerate(json.loads((folder / "names.json").read_text()))}
    try:
        outcome = {"result": step(name)((folder / "model").read_bytes(), arrays, **arguments)}
    except PitchpipeError as error:
        outcome = {"error": error.code, "status": error.status, "detail": error.detail}
    (folder / "outcome.part").write_text(json.dumps(outcome))
    (folder / "outcome.part").rename(folder / "outcome.json")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[3]))
    _main(sys.argv[1], Path(sys.argv[2]))
