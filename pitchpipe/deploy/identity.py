"""What this machine and a model on a target are called: asked of a compiler once, kept in the cache, then read.

A look-up needs a target and workload digests, and both take a child with the compiler, which is slower than the look-up.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from pitchpipe.model.local import LocalModel, detect_target
from pitchpipe.processes.child import run_step
from pitchpipe.processes.plugins import MissingExtra
from pitchpipe.target_kind import TargetKind, kinds
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.context import Context
from pitchpipe.wire.ids import json_digest, sha256
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Signature

_T = TypeVar("_T", bound=BaseModel)


class Identity(Wire):
    """A model on a target."""

    workloads: tuple[Digest, ...]
    weights: dict[Digest, int]
    """Times that each workload occurs in one run of the model."""
    signatures: dict[Digest, Signature]
    functions: dict[str, Digest] = {}
    """Names of tensor functions, as a profile has them, and what they compute."""
    toolchain: str
    contexts: dict[Digest, Context] = {}
    """What stands around each workload; empty where models are not tuned inside."""


def versions() -> list[str]:
    """Of what decides the code that a schedule becomes. Raises MissingExtra without a compiler."""
    try:
        return [version(name) for name in ("pitchpipe", "apache-tvm", "apache-tvm-ffi")]
    except PackageNotFoundError as error:
        raise MissingExtra(f"{error.name} is not installed: install pitchpipe[compiler]") from error


def defaults_folder(cache: Path) -> Path:
    """Where verdicts on default schedules are kept: those of this machine, this compiler and this code."""
    return cache / "defaults" / json_digest([versions(), preparation(), machine_key()])


@cache
def machine_key() -> str:
    """Digest of the device and the compiler, if there is one, as this process finds them: what a proof run here says
    something about."""
    return json_digest([versions_here() or [], [_device_identity(kind) for kind in kinds()]])


def _device_identity(kind: TargetKind) -> list[str]:
    """Nothing for a kind that needs what is not installed here: no model of it runs here either."""
    try:
        return kind.device_identity()
    except ImportError:
        return []


def versions_here() -> list[str] | None:
    """The same as `versions`; None without a compiler."""
    try:
        return versions()
    except MissingExtra:
        return None


def this_target(cache: Path) -> Target:
    """The target of this machine. Raises MeasurementFailed when the compiler does not start here."""
    return known_target(cache) or _keep(_target_file(cache), detect_target("auto"))


def known_target(cache: Path) -> Target | None:
    """The same if it was asked for before."""
    return read_json(_target_file(cache), Target)


def identify(cache: Path, model: LocalModel, target: Target) -> Identity:
    """The model's workloads on the target; a child reads and prepares the model unless that was done before."""
    found = known_identity(cache, model, target)
    if found is not None:
        return found
    answer = run_step("identify", model.data, model_format=model.format.value, target=target.key)
    return _keep(_identity_file(cache, model, target), Identity.model_validate(answer))


def known_identity(cache: Path, model: LocalModel, target: Target) -> Identity | None:
    """The same if it was asked for before."""
    return read_json(_identity_file(cache, model, target), Identity)


def _target_file(cache: Path) -> Path:
    return cache / "targets" / f"{machine_key()}.json"


def _identity_file(cache: Path, model: LocalModel, target: Target) -> Path:
    key = json_digest([sha256(model.data), model.format.value, target.key, versions(), preparation()])
    return cache / "identities" / f"{key}.json"


@cache
def preparation() -> str:
    """Digest of the code that decides what a model becomes, which between releases has one version.

    What was made before a change of it is not used after it: identities, artifacts, comparisons.
    """
    sdk, tuner = Path(__file__).parents[1], importlib.util.find_spec("tuner")
    folders = [Path(folder) for folder in (tuner.submodule_search_locations or [])] if tuner is not None else []
    formats = [sdk / "gpu" / "program.py", sdk / "gpu" / "encoding.py"]
    return code_digest([*folders, sdk / "model", sdk / "torch_operators", *formats])


def code_digest(places: Sequence[Path]) -> str:
    """Of the contents of Python files, and of all in folders, to any depth, by their names there."""
    found = []
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*.py"))
        found += [[str(file.relative_to(place.parent)), sha256(file.read_bytes())] for file in files]
    return json_digest(found)


def write_json(path: Path, value: BaseModel) -> None:
    """`write_text` of a wire type."""
    write_text(path, value.model_dump_json(by_alias=True, indent=1))


def write_text(path: Path, text: str) -> None:
    """Replaces the file in one step. A cache that cannot be written is none: what is asked for is then asked again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as part:
            part.write(text)
        os.replace(part.name, path)


def read_json(path: Path, kind: type[_T]) -> _T | None:
    """What `write_json` wrote; None when it is absent, damaged or of another version."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(path: Path, value: _T) -> _T:
    write_json(path, value)
    return value
