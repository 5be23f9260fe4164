"""Attention as one tensor function: from its two products of computed tensors to the layout that the next product reads.

With q [batch..., rows, size] and k, v that have `columns` in place of rows,

    scores = q k^T, then any element-wise steps: a scale, a mask that is added or that chooses (where), casts
    y = softmax(scores) v, then any element-wise steps, and a permutation

becomes one function of a product, an element-wise stage, maximum, exponential, sum, division, and a product. No row of it
depends on another one, so that one kernel can compute it. The arithmetic is the graph's, with two exceptions: half precision
is computed in float32, and rounded only for the operands of the second product and in the result; and a number that
multiplies or divides q or k does so to the scores.

* What only moves elements on the way to q, k, v or a mask (a permutation, a slice that is no view, keys repeated for grouped
  queries) becomes index arithmetic, and so does the permutation behind the second product.
* A constant mask that is one value up to a diagonal and another one behind it, as for causal attention, follows from the
  indices: nothing is read.
* A mask of as many elements as there are scores is not written either, if element-wise operators make it for this attention
  alone: the function reads what they read.
* Rows that a mask hides whole, as the model asks for (hidden_rows.py), are those whose largest score is minus infinity.

Where something else reads one of the values in between, too, the graph is left as it is: a function has one result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.graph.attention_function import Attention
from tuner.graph.def_use import DefUse, Replacement, op_name, permutation, replace_calls, static_shape
from tuner.graph.epilogue import ELEMENTWISE, MAX_EPILOGUE
from tuner.graph.hidden_rows import hidden_where, keeps_rows, number
from tuner.tvm_compat import relax

MOVEMENTS = frozenset(f"relax.{name}" for name in ("broadcast_to", "permute_dims", "reshape"))
KEEP_INFINITIES = frozenset(("relax.astype", "relax.reshape"))
"""Of what may follow the sum of scores and mask, beside other sums: a score of minus infinity stays one."""


def group_attention(mod: Any) -> Any:
    """The module with every such attention of main as a call of one tensor function. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for softmax, _ in def_use.calls("relax.nn.softmax"):
        if (found := _found(def_use, softmax)) is not None:
            replacements[def_use.values[found.last]] = found
    return replace_calls(mod, replacements)


def _found(def_use: DefUse, softmax: Any) -> Attention | None:
    """The attention around the softmax that a variable is bound to; None where there is none."""
    call = def_use.values[softmax]
    shape = static_shape(call)
    if shape is None or int(call.attrs.axis) not in (-1, len(shape) - 1):
        return None
    before = _back_to_product(def_use, call.args[0], MAX_EPILOGUE)
    after = _on_to_product(def_use, softmax)
    if not before or not after:
        return None
    *steps, read = after
    tail = list(_tail(def_use, read))
    axes = permutation(def_use.values[tail[-1]]) if tail else []
    last = tail[-1] if tail else read
    tail = tail[:-1] if axes else tail
    scores = (*before, softmax, *steps)
    hidden, asked = _hidden(def_use, scores, softmax, tail)
    return Attention(
        def_use=def_use,
        masks=_masks(def_use, scores, {*scores, read, *tail, *asked}),
        scores=scores,
        softmax=softmax,
        read=read,
        tail=tuple(tail),
        hidden=hidden,
        axes=tuple(axes) or tuple(range(len(static_shape(read) or ()))),
        last=last,
    )


def _hidden(def_use: DefUse, scores: Sequence[Any], softmax: Any, tail: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(the choice in the tail of zeros for rows that a mask of these scores hides whole, the variables of its condition);
    (None, []) where there is none."""
    added: list[Any] = []
    for x in scores[1 : scores.index(softmax)]:
        call = def_use.values[x]
        if op_name(call) == "relax.add":
            added += [_unshaped(def_use, each) for each in call.args]
        elif op_name(call) not in KEEP_INFINITIES:
            added.clear()
    for variable in tail:
        call = def_use.values[variable]
        if op_name(call) == "relax.where" and number(call.args[1]) == 0:
            mask, asked = hidden_where(def_use, call.args[0])
            if mask is not None and any(_unshaped(def_use, mask).same_as(each) for each in added):
                return variable, asked
    return None, []


def _unshaped(def_use: DefUse, x: Any) -> Any:
    while op_name(call := def_use.definition(x)) == "relax.reshape":
        x = call.args[0]
    return x


def _masks(def_use: DefUse, scores: Sequence[Any], inside: set[Any]) -> tuple[Any, ...]:
    """The variables, in order, of the calls that make masks as large as the scores for what is inside alone; without an
    element-wise one among them there are none."""
    size = math.prod(static_shape(scores[0]) or ())
    wanted = {each for x in scores[1:] for each in def_use.values[x].args if isinstance(each, relax.Var)}
    found: list[Any] = []
    for x in reversed(list(def_use.values)):
        call: Any = def_use.values[x]
        is_made = x in wanted - inside and op_name(call) in ELEMENTWISE | MOVEMENTS and not def_use.from_weights(x)
        fits = is_made and math.prod(static_shape(call) or ()) == size and len(found) < MAX_EPILOGUE
        if fits and {*def_use.users[x]} <= inside | {*found}:
            found.insert(0, x)
            wanted |= {each for each in call.args if isinstance(each, relax.Var)}
    return tuple(found) if any(op_name(def_use.values[x]) in ELEMENTWISE for x in found) else ()


def _is_of_matrices(def_use: DefUse, call: Any) -> bool:
    """Whether a call is a product of two computed tensors of two dimensions or more."""
    if op_name(call) != "relax.matmul" or static_shape(call) is None or any(map(def_use.from_weights, call.args)):
        return False
    return all(len(static_shape(each) or ()) > 1 for each in call.args)


def _back_to_product(def_use: DefUse, x: Any, steps: int) -> list[Any]:
    """The variables from a product to x, in order, of which each is read by the next one alone; none where there is none."""
    if not steps or not def_use.has_one_use(x):
        return []
    call: Any = def_use.values.get(x)
    if _is_of_matrices(def_use, call):
        return [x]
    sources = []
    if op_name(call) in ELEMENTWISE and static_shape(call) is not None:
        sources = [each for each in call.args if static_shape(each) == static_shape(call)]
    elif op_name(call) and keeps_rows(call):
        sources = [call.args[0]]
    for source in sources:
        if found := _back_to_product(def_use, source, steps - 1):
            return [*found, x]
    return []


def _on_to_product(def_use: DefUse, x: Any) -> list[Any]:
    """The variables behind x up to the product whose left operand comes from x, in order; none where there is none."""
    found: list[Any] = []
    while len(found) < MAX_EPILOGUE and def_use.has_one_use(x):
        user = def_use.users[x][-1]
        call: Any = def_use.values.get(user)
        if op_name(call) == "relax.matmul":
            is_left = call.args[0].same_as(x) and _is_of_matrices(def_use, call)
            return [*found, user] if is_left else []
        is_elementwise = op_name(call) in ELEMENTWISE and static_shape(call) == static_shape(x)
        if not is_elementwise and not (op_name(call) and keeps_rows(call)):
            return []
        found.append(user)
        x = user
    return []


def _tail(def_use: DefUse, read: Any) -> Iterator[Any]:
    """The variables of element-wise calls behind a product, and that of a permutation if one follows, in order."""
    x = read
    for _ in range(MAX_EPILOGUE):
        user = def_use.users[x][-1] if def_use.has_one_use(x) else None
        call = def_use.values.get(user)
        if permutation(call):
            yield user
            return
        if op_name(call) not in ELEMENTWISE or static_shape(call) != static_shape(read):
            return
        yield user
        x = user
