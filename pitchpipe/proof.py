"""Proof runs: a shared object is opened and run in a disposable child before a process that matters opens it.

A library is code. One that was miscompiled, damaged with its digest, or made for other hardware can crash or hang whoever
opens it, and no exception handler helps. The verdict is kept in the artifact's folder, under the library's digest, the
device and the compiler's version, so that each machine tries a library once.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from pitchpipe.artifact import CompiledModel, Tensor, open_artifact, read_manifest
from pitchpipe.errors import ArtifactRefused, NotFound
from pitchpipe.identity import machine_key, read_json, write_json
from pitchpipe.lifeline import end_with_parent
from pitchpipe.wire._base import Digest, Instant, Wire
from pitchpipe.wire.target import Target

PROOF_SECS = 120.0
"""Longest proof run: the runtime's import, a pass of the weights' transforms and one run, on a machine that is busy."""
RETRY_SECS = 3600.0
"""After it a proof run is repeated that failed for what may have been no fault of the library: a hang, an exception."""
_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
_RAN = "pitchpipe: ran"


class Proof(Wire):
    """The verdict on a library, on one machine."""

    library: Digest
    machine: Digest
    ok: bool
    final: bool
    """A crash is repeated by no one; a hang or an exception is tried again after RETRY_SECS."""
    detail: str = ""
    at: Instant


def proof_of(folder: Path) -> Proof | None:
    """The verdict on the artifact in the folder, if there is one that counts here and now. Raises IntegrityError."""
    found = read_json(_file(folder), Proof)
    if found is None or (found.library, found.machine) != (read_manifest(folder).library, machine_key()):
        return None
    age_secs = (datetime.now(UTC) - found.at).total_seconds()
    return found if found.final or 0 <= age_secs < RETRY_SECS else None


def prove(folder: Path, *, timeout_secs: float = PROOF_SECS) -> Proof:
    """The verdict; of several processes one makes the run, the others wait for it. Raises IntegrityError."""
    with filelock.FileLock(f"{folder}.lock"):
        found = proof_of(folder)
        if found is None:
            found = _tried(folder, timeout_secs)
            write_json(_file(folder), found)
        return found


def open_proved(folder: Path, target: Target, weights: Mapping[str, Any]) -> CompiledModel:
    """`open_artifact` for a library that passed its proof run on this machine.

    Raises NotFound when there was none yet, ArtifactRefused with its verdict when it failed.
    """
    verdict = proof_of(folder)
    if verdict is None:
        raise NotFound(f"{folder.name} was not tried on this machine yet")
    if not verdict.ok:
        raise ArtifactRefused(f"{folder.name}: {verdict.detail}")
    return open_artifact(folder, target, weights)


def _file(folder: Path) -> Path:
    return folder / f"proof-{machine_key()[:16]}.json"


def _tried(folder: Path, timeout_secs: float) -> Proof:
    library = read_manifest(folder).library
    command = [sys.executable, "-m", "pitchpipe.proof", str(folder), str(os.getpid())]
    ok, final = False, False
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_secs, check=False, env=os.environ
        )
    except subprocess.TimeoutExpired:
        detail = f"the proof run was still going after {timeout_secs:.0f} s"
    else:
        ok = ended.returncode == 0 and ended.stdout.decode(errors="replace").strip().endswith(_RAN)
        detail = "" if ok else _cause(ended)
        final = ok or -ended.returncode in _FATAL
    assert library is not None
    return Proof(library=library, machine=machine_key(), ok=ok, final=final, detail=detail[:1000], at=datetime.now(UTC))


def _cause(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        return f"the proof run was ended by {signal.Signals(-ended.returncode).name}"
    words = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"the proof run ended with {ended.returncode}: {words[-1]}"


def _try(folder: Path) -> None:
    """Opens the artifact and runs it once on zeros."""
    manifest = read_manifest(folder)
    model = open_artifact(folder, manifest.target, _zeros(manifest.params))
    model(*_zeros(manifest.inputs).values())


def _zeros(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    import numpy as np

    importlib.import_module("ml_dtypes")  # gives NumPy the dtypes that it has no name for, such as bfloat16
    return {tensor.name: np.zeros(tensor.shape, np.dtype(tensor.dtype)) for tensor in tensors}


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is an answer, not something to look into
    _try(Path(sys.argv[1]))
    print(_RAN, flush=True)
