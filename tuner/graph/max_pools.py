"""How max pools become tensor functions: with minus infinity around the image, as in the frameworks.

TVM pads with the least finite number. Where all elements of a window are minus infinity, that would be the larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.tvm_compat import tirx, topi

_AXES = {1: "W", 2: "HW", 3: "DHW"}
"""Of layouts, by the number of spatial dimensions, in the order of kernels and paddings."""
_POOLS = {1: topi.nn.pool1d, 2: topi.nn.pool2d, 3: topi.nn.pool3d}


def _lowered(rank: int) -> Callable[[Any, Any], Any]:
    def legalise(builder: Any, call: Any) -> Any:
        attrs, (x,) = call.attrs, call.args
        sides = [int(side) for side in attrs.padding]
        pads = any(sides) or attrs.ceil_mode
        if not pads or attrs.out_layout != attrs.layout or "float" not in str(x.ty.dtype):
            return call.op.get_attr("FLegalize")(builder, call)

        def pool(data: Any) -> Any:
            before, after = [0] * len(data.shape), [0] * len(data.shape)
            for number, axis in enumerate(_AXES[rank]):
                at = str(attrs.layout).index(axis)
                before[at], after[at] = sides[number], sides[rank + number]
                if attrs.ceil_mode:
                    after[at] += _beyond(int(data.shape[at]) + before[at] + after[at], attrs, number)
            padded = topi.nn.pad(data, before, after, -tirx.infinity(str(x.ty.dtype)), name="pad_temp")
            none = [0] * len(sides)
            return _POOLS[rank](
                padded, attrs.pool_size, attrs.strides, attrs.dilation, none, "max", False, attrs.layout
            )

        return builder.call_te(pool, x, primfunc_name_hint=f"max_pool{rank}d")

    return legalise


def _beyond(extent: int, attrs: Any, number: int) -> int:
    """Elements of the last window past the padded extent where that is rounded up to whole steps."""
    window = (int(attrs.pool_size[number]) - 1) * int(attrs.dilation[number]) + 1
    return (window - extent) % int(attrs.strides[number])


LEGALISED: Mapping[str, Callable[[Any, Any], Any]] = {f"relax.nn.max_pool{rank}d": _lowered(rank) for rank in _AXES}
"""For `relax.transform.LegalizeOps`."""
