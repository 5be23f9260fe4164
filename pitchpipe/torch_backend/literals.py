"""Numbers that a program has as tensors of its own, such as `torch.tensor(0.0)`, as constants that a compiler sees."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch._subclasses import FakeTensor

FULL = torch.ops.aten.full.default
FRESH = torch.ops.aten.lift_fresh_copy.default
"""What a capture puts behind a literal: nobody can have written into that."""


def write_out(module: Any) -> None:
    """Makes `full` of each literal of one number in a graph module, so that what follows from it is computed once."""
    for node in list(module.graph.nodes):
        if node.target is not FRESH or node.args[0].op != "get_attr":
            continue
        value = attrgetter(node.args[0].target)(module)
        if isinstance(value, FakeTensor) or value.numel() != 1 or value.is_complex():
            continue
        how = {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}
        with module.graph.inserting_before(node):
            full = module.graph.call_function(FULL, (list(value.shape), value.item()), how)
        full.meta = dict(node.meta)
        node.replace_all_uses_with(full)
        module.graph.erase_node(node)
