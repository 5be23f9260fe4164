"""Running a compiled library on torch tensors on a CPU: memory is shared both ways, weights are laid out once per version.

A weight's layout transforms run when a library is first called, and again when a weight is another tensor, lies elsewhere or
has another version, which is what in-place changes and `load_state_dict` leave behind. A change through `.data` leaves
nothing of that behind: it is seen in a sample of the weights' elements. One that misses the sample is seen after
`recompile()`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm.relax import VirtualMachine

from pitchpipe.deploy.artifact import Manifest
from pitchpipe.torch_backend.tensors import copied_out, stamps, unusual_stride

ALIGNMENT = 64
"""Bytes; what compiled code relies on."""
SAMPLED = 16
"""Elements of a weight that are looked at in every call: a line of the cache or two."""
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element."""


class Runner:
    """A library. Thread-safe: calls take turns, since an executable reuses its buffers.

    Called with the tensors of a partition's placeholders; gives a tuple of the tensors of its outputs.
    """

    def __init__(
        self,
        manifest: Manifest,
        library: Any,
        is_weight: Sequence[bool],
        results: Sequence[Any],
    ) -> None:
        """is_weight: for each placeholder. results: fake tensors of the outputs, whose strides are kept."""
        self._machine = VirtualMachine(library, tvm.cpu())
        self._main = self._machine["main"]
        self._inputs_at = [at for at, weight in enumerate(is_weight) if not weight]
        self._weights_at = [at for at, weight in enumerate(is_weight) if weight]
        self._strides = [unusual_stride(result) for result in results]
        self._lock = threading.Lock()
        self._bound: tuple[list[int], list[Any]] | None = None
        self._aliases: list[Any] = []
        self._sample: Sample | None = None
        self._must_copy = True
        self._params: list[Any] = []
        self._copied: list[bool] | None = None
        if (len(self._inputs_at), len(self._weights_at)) != (len(manifest.inputs), len(manifest.params)):
            raise ValueError("the library takes other tensors than the graph")

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        with self._lock:
            results = self._results(tensors)
            if not self._must_copy:
                return tuple(results)
            return tuple(
                copied_out(result, copied, stride)
                for result, copied, stride in zip(results, self._copied or (), self._strides, strict=True)
            )

    def _results(self, tensors: Sequence[Any]) -> list[Any]:
        weights = [tensors[at] for at in self._weights_at]
        if self._bound is None or stamps(weights) != self._bound or (self._sample and self._sample.changed):
            self._bind(weights)
        inputs = [adopted(tensors[at]) for at in self._inputs_at]
        found = self._main(*inputs, *self._params)
        results = [torch.from_dlpack(one) for one in listed(found)]
        if self._copied is None:
            again = listed(self._main(*inputs, *self._params))
            self._copied = shared(results, [*inputs, *self._params, *again])
            self._must_copy = any(self._copied) or any(stride is not None for stride in self._strides)
        return results

    def forget(self) -> None:
        """Lays the weights out again at the next call."""
        self._bound = None

    def _bind(self, weights: Sequence[Any]) -> None:
        """The aliases keep the memory of weights that were replaced from being given to others: an address means one
        tensor for as long as it is compared."""
        self._bound = None
        with torch.no_grad():
            aliases = [weight.detach() for weight in weights]
        transform = self._machine["main_transform_params"]
        self._params = list(transform([adopted(one) for one in aliases])) if aliases else []
        self._sample = Sample(aliases)
        self._aliases, self._bound = aliases, stamps(weights)


class Sample:
    """A few elements from the middle of each weight's memory, as they were when it was made.

    What changes weights as a whole, such as an average of a training's weights, changes them there. To look at 161 weights
    takes some 20 microseconds.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        places: dict[int, list[Any]] = {}
        for weight in weights:
            size = weight.element_size()
            if size in _WHOLE and weight.numel() and _is_dense(weight):
                taken = min(SAMPLED, weight.numel())
                some = weight.as_strided((taken,), (1,), weight.storage_offset() + (weight.numel() - taken) // 2)
                bits = some.view(_WHOLE[size])  # in which what is no number is equal to itself
                places.setdefault(size, []).append(bits)
        self._places = list(places.values())
        self._kept = self._read()

    @property
    def changed(self) -> bool:
        return not all(map(torch.equal, self._read(), self._kept))

    def _read(self) -> list[Any]:
        return [torch.cat(each) for each in self._places]


def _is_dense(weight: Any) -> bool:
    places = zip(weight.shape, weight.stride(), strict=True)
    return bool(1 + sum((extent - 1) * stride for extent, stride in places) == weight.numel())


def adopted(tensor: Any) -> Any:
    """TVM's view of a tensor's memory; of a copy where the tensor is strided, not aligned or negated when it is read."""
    tensor = tensor.detach().resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return tvm_ffi.from_dlpack(tensor, require_alignment=ALIGNMENT, require_contiguous=True)


def listed(found: Any) -> Sequence[Any]:
    """What a function gives, one tensor or several, as several."""
    return [found] if hasattr(found, "dtype") else list(found)


def shared(results: Sequence[Any], given: Sequence[Any]) -> list[bool]:
    """Which results lie in memory of what was given, or of a result before them: copies and views of an argument that the
    compiler saw through, and, where the results of another call are given too, constants. A program may write into its
    results, so these have to be copied. The same in every call."""
    taken = [_range(torch.from_dlpack(one)) for one in given]
    found = []
    for result in results:
        low, high = _range(result)
        found.append(any(low < other_high and other_low < high for other_low, other_high in taken))
        taken.append((low, high))
    return found


def _range(tensor: Any) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()
