"""From a model and schedules to an artifact in the cache that this machine has tried."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pitchpipe.deploy.artifact import Manifest, write
from pitchpipe.deploy.identity import defaults_folder, preparation, read_json, versions, write_json
from pitchpipe.deploy.proof import PROOF_SECS, Witness, check, prove
from pitchpipe.errors import PitchpipeError
from pitchpipe.model.local import LocalModel
from pitchpipe.processes.child import run_step
from pitchpipe.wire._base import Instant, Wire
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.target import Target

log = logging.getLogger("pitchpipe")
RETRY_SECS = 3600.0
"""How long a build that failed is not tried again in the background."""


class Failure(Wire):
    """Why an artifact could not be built."""

    detail: str
    at: Instant


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """Everything that decides what an artifact is."""

    model: LocalModel
    target: Target
    traces: Mapping[str, str]
    """By workload digest; a workload without one runs its default schedule where that was checked, else the baseline."""
    compiler: tuple[str, ...] | None = None
    """Versions of what makes it; None: of what is installed here."""

    @property
    def key(self) -> str:
        """Equal specs have equal keys, on every machine with these versions of the compiler and of the code before it."""
        model = [sha256(self.model.data), self.model.format.value]
        compiler = versions() if self.compiler is None else list(self.compiler)
        return json_digest([*model, self.target.key, sorted(self.traces.items()), compiler, preparation()])

    def folder(self, cache: Path) -> Path:
        """Where its artifact is or will be."""
        return artifact_folder(cache, self.key)


def artifact_folder(cache: Path, key: str) -> Path:
    """Where the artifact of the spec with that key is or will be."""
    return cache / "artifacts" / key


def compile_only(spec: BuildSpec, cache: Path, *, meanwhile: Callable[[], object] | None = None) -> Path:
    """Builds the artifact in a child, unless that was done, and has it tried by nobody; its folder. Raises as `make` does
    but for the proof run. `meanwhile` is called while the child works."""
    folder, model = spec.folder(cache), spec.model
    plan: dict[str, Any] = {"target": spec.target.key, "traces": dict(spec.traces)}

    def export(library: Path) -> Manifest:
        places: dict[str, Any] = {"library": str(library), "defaults": str(defaults_folder(cache))}
        made = run_step("build", model.data, model_format=model.format.value, meanwhile=meanwhile, **plan, **places)
        manifest = Manifest.model_validate(made)
        for workload, reason in manifest.refused.items():
            log.warning("%s: workload %s: %s", model.name, workload[:16], reason)
        return manifest

    try:
        write(folder, spec.target, export)
    except PitchpipeError as error:
        write_json(_failure_file(folder), Failure(detail=error.detail[:1000], at=datetime.now(UTC)))
        raise
    return folder


def make(spec: BuildSpec, cache: Path, *, proof_secs: float = PROOF_SECS, evidence: Witness | None = None) -> Path:
    """Builds the artifact in a child and has it tried in another, unless both were done; its folder.

    Of several processes one works and the others wait. `evidence` asks the model's framework, whose outputs the proof run
    compares with, while the child builds: that leaves cores idle. Raises InvalidTrace, ArtifactRefused when the proof run
    fails, WrongResult when it shows other outputs, InvalidInput when the cache cannot be written, PitchpipeError when the
    compiler or the linker refuses.
    """
    asked = None if evidence is None else functools.cache(evidence)
    folder = compile_only(spec, cache, meanwhile=asked)
    check(prove(folder, timeout_secs=proof_secs, evidence=asked), folder)
    return folder


def failure(folder: Path) -> Failure | None:
    """Why building failed, if it did so within the last RETRY_SECS."""
    found = read_json(_failure_file(folder), Failure)
    if found is None or (datetime.now(UTC) - found.at).total_seconds() > RETRY_SECS:
        return None
    return found


def _failure_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.failure.json")
