"""Running a compiled library on torch tensors on a CPU: memory is shared both ways, weights are laid out once per version.

A weight's layout transforms run when a library is first called, and again when a weight is another tensor, lies elsewhere or
has another version, which is what in-place changes and `load_state_dict` leave behind. A change through `.data` leaves
nothing of that behind: it is seen in a sample of the weights' elements. One that misses the sample is seen after
`recompile()`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm.relax import VirtualMachine

from pitchpipe.deploy.artifact import Manifest
from pitchpipe.processes.lost_threads import with_threads
from pitchpipe.run_function import ALIGNMENT, RunFunction
from pitchpipe.torch_backend.tensors import by_life, check_indices, in_stride, stamps, unusual_stride

SAMPLED = 16
"""Elements of a weight that are looked at in every call: a line of the cache or two."""
_BYTES, _CPU = attrgetter("raw"), torch.device("cpu")


class Runner:
    """A library. Thread-safe: calls take turns, since all of them work in the same memory.

    Called with the tensors of a partition's placeholders; gives a tuple of new tensors, those of its outputs.
    """

    def __init__(
        self,
        manifest: Manifest,
        library: Any,
        is_weight: Sequence[bool],
        results: Sequence[Any],
        *,
        bounds: Mapping[int, tuple[int, int]],
    ) -> None:
        """is_weight: for each placeholder. results: fake tensors of the outputs, whose strides are kept. bounds: as
        `check_indices` takes them."""
        self._machine = VirtualMachine(library, tvm.cpu())
        self._main, self._function = with_threads(self._machine["main"]), RunFunction.of(self._machine)
        self._is_weight, self._is_input = list(is_weight), [not weight for weight in is_weight]
        self._bounds, self._weight_bounds = by_life(bounds, is_weight)
        self._strides = [unusual_stride(result) for result in results]
        self._is_strided = any(stride is not None for stride in self._strides)
        self._room = [] if self._function is None else [_Room(*told) for told in self._function.results]
        self._lock = threading.Lock()
        self._bound: tuple[list[int], list[Any]] | None = None
        self._aliases: list[Any] = []
        self._sample = Sample(())
        self._params: list[Any] = []
        self._memory: list[Any] = []
        self._copied: list[bool] | None = None
        if (sum(self._is_input), sum(self._is_weight)) != (len(manifest.inputs), len(manifest.params)):
            raise ValueError("the library takes other tensors than the graph")

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        check_indices(tensors, self._bounds)
        with self._lock:
            weights = list(compress(tensors, self._is_weight))
            if self._bound is None or stamps(weights) != self._bound or self._sample.changed:
                check_indices(tensors, self._weight_bounds)
                self._bind(weights)
            inputs = [adopted(one) for one in compress(tensors, self._is_input)]
            results = self._by_function(inputs)
            if results is None:
                results = self._by_machine(inputs)
        if not self._is_strided:
            return tuple(results)
        return tuple([in_stride(result, stride) for result, stride in zip(results, self._strides, strict=True)])

    def forget(self) -> None:
        """Lays the weights out again at the next call."""
        self._bound = None

    def _by_function(self, inputs: Sequence[Any]) -> list[Any] | None:
        """None where the library has no such function, or that one leaves the call to the virtual machine."""
        if self._function is None:
            return None
        results = [room.made() for room in self._room]
        failed = self._function.call(*inputs, *[_as_it_lies(result) for result in results], *self._memory)
        return None if failed else results

    def _by_machine(self, inputs: Sequence[Any]) -> list[Any]:
        """Those that share memory are copied while no other call writes into it."""
        results = [torch.from_dlpack(one) for one in listed(self._main(*inputs, *self._params))]
        if self._copied is None:
            again = listed(self._main(*inputs, *self._params))
            self._copied = shared(results, [*inputs, *self._params, *again])
        return [result.clone() if copied else result for result, copied in zip(results, self._copied, strict=True)]

    def _bind(self, weights: Sequence[Any]) -> None:
        """The aliases keep the memory of weights that were replaced from being given to others: an address means one
        tensor for as long as it is compared."""
        self._bound = None
        with torch.no_grad():
            aliases = [weight.detach() for weight in weights]
        transform = with_threads(self._machine["main_transform_params"])
        self._params = list(transform([adopted(one) for one in aliases]))
        self._memory = [] if self._function is None else self._function.memory(self._params)
        self._sample = Sample(aliases)
        self._aliases, self._bound = aliases, stamps(weights)


class _Room:
    """Makes tensors for a result, in row-major order."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._shape, self._stride = shape, torch.empty(shape, device="meta").stride()
        self._dtype = getattr(torch, dtype)

    def made(self) -> Any:
        """What is allocated by its strides takes two thirds of the time of what is allocated by its shape alone."""
        return torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=_CPU)


class Sample:
    """A few elements from the middle of each weight's memory, as they were when it was made.

    What changes weights as a whole, such as an average of a training's weights, changes them there. To look at 24 weights
    takes a microsecond. The weights are kept, where they lie, by who keeps the sample.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        self._places = [_middle(weight) for weight in weights if weight.numel() and _is_dense(weight)]
        self._kept = list(map(_BYTES, self._places))

    @property
    def changed(self) -> bool:
        return list(map(_BYTES, self._places)) != self._kept


def _middle(weight: Any) -> Any:
    taken = min(SAMPLED, weight.numel())
    start = weight.data_ptr() + (weight.numel() - taken) // 2 * weight.element_size()
    return (ctypes.c_char * (taken * weight.element_size())).from_address(start)


def _is_dense(weight: Any) -> bool:
    places = zip(weight.shape, weight.stride(), strict=True)
    return bool(1 + sum((extent - 1) * stride for extent, stride in places) == weight.numel())


def adopted(tensor: Any) -> Any:
    """TVM's view of a tensor's memory; of a copy where the tensor is strided, not aligned or negated when it is read."""
    if not tensor.is_neg() and tensor.is_contiguous() and not tensor.data_ptr() % ALIGNMENT:
        return _as_it_lies(tensor)
    return _as_it_lies(tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format))


def _as_it_lies(tensor: Any) -> Any:
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
