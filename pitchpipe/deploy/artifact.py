"""Compiled models: opening one from disk, keeping them in a local cache, running them.

An artifact is a folder with `manifest.json` and the compiled model, which is a shared library (`model.so`) for a CPU and a
program (`model.gpu`) for a GPU. The manifest carries its digest, the target, the toolchain and the tensors, and
`manifest.sha256` the manifest's own; all of it is checked before the model is opened, since opening a library runs code.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.target_kind import Step, kind_of
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.comparison import not_compared
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.target import Target, Toolchain

MANIFEST_VERSION = 3
_VERSIONS = {1, 2, 3}
"""Manifests of version 1 were written when the compiled model was a library for every kind of target, those before version
3 when what had no trial ran the baseline."""


class Tensor(Wire):
    """Name, shape (elements per axis) and NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


SEAL = "manifest.sha256"
"""Name of the file with the manifest's digest."""


class Manifest(Wire):
    """What an artifact is made of and for."""

    version: int = MANIFEST_VERSION
    library: Digest | None = None
    """Of the compiled model's file; None for one that was compiled in this process and is on no disk."""
    target: Target
    toolchain: Toolchain
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    tuned: tuple[Digest, ...]
    """Workloads that run a tuned schedule."""
    untuned: tuple[Digest, ...]
    """The other workloads."""
    defaults: tuple[Digest, ...] = ()
    """Of those, the ones that run their default schedule, which was checked where this was built; the rest run the
    baseline."""
    computed: str | None = None
    """A type less precise than its tensors' in which it may multiply: `tf32`."""
    refused: dict[Digest, str] = {}
    """Of those, the ones whose schedule does not apply here, or whose default schedule is not right, and why."""


def cache_dir() -> Path:
    """Where artifacts are kept: PITCHPIPE_CACHE_DIR or the platform's cache folder."""
    return Path(os.environ.get("PITCHPIPE_CACHE_DIR") or platformdirs.user_cache_dir("pitchpipe"))


class Runs:
    """How often a compiled model has run, and which of its workloads run tuned schedules. Counting is one addition."""

    __slots__ = ("__weakref__", "done", "tuned")

    def __init__(self, tuned: Collection[Digest] = ()) -> None:
        self.done = 0
        self.tuned = tuned


class CompiledModel:
    """A compiled model whose weights are bound once. Call it with NumPy or DLPack arrays, in the order of `inputs`.

    Safe for concurrent calls; on a CPU they take turns. Arrays that lie on a GPU give results that stay there (see
    pitchpipe/gpu/executable.py), and arrays of the host give NumPy's.
    """

    def __init__(
        self, manifest: Manifest, compiled: Any, weights: Mapping[str, Any], *, ordinal: int | None = None
    ) -> None:
        """compiled: what the target's kind compiled or loaded. ordinal: of the device, where there are several."""
        self.manifest = manifest
        self.comparison = not_compared("nobody asked its framework")
        """With the framework that the model came from, as the proof run of its library found."""
        self.runs = Runs(manifest.tuned)
        kind = kind_of(manifest.target)
        takes = (manifest.inputs, manifest.params)
        self._running = kind.executable(compiled, *takes, manifest.target, ordinal=ordinal)
        self.bind(weights)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.manifest.inputs

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Copies, transforms and keeps the weights (arrays by parameter name).

        Raises InvalidInput for one that is missing or misshapen; the model then keeps the weights it had.
        """
        self._running.bind(weights)

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs. Raises InvalidInput.

        stream: on a GPU, the handle of the stream that the run goes to, for arrays that are not torch's; default: torch's
        current stream where torch is imported, else the default stream.
        """
        results = self._running(*arrays, stream=stream)
        self.runs.done += 1
        return results

    def __reduce__(self) -> str:
        """Raises TypeError: code and weights are in this process's memory, where no copy can follow."""
        raise TypeError(
            "a compiled model can be neither pickled nor copied; call pitchpipe.load with the same model again, in the other"
            " process too: the cache has what was built"
        )

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs, without moving inputs or outputs; for benchmarks."""
        return self._running.run_secs(*arrays, repeats=repeats)

    def steps(self, *arrays: Any, repeats: int) -> list[Step]:
        """What a run does, in its order, with the seconds of each step inside the running model; for profiles."""
        return self._running.steps(*arrays, repeats=repeats)


def linker() -> str | None:
    """The program that TVM links libraries with: CXX or CC, else the first of these on the path; None without one."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    names = [named] if named else ["g++", "gcc", "clang++", "clang", "c++", "cc"]
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


