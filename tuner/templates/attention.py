"""A chain of stages that is an attention: products of queries and keys, their softmax, and products with values.

Only a part of the keys need be there at a time (attention_source.py), since the parts of a softmax can be put together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tuner.templates.contraction import NotRecognised
from tuner.templates.operators import HALVES
from tuner.templates.rows import Rows, Stage
from tuner.tvm_compat import ir, tirx

KINDS = ("product", "max", "sum", "product", "write")
"""Of the stages, in their order."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """softmax(score) V, of rows of queries and columns of keys."""

    chain: Rows
    products: Stage
    """Q K."""
    score: Any
    """What the softmax is of: an expression of a row and a key, in which the products are loaded."""
    values: Stage
    """softmax(score) V, of columns of its own."""
    hides: bool
    """Whether the softmax of scores that are all minus infinity is zero, and not undefined."""
    result: Stage
    """What follows, and is written."""

    @property
    def keys(self) -> int:
        """Their number."""
        return math.prod(axis.extent for axis in self.products.columns)


def find_attention(chain: Rows) -> Attention:
    """The attention that a chain is. Raises NotRecognised for any other chain."""
    if tuple(stage.kind for stage in chain.stages) != KINDS:
        raise NotRecognised("the stages are not those of an attention")
    products, largest, total, values, result = chain.stages
    if not products.columns == largest.columns == total.columns == values.summed:
        raise NotRecognised("the stages of the softmax are not over the keys")
    share = values.value.value if isinstance(values.value, tirx.Cast) else values.value
    powers = total.value
    hides = isinstance(share, tirx.Select) and _hides(share, largest)
    share = share.false_value if hides else share
    is_softmax = (
        largest.start == -math.inf
        and getattr(getattr(powers, "op", None), "name", "") == "tirx.exp"
        and isinstance(powers.args[0], tirx.Sub)
        and tvm_ffi.structural_equal(powers.args[0].a, largest.value)
        and _loads(powers.args[0].b, largest)
        and isinstance(share, tirx.Div)
        and tvm_ffi.structural_equal(share.a, powers)
        and _loads(share.b, total)
    )
    if not is_softmax:
        raise NotRecognised("between the products is no softmax")
    if str(values.value.ty.dtype) not in HALVES or str(products.value.ty.dtype) not in HALVES:
        raise NotRecognised("an attention that is not of half precision")
    return Attention(chain=chain, products=products, score=largest.value, values=values, hides=hides, result=result)


def _hides(choice: Any, largest: Stage) -> bool:
    """Whether a choice is of zero where the largest score is minus infinity."""
    condition, chosen = choice.condition, choice.true_value
    is_of_largest = isinstance(condition, tirx.EQ) and _loads(condition.a, largest)
    return is_of_largest and float(condition.b.value) == -math.inf and float(getattr(chosen, "value", math.nan)) == 0


def _loads(expression: Any, stage: Stage) -> bool:
    """Whether an expression is what a stage computed."""
    return isinstance(expression, ir.TensorLoad) and bool(expression.source.same_as(stage.buffer))
