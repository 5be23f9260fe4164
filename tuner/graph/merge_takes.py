"""Selections of elements along one axis after another as one: padding by reflection or replication copies an image once.

PyTorch writes such padding as a selection of rows and one of columns, of constant indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.tvm_compat import te


def merge_takes(mod: Any) -> Any:
    """The module with such selections of main merged. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    chains: dict[Any, list[Any]] = {}
    for variable, call in def_use.calls("relax.take"):
        if _selects(def_use, call):
            before = chains.pop(call.args[0], []) if def_use.has_one_use(call.args[0]) else []
            chains[variable] = [*before, call]
    return replace_calls(mod, {chain[-1]: _merged(chain) for chain in chains.values() if len(chain) > 1})


def _selects(def_use: DefUse, call: Any) -> bool:
    """Whether the indices are constant, in one dimension and within the bounds."""
    shape, indices = static_shape(call.args[0]), constant_value(def_use.definition(call.args[1]))
    if shape is None or indices is None or indices.ndim != 1 or call.attrs.axis is None:
        return False
    in_bounds = bool(indices.size) and indices.min() >= 0 and indices.max() < shape[int(call.attrs.axis)]
    return in_bounds and not def_use.from_weights(call.args[0])


def _merged(chain: list[Any]) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        rank = len(static_shape(chain[0]) or [])
        axes = [int(call.attrs.axis) % rank for call in chain]

        def take(x: Any, *indices: Any) -> Any:
            def element(*place: Any) -> Any:
                at = list(place)
                for axis, index in zip(reversed(axes), reversed(indices), strict=True):
                    at[axis] = index(at[axis])
                return x(*at)

            return te.compute(static_shape(chain[-1]), element, name="taken")

        return builder.call_te(take, current(chain[0].args[0]), *(current(call.args[1]) for call in chain))

    return replacement
