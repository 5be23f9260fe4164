"""Compiled models: opening one from disk, keeping them in a local cache, running them.

An artifact is a folder with `model.so` and `manifest.json`. The manifest carries the library's digest, the target, the
toolchain and the tensors; all of it is checked before the library is opened, since opening one runs code.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock
import platformdirs

from pitchpipe.errors import IntegrityError, InvalidInput
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire._base import Digest, Wire
from pitchpipe.wire.comparison import not_compared
from pitchpipe.wire.ids import sha256
from pitchpipe.wire.target import Target, Toolchain

MANIFEST_VERSION = 1


class Tensor(Wire):
    """Name, shape (elements per axis) and NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Manifest(Wire):
    """What an artifact is made of and for."""

    version: int = MANIFEST_VERSION
    library: Digest | None = None
    """Of `model.so`; None for a model that was compiled in this process and is on no disk."""
    target: Target
    toolchain: Toolchain
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    tuned: tuple[Digest, ...]
    """Workloads that run a tuned schedule."""
    untuned: tuple[Digest, ...]
    """Workloads that run the baseline."""
    refused: dict[Digest, str] = {}
    """Of those, the ones whose schedule does not apply here, and why."""


def cache_dir() -> Path:
    """Where artifacts are kept: PITCHPIPE_CACHE_DIR or the platform's cache folder."""
    return Path(os.environ.get("PITCHPIPE_CACHE_DIR") or platformdirs.user_cache_dir("pitchpipe"))


