"""What a program of half precision computes where nothing is rounded to it: every operator in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

HALF = (torch.float16, torch.bfloat16)


class InFloat32(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Operators take float32 for tensors of half precision, and make float32 where half precision is asked for.

    Views, and operators that write in place, run as they are, since others hold the same memory: what such an operator
    writes into a tensor of half precision is rounded to it. Weights become float32 one operator at a time. Raises what an
    operator raises that does not take float32 beside half precision.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(argument.alias_info is not None for argument in function._schema.arguments):
            args, kwargs = pytree.tree_map(in_float32, (args, kwargs))
        return function(*args, **kwargs)


def in_float32(leaf: Any) -> Any:
    """A tensor of half precision in float32, and float32 for a type of half precision; anything else as it is."""
    if isinstance(leaf, torch.Tensor):
        return leaf.float() if leaf.dtype in HALF else leaf
    return torch.float32 if isinstance(leaf, torch.dtype) and leaf in HALF else leaf
