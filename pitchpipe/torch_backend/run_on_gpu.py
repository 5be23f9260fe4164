"""Running a partition's GPU program on torch tensors: on torch's current stream, results from torch's allocator.

Weights are bound again when one is another tensor, lies elsewhere or has another version, which is what in-place changes
and `load_state_dict` leave behind. A change through `.data` leaves nothing of that behind, and looking at the elements would
wait for the device: it is seen after `recompile()`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pitchpipe.deploy.artifact import Manifest
from pitchpipe.target_kind import kind_of
from pitchpipe.torch_backend.tensors import by_life, check_indices, in_stride, stamps, unusual_stride
from pitchpipe.torch_operators.arrays import to_tensor


class GpuRunner:
    """A program for the GPU on which its tensors are. Thread-safe.

    Called with the tensors of a partition's placeholders; gives a tuple of the tensors of its outputs.
    """

    def __init__(
        self,
        manifest: Manifest,
        program: Any,
        is_weight: Sequence[bool],
        results: Sequence[Any],
        *,
        bounds: Mapping[int, tuple[int, int]],
        graphs: bool,
    ) -> None:
        """is_weight: for each placeholder. results: fake tensors of the outputs, whose strides are kept. bounds: as
        `check_indices` takes them. graphs: whether a run is one CUDA graph."""
        kind = kind_of(manifest.target)
        self._model = kind.executable(program, manifest.inputs, manifest.params, manifest.target, graphs=graphs)
        self._names = [param.name for param in manifest.params]
        self._inputs_at = [at for at, weight in enumerate(is_weight) if not weight]
        self._weights_at = [at for at, weight in enumerate(is_weight) if weight]
        self._bounds, self._weight_bounds = by_life(bounds, is_weight)
        self._strides = [unusual_stride(result) for result in results]
        self._device = results[0].device if results else None
        self._lock = threading.Lock()
        self._bound: tuple[list[int], list[Any]] | None = None
        self._aliases: list[Any] = []
        if (len(self._inputs_at), len(self._weights_at)) != (len(manifest.inputs), len(manifest.params)):
            raise ValueError("the program takes other tensors than the graph")

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        check_indices(tensors, self._bounds)
        weights = [tensors[at] for at in self._weights_at]
        with self._lock:
            if self._bound is None or stamps(weights) != self._bound:
                check_indices(tensors, self._weight_bounds)
                self._bind(weights)
            found = self._model(*(tensors[at] for at in self._inputs_at))
        results = found if isinstance(found, tuple) else (found,)
        return tuple(
            in_stride(self._there(result), stride) for result, stride in zip(results, self._strides, strict=True)
        )

    def _there(self, result: Any) -> Any:
        """The result on the GPU: one that takes no tensor there was computed for the host."""
        return result if isinstance(result, torch.Tensor) else to_tensor(result).to(self._device)

    def forget(self) -> None:
        """The weights are bound again at the next call."""
        self._bound = None

    def _bind(self, weights: Sequence[Any]) -> None:
        """The aliases keep the memory of weights that were replaced from being given to others: an address means one
        tensor for as long as it is compared."""
        self._bound = None
        with torch.no_grad():
            aliases = [weight.detach() for weight in weights]
        self._model.bind(dict(zip(self._names, aliases, strict=True)))
        self._aliases, self._bound = aliases, stamps(weights)
