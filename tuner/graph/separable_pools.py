"""Maxima over windows of rows and columns: first of columns of a window, then of rows of those.

The maximum of a window is the maximum of its columns' maxima, NaN and minus infinity in the padding included, so n + m
comparisons do for n * m. With channels first the first pool reads whole vectors of a row, which no padding cuts, and only
the second moves along the axis in which memory is contiguous. With channels last every element is a vector already, so
there it pays for windows beyond LEAST alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, replace_calls, static_shape
from tuner.tvm_compat import relax

LEAST = {"NCHW": 6, "NHWC": 16}
"""By layout: elements of the smallest window that is taken apart."""


def separate_pools(mod: Any) -> Any:
    """The module with such maxima of main in two steps. Bindings must be canonical."""
    replacements: dict[Any, Replacement] = {}
    for _, call in DefUse(mod["main"]).calls("relax.nn.max_pool2d"):
        rows, columns = map(int, call.attrs.pool_size)
        least = LEAST.get(str(call.attrs.layout))
        if least is not None and min(rows, columns) > 1 and rows * columns >= least and static_shape(call) is not None:
            replacements[call] = _separated(call)
    return replace_calls(mod, replacements)


def _separated(call: Any) -> Replacement:
    attrs = call.attrs
    size, strides, dilation = (list(map(int, each)) for each in (attrs.pool_size, attrs.strides, attrs.dilation))
    top, left, bottom, right = map(int, attrs.padding)

    def along(x: Any, axis: int, padding: list[int]) -> Any:
        one = [1, 1]
        return relax.op.nn.max_pool2d(
            x,
            pool_size=[*one[:axis], size[axis], *one[axis + 1 :]],
            strides=[*one[:axis], strides[axis], *one[axis + 1 :]],
            padding=padding,
            dilation=[*one[:axis], dilation[axis], *one[axis + 1 :]],
            ceil_mode=bool(attrs.ceil_mode),
            layout=str(attrs.layout),
        )

    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        columns = builder.emit(along(current(call.args[0]), 0, [top, 0, bottom, 0]))
        return along(columns, 1, [0, left, 0, right])

    return replacement
