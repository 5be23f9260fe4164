"""Proof runs: a shared object is opened and run in a disposable child before a process that matters opens it.

A library is code. One that was miscompiled, damaged with its digest, or made for other hardware can crash or hang whoever
opens it, and no exception handler helps. One that runs may be wrong: where the model's framework can be asked, the child
runs the library on the framework's inputs, with the model's weights, and compares the outputs. The verdict is kept in the
artifact's folder, under the library's digest, the device and the compiler's version, so that each machine tries a library
once.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from pitchpipe.arrays import numpy_dtype
from pitchpipe.deploy.artifact import CompiledModel, Tensor, open_artifact, read_manifest
from pitchpipe.deploy.evidence import Evidence, compared
from pitchpipe.deploy.identity import machine_key, read_json, write_json
from pitchpipe.errors import ArtifactRefused, NotFound, WrongResult
from pitchpipe.model.comparison import Agreement
from pitchpipe.model.reference import NoSource, Source
from pitchpipe.processes.cores import with_tvm_threads
from pitchpipe.processes.launch import Completed, run
from pitchpipe.wire._base import Digest, Instant, Wire
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.target import Target

PROOF_SECS = 120.0
"""Longest proof run: the runtime's import, a pass of the weights' transforms and one run, on a machine that is busy."""
RETRY_SECS = 3600.0
"""After it a proof run is repeated that failed for what may have been no fault of the library: a hang, an exception."""
_FATAL = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
_RAN = "pitchpipe: ran "


Witness = Callable[[], Evidence | Comparison]
"""Asks a model's framework, or says why it could not be asked."""


class Proof(Wire):
    """The verdict on a library, on one machine."""

    library: Digest
    machine: Digest
    ok: bool
    final: bool
    """A crash is repeated by no one; a hang or an exception is tried again after RETRY_SECS."""
    wrong: bool = False
    """It ran, and its outputs differ from the framework's."""
    detail: str = ""
    comparison: Comparison | None = None
    """Of a library that is not wrong; None where nobody who tried it could ask the framework."""
    at: Instant


def proof_of(folder: Path) -> Proof | None:
    """The verdict on the artifact in the folder, if there is one that counts here and now. Raises IntegrityError."""
    found = read_json(_file(folder), Proof)
    if found is None or (found.library, found.machine) != (read_manifest(folder).library, machine_key()):
        return None
    return found if found.final or _recent(found) else None


def prove(folder: Path, *, timeout_secs: float = PROOF_SECS, evidence: Witness | None = None) -> Proof:
    """The verdict; of several processes one makes the run, the others wait for it. Raises IntegrityError.

    `evidence` is asked once, and only if there is no verdict that says how the library compares.
    """
    with filelock.FileLock(f"{folder}.lock"):
        found = proof_of(folder)
        if found is None or (evidence is not None and not _says_enough(found)):
            found = _tried(folder, timeout_secs, evidence() if evidence is not None else None)
            write_json(_file(folder), found)
        return found


def open_proved(
    folder: Path,
    target: Target,
    weights: Mapping[str, Any],
    *,
    source: Source | None = None,
    ordinal: int | None = None,
) -> CompiledModel:
    """`open_artifact` for a library that passed its proof run on this machine.

    With a `source` that can be asked, a verdict that does not say how the library compares is none. Raises NotFound when
    there was none yet, WrongResult when the outputs were wrong, ArtifactRefused with its verdict when it failed otherwise.
    """
    verdict = proof_of(folder)
    asked = source is not None and not isinstance(source, NoSource)
    if verdict is None or (asked and not _says_enough(verdict)):
        raise NotFound(f"{folder.name} was not tried on this machine yet")
    check(verdict, folder)
    model = open_artifact(folder, target, weights, ordinal=ordinal)
    model.comparison = verdict.comparison or not_compared(
        source.reason if isinstance(source, NoSource) else "nobody who tried it here could ask its framework"
    )
    return model


def check(verdict: Proof, folder: Path) -> None:
    """Raises WrongResult or ArtifactRefused unless the library passed."""
    if verdict.wrong:
        raise WrongResult(verdict.detail)
    if not verdict.ok:
        raise ArtifactRefused(f"{folder.name}: {verdict.detail}")


