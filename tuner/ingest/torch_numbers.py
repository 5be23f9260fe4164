"""Numbers that an exported program reads out of tensors which no input reaches.

`torch.arange(n).max().item()` is a size that torch.export does not know, and whatever it shapes has no static shape; yet it
is the same number in every run. Such numbers are computed here and stand in the program instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def fold_numbers(program: Any) -> bool:
    """Puts numbers that depend on constants, parameters and buffers alone into the graph of an ExportedProgram.

    The graph is functional: operators that write would be run in another order. Returns whether there was such a number;
    then the types that the graph has of everything else are those of before.
    """
    tensors = {**program.state_dict, **program.constants}
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    values: dict[Any, Any] = {
        placeholders[spec.arg.name]: tensors[spec.target]
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT and spec.target in tensors
    }
    fixed = set(values)

    def value(node: Any) -> Any:
        if node not in values:
            args, kwargs = fx.map_arg((node.args, node.kwargs), value)
            values[node] = node.target(*args, **kwargs)
        return values[node]

    found = False
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not fixed.issuperset(node.all_input_nodes) or _draws(node):
            continue
        if isinstance(node.meta.get("val"), NUMBERS):
            number, found = value(node), True
            for user in list(node.users):
                args, kwargs = fx.map_arg(
                    (user.args, user.kwargs), lambda one, node=node, number=number: number if one is node else one
                )
                user.args, user.kwargs = args, kwargs
            program.graph.erase_node(node)
        else:
            fixed.add(node)
    return found


def _draws(node: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
