"""What a function of several calls reads: through permutations, slices and joints, which become index arithmetic in it.

A reshape of a tensor that lies in memory is a view, and so is a slice of neighbouring elements: these are left outside, so
that the function's operands are whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.graph.def_use import DefUse, op_name, static_shape
from tuner.graph.fold_constants import constant_value
from tuner.graph.one_function import HALF, SUMS, dtype_of
from tuner.graph.slice_views import is_view
from tuner.tvm_compat import relax

_MOVEMENTS = frozenset(("relax.broadcast_to", "relax.permute_dims", "relax.strided_slice"))
_SCALES = frozenset(("relax.divide", "relax.multiply"))


class Reads:
    """The operands of a function, in the order in which they are asked for and without repetition."""

    def __init__(self, def_use: DefUse) -> None:
        self.def_use = def_use
        self.operands: list[Any] = []

    def add(self, x: Any, *, scaled: bool = False, narrow: bool = False) -> list[Any]:
        """Collects what x is made of.

        scaled: whether x may be read without the numbers that it is multiplied or divided by; the result is the calls that
        do so, in order.
        narrow: whether x is read in the half precision that it was cast from (`narrow_type`).
        """
        sources = self._sources(x, scaled, narrow)
        if sources is None:
            if not any(x.same_as(each) for each in self.operands):
                self.operands.append(x)
            return []
        alone = len(sources) == 1
        scales = [scale for each in sources for scale in self.add(each, scaled=scaled and alone, narrow=narrow)]
        return [*scales, self.def_use.values[x]] if self._is_scale(x) else scales

    def narrow_type(self, x: Any, *, scaled: bool = False) -> str:
        """The half precision that all of x was cast to single precision from; empty where there is none."""
        sources = self._sources(x, scaled, True)
        if sources is None:
            return ""
        if _widens(self.def_use.values[x]):
            return dtype_of(sources[0])
        types = {self.narrow_type(each, scaled=scaled and len(sources) == 1) for each in sources}
        return types.pop() if len(types) == 1 else ""

    def write(
        self, builder: Any, variables: Sequence[Any], x: Any, *, scaled: bool = False, narrow: bool = False
    ) -> Any:
        """x in a function whose parameters are `variables`, one for each operand; `scaled` and `narrow` as it was added."""
        sources = self._sources(x, scaled, narrow)
        if sources is None:
            return next(v for v, each in zip(variables, self.operands, strict=True) if each.same_as(x))
        scaled = scaled and len(sources) == 1
        written = [self.write(builder, variables, each, scaled=scaled, narrow=narrow) for each in sources]
        call = self.def_use.values[x]
        if self._is_scale(x) or (narrow and _widens(call)):
            return written[0]
        if op_name(call) == "relax.concat":
            return builder.emit(relax.op.concat(written, int(call.attrs.axis)))
        return builder.emit(relax.Call(call.op, [written[0], *call.args[1:]], call.attrs, call.ty_args))

    def _sources(self, x: Any, scaled: bool, narrow: bool = False) -> list[Any] | None:
        """What x is read through; None where it is read itself."""
        call: Any = self.def_use.values.get(x) if isinstance(x, relax.Var) else None
        if static_shape(call) is None or self.def_use.from_weights(x):
            return None
        if op_name(call) == "relax.reshape" or is_view(self.def_use, x, of_inputs=True):
            return None if self._sources(call.args[0], scaled, narrow) is None else [call.args[0]]
        if op_name(call) in _MOVEMENTS or (narrow and _widens(call)):
            return [call.args[0]]
        if op_name(call) == "relax.concat":
            parts = getattr(self.def_use.definition(call.args[0]), "fields", None)
            return None if parts is None or call.attrs.axis is None else list(parts)
        return [call.args[0]] if scaled and self._is_scale(x) else None

    def _is_scale(self, x: Any) -> bool:
        """Whether x is a tensor that is multiplied or divided by a constant number."""
        call = self.def_use.values[x]
        if op_name(call) not in _SCALES or static_shape(call) != static_shape(call.args[0]):
            return False
        values = constant_value(call.args[1])
        return values is not None and values.size == 1


def _widens(call: Any) -> bool:
    """Whether a call casts half precision to single."""
    return op_name(call) == "relax.astype" and dtype_of(call) == SUMS and dtype_of(call.args[0]) in HALF