def _says_enough(found: Proof) -> bool:
    """Whether nothing would be won by asking the framework."""
    if not found.ok or (found.comparison is not None and found.comparison.compared):
        return True
    return found.comparison is not None and _recent(found)


def _recent(found: Proof) -> bool:
    return 0 <= (datetime.now(UTC) - found.at).total_seconds() < RETRY_SECS


def _file(folder: Path) -> Path:
    return folder / f"proof-{machine_key()[:16]}.json"


def _tried(folder: Path, timeout_secs: float, evidence: Evidence | Comparison | None) -> Proof:
    manifest = read_manifest(folder)
    ok, final, wrong = False, False, False
    comparison = evidence if isinstance(evidence, Comparison) else None
    with tempfile.TemporaryDirectory(prefix="pitchpipe-proof-") as scratch:
        arguments = [str(folder)]
        if isinstance(evidence, Evidence):
            evidence.write(Path(scratch))
            arguments.append(scratch)
            timeout_secs *= 1 + len(evidence.expected.inputs)
        environment = with_tvm_threads(os.environ, manifest.target.num_cores)  # as pitchpipe/vm.py has it
        try:
            ended = run(f"{__name__}:main", *arguments, timeout_secs=timeout_secs, environment=environment)
        except TimeoutError:
            detail = f"the proof run was still going after {timeout_secs:.0f} s"
        else:
            told = _told(ended)
            ok = told is not None
            detail = "" if ok else _cause(ended)
            final = ok or -ended.returncode in _FATAL
            if isinstance(evidence, Evidence) and told is not None:
                comparison, detail = _judged(told, evidence)
                wrong = bool(detail)
                ok = not wrong
    assert manifest.library is not None
    now = datetime.now(UTC)
    verdict = {"ok": ok, "final": final, "wrong": wrong, "detail": detail[:1000], "comparison": comparison, "at": now}
    return Proof(library=manifest.library, machine=machine_key(), **verdict)


def _told(ended: Completed) -> dict[str, Any] | None:
    """What a run that came to its end said; None of one that did not."""
    last = (ended.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]
    if ended.returncode != 0 or not last.startswith(_RAN):
        return None
    try:
        told: dict[str, Any] = json.loads(last.removeprefix(_RAN))
    except ValueError:
        return None
    return told


def _judged(told: dict[str, Any], evidence: Evidence) -> tuple[Comparison | None, str]:
    """The comparison, or how the outputs differ."""
    if "incomparable" in told:
        return not_compared(told["incomparable"]), ""
    found = Agreement(**told)
    if found.difference is not None:
        return None, f"{found.difference}, compared with {evidence.expected.reference}"
    return evidence.expected.comparison(found), ""


def _cause(ended: Completed) -> str:
    if ended.returncode < 0:
        return f"the proof run was ended by {signal.Signals(-ended.returncode).name}"
    words = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    return f"the proof run ended with {ended.returncode}: {words[-1]}"


def _try(folder: Path, evidence: Evidence | None) -> dict[str, Any]:
    """Opens the artifact and runs it: on the framework's inputs, with the model's weights, or once on zeros."""
    manifest = read_manifest(folder)
    if evidence is not None and all(param.name in evidence.weights for param in manifest.params):
        found = compared(open_artifact(folder, manifest.target, evidence.weights), evidence)
        if isinstance(found, Agreement):
            return asdict(found)
        reason = found.reason
    else:
        reason = "its weights are not here"
    model = open_artifact(folder, manifest.target, _zeros(manifest.params))
    model(*_zeros(manifest.inputs).values())
    return {"incomparable": reason}


def _zeros(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    import numpy as np

    return {tensor.name: np.zeros(tensor.shape, numpy_dtype(tensor.dtype)) for tensor in tensors}


def main(folder: str, evidence: str | None = None) -> None:
    """The child. folder: of the artifact. evidence: where Evidence was written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash here is an answer, not something to look into
    told = _try(Path(folder), None if evidence is None else Evidence.read(Path(evidence)))
    print(_RAN + json.dumps(told), flush=True)
