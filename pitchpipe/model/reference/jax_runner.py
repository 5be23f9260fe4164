"""JAX: jitted and exported functions as they are called, and StableHLO files as XLA compiles them. Needs jax."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.extend.backend import get_backend

from pitchpipe.model.reference.expected import CannotRun, ModelFile


class FunctionRunner:
    """What jax.jit or jax.export made. Of the latter, without arguments, they are drawn."""

    steps: tuple[float, ...] = ()
    computed: str | None = None
    rounded = widened = None

    def __init__(self, function: Any, arguments: Sequence[Any] | None) -> None:
        self.name = f"JAX {jax.__version__}"
        self.weights: dict[str, np.ndarray] = {}
        if hasattr(function, "mlir_module_serialized"):
            self._tree, shapes = function.in_tree, [(aval.shape, aval.dtype) for aval in function.in_avals]
            self.examples = [drawn(shape, dtype) for shape, dtype in shapes]
            self._call = function.call
        else:
            leaves, tree = jax.tree_util.tree_flatten((tuple(arguments or ()), {}))
            self.examples = [np.asarray(jax.numpy.asarray(leaf)) for leaf in leaves]
            self._tree, self._call = tree, function

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        positional, keywords = jax.tree_util.tree_unflatten(self._tree, list(arrays))
        found = self._call(*positional, **keywords)
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(found)]


class ModuleRunner:
    """A StableHLO module, text or a portable artifact. `specs` are the shapes and types of what its main takes."""

    steps: tuple[float, ...] = ()
    computed: str | None = None
    rounded = widened = None

    def __init__(self, data: bytes, specs: Sequence[tuple[Sequence[int], str]]) -> None:
        self.name = f"JAX {jax.__version__}"
        self.weights: dict[str, np.ndarray] = {}
        self.examples = [drawn(shape, np.dtype(dtype)) for shape, dtype in specs]
        backend: Any = get_backend("cpu")
        # No public function of JAX runs a module that it did not make in the same process.
        native, client = import_module("jaxlib._jax"), import_module("jaxlib.xla_client")
        if not hasattr(backend, "compile_and_load") or not hasattr(native, "DeviceList"):
            raise CannotRun(f"{self.name} does not run StableHLO modules in a way that is known here")
        self._device = backend.local_devices()[0]
        module = data if data.startswith(b"ML\xefR") else data.decode()
        devices = native.DeviceList((self._device,))
        self._loaded = backend.compile_and_load(module, devices, client.CompileOptions())

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with jax.enable_x64(True):  # else arrays of 64 bits are cut to 32
            given = [jax.device_put(array, self._device) for array in arrays]
        found = self._loaded.execute_sharded(given).disassemble_into_single_device_arrays()
        return [np.asarray(part[0]) for part in found]


def from_file(file: ModelFile) -> ModuleRunner:
    """The framework with the file."""
    return ModuleRunner(file.path.read_bytes(), file.specs)


def drawn(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Standard normal numbers; whole numbers are 0 or 1, which any embedding or mask takes."""
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    if kind.kind in "biu":
        return rng.integers(0, 2, tuple(shape)).astype(kind)
    return rng.standard_normal(tuple(shape)).astype(kind)
