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
LIKE = frozenset({"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"})
"""Functions that read of their first argument its shape and type alone."""
UNCOUNTED = ("batch_norm", "instance_norm")
"""Functions that write statistics into tensors without counting it as a version of them."""
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


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
    """The values of tensors without values, for as long as each has been written into as often as its value has.

    torch counts the writes into a tensor and its views as its version. A function of known arguments runs on tensors and
    on values; what anything unknown writes into a tensor leaves its value behind by a version.
    """

    def __init__(self, known: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._values: Any = WeakTensorKeyDictionary()  # tensor -> its value, and how many versions it is ahead
        for fake, value in known:
            self._learn(fake, value)

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        known = self._are_known(_without_subject(args) if name in LIKE else args, kwargs)
        if known and given and name in ASKS:
            return _evaluated(function, *self._values_of((args, kwargs)))
        before = [(one, self._value(one)) for one in given]
        values, options = self._values_of((args, kwargs)) if known else ((), {})
        if name == "pad":  # which asks for extents where no mode hears it
            args, kwargs = tree_map_only(torch.Tensor, self._number, (args, kwargs))
        found = function(*args, **kwargs)
        results = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        if not known:
            if any(one in name for one in UNCOUNTED):
                for one in given:
                    self._values.pop(one, None)
        elif results or name == "__setitem__":
            try:
                leaves = tree_leaves(_evaluated(function, values, options))
                tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
                learned = [*before, *zip(results, tensors, strict=True)]
            except Exception:  # noqa: BLE001 - what cannot be evaluated is not known
                learned = [(one, None) for one in given]
            for one, value in learned:
                self._learn(one, value)
        return found

    def _are_known(self, *arguments: Any) -> bool:
        leaves = tree_leaves(arguments)
        return not any(
            isinstance(one, SYMBOLS) or (isinstance(one, torch.Tensor) and self._value(one) is None) for one in leaves
        )

    def _value(self, tensor: Any) -> Any:
        value, ahead = self._values.get(tensor, (None, 0))
        return None if value is None or tensor._version - value._version != ahead else value

    def _number(self, tensor: Any) -> Any:
        """A whole number that is known as Python's, anything else as it is."""
        value = self._value(tensor)
        return int(value) if value is not None and value.ndim == 0 and not value.is_floating_point() else tensor

    def _learn(self, tensor: Any, value: Any) -> None:
        if value is None or value.numel() > LARGEST or tensor.is_inference() or value.is_inference():
            self._values.pop(tensor, None)
        else:
            self._values[tensor] = value, tensor._version - value._version

    def _values_of(self, arguments: Any) -> Any:
        def value(one: Any) -> Any:
            known = self._value(one)
            return torch.empty(one.shape, dtype=one.dtype) if known is None else known  # one of which the shape is read

        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return tree_map_only(torch.Tensor, value, arguments)


def _evaluated(function: Any, args: Any, kwargs: Any) -> Any:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), _NoDraws(), torch.no_grad():
        return function(*args, **kwargs)


def _without_subject(args: Any) -> Any:
    """Of a function that reads the shape of its first argument: that shape, and the other arguments."""
    return (tuple(args[0].shape), *args[1:]) if args else args


class _NoDraws(TorchDispatchMode):  # type: ignore[misc]
    """Random operators raise: what they give is no constant."""

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise NotImplementedError(f"{function} draws")
        return function(*args, **(kwargs or {}))
