"""Calls of a torch module: taken apart into tensors, run by a compiled build, and put together as the module gives them.

A build reads the module's own parameters and buffers in every call, so what an optimiser or `load_state_dict` changes is
seen. Nothing here changes the module. Needs torch.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pitchpipe.deploy.artifact import open_library
from pitchpipe.errors import InvalidInput
from pitchpipe.model.local import LocalModel
from pitchpipe.model.reference import CannotRun
from pitchpipe.model.reference.torch_runner import own_copy
from pitchpipe.target_kind import kind_of, kind_of_device
from pitchpipe.torch_operators.arrays import to_tensor
from pitchpipe.wire.target import Target

Leaves = Sequence[Any]
_VERSION = attrgetter("_version")


class ModuleCalls:
    """Which calls of a module are like the one with its examples, and how their results are put together."""

    def __init__(self, module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Runs a copy of the module once. Raises InvalidInput for arguments that are not its, or lie on several devices."""
        self.module = module
        self._signature = inspect.signature(module.forward)
        try:
            self.arguments, self.keywords = self._ordered(arguments, keywords)
        except TypeError as error:
            raise InvalidInput(f"the module cannot be called with these example inputs: {error}") from error
        leaves, self._spec = pytree.tree_flatten((self.arguments, self.keywords))
        self.example: Leaves = leaves
        """The leaves of the examples."""
        self._kinds = [_kind(leaf) for leaf in leaves]
        tensors = self.tensors(leaves)
        devices = {one.device for one in (*tensors, *module.parameters(), *module.buffers())}
        if len(devices) != 1:
            names = ", ".join(sorted(map(str, devices))) or "none"
            raise InvalidInput(f"the module and its example inputs must lie on one device, not on {names}")
        (self.device,) = devices
        self._autocast = torch.is_autocast_enabled(self.device.type)
        try:
            copied = own_copy(module)
        except CannotRun as error:
            raise InvalidInput(f"{error}, and without a copy its state would not stay as it is") from error
        with torch.random.fork_rng(), torch.no_grad():
            found = copied(*self.arguments, **self.keywords)
        results, self._result_spec = pytree.tree_flatten(found)
        self._results = [None if isinstance(one, torch.Tensor) else one for one in results]
        self._results_at = [at for at, one in enumerate(results) if isinstance(one, torch.Tensor)]
        self.results = [results[at] for at in self._results_at]
        """Of the module, on the examples."""
        odd = [one for one in self._results if not isinstance(one, (int, float, str, type(None)))]
        if odd or not self.results:
            told = type(odd[0]).__name__ if odd else "nothing"
            raise InvalidInput(f"the module gives {told}, where tensors in tuples, lists and dicts are expected")

    @property
    def target_name(self) -> str:
        """The device's, as `target` names it."""
        index = self.device.index
        return kind_of_device(self.device.type).name + (f":{index}" if index else "")

    def flat(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Leaves | None:
        """The leaves of a call that is like the example's but for shapes and types; None of any other."""
        try:
            flat: tuple[Leaves, Any] = pytree.tree_flatten(self._ordered(arguments, keywords))
        except TypeError:
            return None  # the module says what is wrong with them
        leaves, spec = flat
        if spec != self._spec or self.module.training:
            return None
        if torch.is_autocast_enabled(self.device.type) != self._autocast:
            return None
        return leaves

    def fits(self, leaves: Leaves) -> bool:
        """Whether a build was made for such leaves, and none of them is to get a gradient."""
        steps = torch.is_grad_enabled()
        for leaf, kind in zip(leaves, self._kinds, strict=True):
            if _kind(leaf) != kind or (steps and isinstance(leaf, torch.Tensor) and leaf.requires_grad):
                return False
        return True

    def put_together(self, tensors: Sequence[Any]) -> Any:
        """The module's result with these tensors in it."""
        results = list(self._results)
        for at, tensor in zip(self._results_at, tensors, strict=True):
            results[at] = tensor
        return pytree.tree_unflatten(results, self._result_spec)

    def run_module(self) -> Any:
        """On the examples, without gradients, as a program runs it for inference."""
        with torch.no_grad():
            return self.module(*self.arguments, **self.keywords)

    def timed(self, call: Callable[[], object]) -> Callable[[int], list[float]]:
        """A side of an interleaved timing: the seconds of each of so many runs, until their results are there."""
        queues = kind_of_device(self.device.type).has_streams

        def secs(runs: int) -> list[float]:
            found = []
            for _ in range(runs):
                if queues:
                    torch.accelerator.synchronize(self.device)
                started = time.perf_counter()
                call()
                if queues:
                    torch.accelerator.synchronize(self.device)
                found.append(time.perf_counter() - started)
            return found

        return secs

    def tensors(self, leaves: Leaves) -> list[Any]:
        """Those of them that are tensors, in order."""
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def _ordered(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """However a call names its arguments, those that it may give by position, then the others."""
        bound = self._signature.bind(*arguments, **keywords)
        return bound.args, bound.kwargs


class ModuleBuild:
    """A compiled build in a module's place. Thread-safe."""

    def __init__(self, calls: ModuleCalls, model: LocalModel, folder: Path, target: Target) -> None:
        """folder: of the artifact, which has passed its proof run."""
        manifest, library = open_library(folder, target)
        weighed = [False] * len(manifest.inputs) + [True] * len(manifest.params)
        self._calls = calls
        places = _places(calls.module)
        self._stores = [
            places.get(param.name) or _constant(model.weights[param.name], calls.device) for param in manifest.params
        ]
        read = {id(store[key]) for store, key in self._stores}
        state = {id(store[key]): store[key] for store, key in places.values()}
        self._baked = [one for each, one in state.items() if each not in read and not one.is_inference()]
        """The module's tensors that the build has as constants or does not read ..."""
        self._versions = list(map(_VERSION, self._baked))
        """... and how often each had been written when it was built."""
        self._runner: Any
        if kind_of(target).has_streams:
            from pitchpipe.torch_backend.run_on_gpu import GpuRunner

            self._runner = GpuRunner(manifest, library, weighed, calls.results, bounds={}, graphs=True)
        else:
            from pitchpipe.torch_backend.run import Runner

            self._runner = Runner(manifest, library, weighed, calls.results, bounds={})

    @property
    def is_current(self) -> bool:
        """Whether nothing was written since into what the build has as constants."""
        return list(map(_VERSION, self._baked)) == self._versions

    def __call__(self, leaves: Leaves, /) -> Any:
        """The module's result, without gradients. Raises whatever the runtime does."""
        return self._calls.put_together(self.tensors(leaves))

    def tensors(self, leaves: Leaves) -> Sequence[Any]:
        """Those of the result, in order."""
        with torch.no_grad():
            weights = [store[key] for store, key in self._stores]
            found: Sequence[Any] = self._runner(*self._calls.tensors(leaves), *weights)
            return found


def difference(calls: ModuleCalls, build: ModuleBuild) -> str | None:
    """How the build's results on the examples differ from the module's by more than rounding; None where they do not."""
    from pitchpipe.torch_backend.paired_benchmark import difference as differing

    found = calls.tensors(pytree.tree_leaves(build(calls.example)))
    expected = calls.tensors(pytree.tree_leaves(calls.run_module()))
    return differing(found, expected)


def name() -> str:
    """Of what runs a module otherwise."""
    return f"eager PyTorch {torch.__version__}"


def _kind(leaf: Any) -> Any:
    """What a build was made for; for anything but a tensor the value itself."""
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf


def _places(module: Any) -> dict[str, tuple[Any, str]]:
    """Of each parameter and buffer, by its name in the state dict: the mapping that has it, and its key there."""
    found = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for store in (owner._parameters, owner._buffers):
            for key, tensor in store.items():
                if tensor is not None:
                    found[f"{path}.{key}" if path else key] = (store, key)
    return found


def _constant(array: Any, device: Any) -> tuple[dict[str, Any], str]:
    """A weight that is no parameter and no buffer: a tensor that the module's code made."""
    return {"constant": to_tensor(array).to(device)}, "constant"
