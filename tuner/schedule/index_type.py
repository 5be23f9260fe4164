"""The type of the indices in a trace's layouts.

MetaSchedule's tensor-core sketches write the layout of a product's tiles with 32-bit indices and tile sizes that are random
variables of the trace. In a workload with 64-bit shapes these are 64-bit numbers, so that the map would convert between the
two, and TVM's check that no two elements get one place gives up: it takes no conversions.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TILE_SIZE = re.compile(r'"v[0-9]+"')


def with_index_type(value: list[Any], mod: Any) -> list[Any]:
    """A trace's JSON with the layouts that name random variables in 64-bit arithmetic, where `mod` has 64-bit shapes."""
    if not _is_wide(mod):
        return value
    instructions, decisions = value
    return [[_widened(instruction) for instruction in instructions], decisions]


def _is_wide(mod: Any) -> bool:
    shapes = [param.ty.shape for param in mod["main"].params if hasattr(param.ty, "shape")]
    return any(str(extent.ty.dtype) == "int64" for shape in shapes for extent in shape)


def _widened(instruction: list[Any]) -> list[Any]:
    kind, inputs, attributes, outputs = instruction
    if kind != "TransformLayout" or not _TILE_SIZE.search(inputs[1]):
        return instruction
    graph = json.loads(inputs[1])
    for node in graph["nodes"]:
        if node["type"] == "ir.PrimType":
            node["data"]["dtype"] = "int64"
    return [kind, [inputs[0], json.dumps(graph)], attributes, outputs]