def lacks_linker(target: Target | None) -> bool:
    """Whether a model for the target cannot become an artifact here, for want of a linker; None: an unknown target."""
    return (target is None or kind_of(target).needs_linker) and linker() is None


def compiled_file(folder: Path, target: Target) -> Path:
    """The file of the compiled model in an artifact for the target."""
    return folder / kind_of(target).artifact


def write(folder: Path, target: Target, export: Callable[[Path], Manifest]) -> None:
    """Writes an artifact so that a reader sees all of it or nothing; of several writers the first one builds.

    `export` writes the compiled model to the path it is given and returns the manifest, whose `library` digest is set here.
    Raises InvalidInput when the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            filelock.FileLock(f"{folder}.lock"),
            tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch,
        ):
            if intact(folder):
                return
            for left in set(folder.parent.glob(f"{folder.name}-*")) - {Path(scratch)}:
                shutil.rmtree(left)  # of a writer that was killed: whoever is alive waits for the lock
            part = Path(scratch) / "artifact"
            part.mkdir()
            file = compiled_file(part, target)
            manifest = export(file)
            # What has neither default schedules nor TF32 is told as ever, so that older versions take it.
            absent = {name for name in ("defaults", "computed") if not getattr(manifest, name)}
            version = MANIFEST_VERSION if len(absent) < 2 else 1 if kind_of(target).needs_linker else 2
            sealed = manifest.model_copy(update={"library": sha256(file.read_bytes()), "version": version})
            told = sealed.model_dump_json(by_alias=True, indent=1, exclude=absent)
            (part / "manifest.json").write_text(told)
            (part / SEAL).write_text(sha256(told.encode()))
            if folder.exists():
                shutil.rmtree(folder)
            part.rename(folder)
    except OSError as error:
        raise InvalidInput(f"the cache {folder.parent} cannot be written: {error.strerror or error}") from error


def open_artifact(
    folder: Path, target: Target, weights: Mapping[str, Any], *, ordinal: int | None = None
) -> CompiledModel:
    """Opens an artifact. Raises IntegrityError when it is damaged and InvalidInput when it is for another target."""
    return CompiledModel(*open_library(folder, target), weights, ordinal=ordinal)


def open_library(folder: Path, target: Target) -> tuple[Manifest, Any]:
    """The manifest and the loaded model of an artifact, for who runs it in another way; raises as open_artifact."""
    manifest = read_manifest(folder)
    if manifest.target != target:
        raise InvalidInput(f"{folder.name} was built for {manifest.target}, not for {target}")
    return manifest, kind_of(target).load(compiled_file(folder, target), target)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact that is as it was written; raises IntegrityError."""
    try:
        told, seal = (folder / "manifest.json").read_bytes(), folder / SEAL
        if seal.exists() and seal.read_text() != sha256(told):  # Older versions wrote none.
            raise IntegrityError(f"{folder.name}: manifest.json does not have the digest that was written beside it")
        manifest = Manifest.model_validate_json(told)
        file = compiled_file(folder, manifest.target)
        library = file.read_bytes()
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder.name}: {error}") from error
    if manifest.version not in _VERSIONS:
        raise IntegrityError(f"{folder.name}: its manifest has version {manifest.version}, not {MANIFEST_VERSION}")
    if sha256(library) != manifest.library:
        raise IntegrityError(f"{folder.name}: {file.name} does not have the digest its manifest names")
    return manifest


def intact(folder: Path) -> bool:
    """Whether the folder holds an artifact whose library is what its manifest says."""
    try:
        read_manifest(folder)
    except IntegrityError:
        return False
    return True
