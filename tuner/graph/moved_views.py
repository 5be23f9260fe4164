"""Reshapes that nothing has to be fused with are views: before what moves a stored tensor, and behind what was moved.

FuseOps makes one function of a permutation and the reshapes around it, whose indices then divide by extents of other shapes:
no tile of such a function is one of its operand, and a transpose reads or writes single elements. What a product or a
convolution stores is not fused with a reshape, and neither is what reads one to multiply or reduce: there it stays outside,
where it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.graph.gathers import INJECTIVE
from tuner.graph.moved_reductions import Chains
from tuner.tvm_compat import relax


def view_reshapes(mod: Any) -> Any:
    """The module of tensor functions with annotated patterns, with such reshapes of main as views."""
    def_use = DefUse(mod["main"])
    chains = Chains(mod, def_use)
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.call_tir"):
        users, operands = def_use.users.get(variable, []), list(call.args[1].fields)
        if not users or def_use.from_weights(variable) or len(operands) != 1 or not chains.is_reshape(variable):
            continue
        patterns = [chains.pattern(user) for user in users]
        is_stored = chains.pattern(operands[0]) > INJECTIVE or chains.ends_product(operands[0])
        is_moved = all(pattern == INJECTIVE for pattern in patterns) and all(map(chains.moves, users))
        if None not in users and ((is_stored and is_moved) or min(patterns) > INJECTIVE):
            replacements[call] = partial(_viewed, call)
    return replace_calls(mod, replacements)


def _viewed(call: Any, _builder: Any, current: Callable[[Any], Any]) -> Any:
    return relax.op.reshape(current(call.args[1].fields[0]), static_shape(call))
