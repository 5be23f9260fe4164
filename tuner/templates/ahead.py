"""Weights that a kernel reads, or asks the L2 cache for, until the launch before it has ended.

No kernel of a run writes them. So a kernel need not wait before it reads a bias or the scale of a norm, which comes from
memory, and for which it would else wait at its very end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tuner.templates.printer import Printer, Tile
from tuner.tvm_compat import ir, structural_walk, tirx


def loads_in(expression: Any) -> list[Any]:
    """All that an expression reads."""
    found: list[Any] = []
    structural_walk(expression, (ir.TensorLoad, found.append))
    return found


def read_ahead(printer: Printer, expression: Any, weights: Sequence[Any], tile: Tile) -> None:
    """Reads the weights of an expression, whose value is printed later in the same tile: what was read is not read again."""
    for load in weights_in(expression, weights):
        printer.load(load, tile)


def ask_ahead(printer: Printer, expression: Any, weights: Sequence[Any], tile: Tile) -> None:
    """Asks the L2 cache for them, wherever none lies beyond the end."""
    for load in weights_in(expression, weights):
        pointers, axes = printer.place_of(load, tile)
        if not any(one.axes <= axes for one in tile.inside):
            printer.line(f"_fetch({pointers})")


def weights_in(expression: Any, weights: Sequence[Any]) -> Iterator[Any]:
    """What is read whatever any value is: an expression that chooses reads nothing ahead, nor is a place looked up."""
    choices: list[Any] = []
    structural_walk(expression, (tirx.Select, choices.append))
    structural_walk(expression, (ir.Call, lambda one: choices.append(one) if _is_choice(one) else None))
    for load in loads_in(expression) if not choices else ():
        if any(load.source.same_as(one) for one in weights) and not any(loads_in(index) for index in load.indices):
            yield load


def _is_choice(call: Any) -> bool:
    return getattr(call.op, "name", str(call.op)) == "prim.if_then_else"