class CompiledModel:
    """A compiled model whose weights are bound once. Call it with NumPy or DLPack arrays, in the order of `inputs`.

    Not safe for concurrent calls: the executable reuses its buffers.
    """

    def __init__(self, manifest: Manifest, module: Any, weights: Mapping[str, Any]) -> None:
        self.manifest = manifest
        self.comparison = not_compared("nobody asked its framework")
        """With the framework that the model came from, as the proof run of its library found."""
        tvm = _runtime(manifest.target)
        self._tvm = tvm
        self._device = tvm.device(kind_of(manifest.target).device, 0)
        self._machine = importlib.import_module("tvm.relax").VirtualMachine(module, self._device)
        self._main = self._machine["main"]
        self.bind(weights)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.manifest.inputs

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Copies, transforms and keeps the weights (arrays by parameter name).

        Raises InvalidInput for one that is missing or misshapen; the model then keeps the weights it had.
        """
        params = []
        for param in self.manifest.params:
            if param.name not in weights:
                raise InvalidInput(f"no weight named {param.name!r} was given")
            params.append(self._tensor(param, weights[param.name], copy=True))
        self._params = list(self._machine["main_transform_params"](params)) if params else []

    def __call__(self, *arrays: Any) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs. Raises InvalidInput."""
        if len(arrays) != len(self.inputs):
            raise InvalidInput(f"the model takes {len(self.inputs)} arrays, not {len(arrays)}")
        tensors = [self._tensor(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        result = self._main(*tensors, *self._params)
        return _copied(result) if hasattr(result, "numpy") else tuple(_copied(part) for part in result)

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs, without moving inputs or outputs; for benchmarks."""
        tensors = [self._tensor(spec, array) for spec, array in zip(self.inputs, arrays, strict=True)]
        self._machine.set_input("main", *tensors, *self._params)
        timer = self._machine.time_evaluator("invoke_stateful", self._device, number=1, repeat=repeats)
        return [float(secs) for secs in timer("main").results]

    def _tensor(self, spec: Tensor, array: Any, *, copy: bool = False) -> Any:
        """The array on the model's device: without a copy where DLPack and the compiled code's alignment allow."""
        try:
            found = self._adopted(array)
            fits = found.dtype == spec.dtype and found.shape == spec.shape  # a type that TVM does not know raises here
        except Exception as error:  # whatever an array library raises for an array that it cannot hand over
            raise InvalidInput(f"{spec.name} is no array that can be used: {error}") from error
        if not fits:
            has = f"{found.dtype}{list(found.shape)}"
            raise InvalidInput(f"{spec.name} must be {spec.dtype}{list(spec.shape)}, not {has}")
        return found.copyto(self._device) if copy or found.device != self._device else found

    def _adopted(self, array: Any) -> Any:
        import numpy as np

        runtime = self._tvm.runtime
        if not hasattr(array, "__dlpack__"):
            return runtime.tensor(_plain(array), self._device)
        if hasattr(array, "detach"):
            array = array.detach()
        try:
            return runtime.from_dlpack(array)
        except (RuntimeError, ValueError, BufferError):
            # Strided, read-only, big-endian, or not aligned as compiled code expects.
            if isinstance(array, np.ndarray):
                return runtime.tensor(_plain(array), self._device)
            if hasattr(array, "clone"):
                return runtime.from_dlpack(array.contiguous().clone())
            return runtime.tensor(np.array(np.from_dlpack(array), order="C"), self._device)


def _plain(array: Any) -> Any:
    """NumPy's array in row-major order and in this machine's order of bytes."""
    import numpy as np

    found = np.asarray(array)
    native = found.dtype if found.dtype.isnative else found.dtype.newbyteorder("=")
    return found.astype(native, order="C", copy=False)


def _copied(result: Any) -> Any:
    """A result as NumPy's array, in memory of its own: the executable keeps what it gives back, and may give it again."""
    import numpy as np

    try:
        return np.array(np.from_dlpack(result))
    except (RuntimeError, TypeError, BufferError):  # on another device, or of a type that NumPy lacks
        return result.numpy()


def linker() -> str | None:
    """The program that TVM links libraries with: CXX or CC, else the first of these on the path; None without one."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    names = [named] if named else ["g++", "gcc", "clang++", "clang", "c++", "cc"]
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


def write(folder: Path, export: Callable[[Path], Manifest]) -> None:
    """Writes an artifact so that a reader sees all of it or nothing; of several writers the first one builds.

    `export` writes the library to the path it is given and returns the manifest, whose `library` digest is set here.
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
            manifest = export(part / "model.so")
            sealed = manifest.model_copy(update={"library": sha256((part / "model.so").read_bytes())})
            (part / "manifest.json").write_text(sealed.model_dump_json(by_alias=True, indent=1))
            if folder.exists():
                shutil.rmtree(folder)
            part.rename(folder)
    except OSError as error:
        raise InvalidInput(f"the cache {folder.parent} cannot be written: {error.strerror or error}") from error


def open_artifact(folder: Path, target: Target, weights: Mapping[str, Any]) -> CompiledModel:
    """Opens an artifact. Raises IntegrityError when it is damaged and InvalidInput when it is for another target."""
    return CompiledModel(*open_library(folder, target), weights)


def open_library(folder: Path, target: Target) -> tuple[Manifest, Any]:
    """The manifest and the loaded library of an artifact, for who runs it in another way; raises as open_artifact."""
    manifest = read_manifest(folder)
    if manifest.target != target:
        raise InvalidInput(f"{folder.name} was built for {manifest.target}, not for {target}")
    return manifest, _runtime(target).runtime.load_module(str(folder / "model.so"))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact whose library is what the manifest says; raises IntegrityError."""
    try:
        manifest = Manifest.model_validate_json((folder / "manifest.json").read_text())
        library = (folder / "model.so").read_bytes()
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{folder.name}: {error}") from error
    if manifest.version != MANIFEST_VERSION:
        raise IntegrityError(f"{folder.name}: its manifest has version {manifest.version}, not {MANIFEST_VERSION}")
    if sha256(library) != manifest.library:
        raise IntegrityError(f"{folder.name}: model.so does not have the digest its manifest names")
    return manifest


def intact(folder: Path) -> bool:
    """Whether the folder holds an artifact whose library is what its manifest says."""
    try:
        read_manifest(folder)
    except IntegrityError:
        return False
    return True


def _runtime(target: Target) -> Any:
    """TVM with its thread count set before first use: on its own it would use half of the cores (see docs/operations.md)."""
    os.environ.setdefault("TVM_NUM_THREADS", str(target.num_cores or usable_cores()))
    if "torch" in sys.modules:
        return importlib.import_module("tvm")
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would import an installed torch: 2 s for nothing
    try:
        tvm = importlib.import_module("tvm")
    finally:
        del sys.modules["torch"]
    wanted = int(os.environ["TVM_NUM_THREADS"])
    if (got := int(tvm.runtime.num_threads())) != wanted:
        warnings.warn(f"TVM runs on {got} threads, not {wanted}: it was imported earlier", RuntimeWarning, stacklevel=3)
    return tvm
