"""Following the constants of a module while torch.export runs it.

torch.export runs a module on tensors without values, so it cannot say whether `torch.ones(n).any()` holds, though that is
the same in every run, and gives up where the module asks. Here every tensor that no input reaches has its value beside it,
and a question about such a tensor is answered by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

LARGEST = 1 << 20
"""Elements of a value that is kept."""
ASKS = frozenset({"item", "tolist", "__bool__", "__int__", "__float__", "__index__"})
"""Functions that give Python's numbers."""
SHAPED = frozenset({"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full", "new_tensor"})
"""Functions that read the shape and type of a tensor alone."""


@contextlib.contextmanager
def constants_known(module: Any) -> Iterator[None]:
    """Within it, calls of the module follow its constants; its buffers are constants as long as nothing writes into them."""
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers() if buffer.numel() <= LARGEST}
    modes: list[Any] = []

    def enter(called: Any, _inputs: Any) -> None:
        fakes = dict(called.named_buffers())
        modes.append(_Constants([(fakes[name], buffers[name]) for name in fakes if name in buffers]))
        modes[-1].__enter__()

    def leave(*_: Any) -> None:
        modes.pop().__exit__(None, None, None)

    hooks = (
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Constants(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, known: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._values: Any = WeakTensorKeyDictionary()
        self._written: set[int] = set()
        for fake, value in known:
            self._values[fake] = value

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        unknown = name not in SHAPED and any(self._value(one) is None for one in given)
        if name in ASKS and given and not unknown:
            return self._evaluated(function, args, kwargs)
        if name == "pad":  # which asks for extents where no mode hears it
            args, kwargs = tree_map_only(torch.Tensor, self._number, (args, kwargs))
        found = function(*args, **kwargs)
        results = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        if unknown:
            for one in given:
                if name.endswith("_") or any(one is each for each in results):  # it is written into
                    self._forget(one)
            return found
        if results or name == "__setitem__":
            try:
                values = self._evaluated(function, args, kwargs)
            except Exception:  # noqa: BLE001 - what cannot be evaluated is not known
                for one in given:
                    self._forget(one)
                return found
            leaves = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
            for one, value in zip(results, leaves, strict=False):
                self._learn(one, value)
        return found

    def _value(self, tensor: Any) -> Any:
        value = self._values.get(tensor)
        return None if value is None or value.untyped_storage().data_ptr() in self._written else value

    def _number(self, tensor: Any) -> Any:
        """A whole number that is known as Python's, anything else as it is."""
        value = self._value(tensor)
        return int(value) if value is not None and value.ndim == 0 and not value.is_floating_point() else tensor

    def _learn(self, tensor: Any, value: Any) -> None:
        if value.numel() <= LARGEST:
            self._values[tensor] = value

    def _forget(self, tensor: Any) -> None:
        """Of a tensor that something unknown is written into, and of all that share its memory."""
        value = self._values.pop(tensor, None)
        if value is not None:
            self._written.add(value.untyped_storage().data_ptr())

    def _evaluated(self, function: Any, args: Any, kwargs: Any) -> Any:
        def value(one: Any) -> Any:
            known = self._value(one)
            return torch.empty(one.shape, dtype=one.dtype) if known is None else known

        with _disable_current_modes(), torch._C.DisableTorchFunction(), _NoDraws(), torch.no_grad():
            return function(*tree_map_only(torch.Tensor, value, args), **tree_map_only(torch.Tensor, value, kwargs))


class _NoDraws(TorchDispatchMode):  # type: ignore[misc]
    """Random operators raise: what they give is no constant."""

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise NotImplementedError(f"{function} draws")
        return function(*args, **(kwargs or {}))
