"""Transpose folding: permutations around products become orders of the products' indices.

* A permutation of an operand, or of the result, of a product of two computed tensors (scores and values of attention)
  is folded into the product: matmul(a, permute_dims(b)) and permute_dims(matmul(a, b)) become an einsum, which lowers to
  one block that multiplies and accumulates, and no kernel moves elements. A product that broadcasts over several
  dimensions becomes an einsum too, without the unit dimensions, whose indices would be constants. A product of a tensor
  with itself keeps its permutation: a block that reads one tensor in two ways has no tiles.
* A permutation of one of main's inputs is folded into the convolution that reads it, where the convolution pads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, permutation, replace_calls, reshaped, static_shape
from tuner.graph.half_precision import is_half
from tuner.graph.one_function import SUMS
from tuner.tvm_compat import Schedule, relax, te, topi

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def fold_transposes(mod: Any) -> Any:
    """The module with transposes folded into the products of main, which become einsums. Bindings must be canonical."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.matmul"):
        out = static_shape(call)
        is_matrix = all(len(static_shape(argument) or ()) >= 2 for argument in call.args)
        if out is None or not is_matrix or len({str(each.ty.dtype) for each in (*call.args, call)}) > 1:
            continue
        batch = _LETTERS[: len(out) - 2]
        left = _Operand.found(def_use, call.args[0], batch + "xy", out, keeps_last=True)
        right = _Operand.found(def_use, call.args[1], batch + "yz", out, keeps_last=False)
        if left.tensor.same_as(right.tensor):
            continue
        computed = not any(def_use.from_weights(argument) for argument in call.args)
        last = def_use.values.get(def_use.users[variable][-1]) if computed and def_use.has_one_use(variable) else None
        axes = permutation(last)
        if axes and axes[-1] == len(axes) - 1:
            replacements[last] = _einsum(left, right, "".join((batch + "xz")[axis] for axis in axes))
        elif left.is_changed or right.is_changed:
            replacements[call] = _einsum(left, right, batch + "xz")
    return replace_calls(mod, replacements)


def _einsum(left: _Operand, right: _Operand, out: str) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        tensors = [reshaped(current(each.tensor), each.shape) for each in (left, right)]
        return relax.op.einsum(tuple(map(builder.emit, tensors)), f"{left.labels},{right.labels}->{out}")

    return replacement


@dataclass(frozen=True, kw_only=True)
class _Operand:
    """An operand of a product, in the layout that it has in memory."""

    tensor: Any
    shape: tuple[int, ...]
    """Of the tensor without the dimensions along which it is broadcast."""
    labels: str
    """The letter of each of those dimensions in the einsum."""
    is_changed: bool
    """Whether the product read it through a permutation, or broadcast it."""

    @staticmethod
    def found(def_use: DefUse, tensor: Any, labels: str, out: list[int], *, keeps_last: bool) -> _Operand:
        """The operand `tensor` of a product of shape `out`.

        labels: the letters of an operand with all batch dimensions of the result.
        keeps_last: whether the product reads the operand's last axis element by element, so that a permutation which
        moves that axis is not folded.
        """
        shape = static_shape(tensor) or []
        own, extents = labels[len(labels) - len(shape) :], out[len(out) - len(shape) : -2]
        kept = [axis for axis in range(len(shape)) if axis >= len(extents) or shape[axis] == extents[axis]]
        axes = permutation(def_use.definition(tensor))
        lies_well = axes and (not keeps_last or axes[-1] == len(axes) - 1)
        if lies_well and not def_use.from_weights(tensor) and len(kept) == len(shape):
            by_axis = dict(zip(axes, own, strict=True))
            own = "".join(by_axis[axis] for axis in range(len(axes)))
            source = def_use.definition(tensor).args[0]
            return _Operand(tensor=source, shape=tuple(static_shape(source) or ()), labels=own, is_changed=True)
        return _Operand(
            tensor=tensor,
            shape=tuple(shape[axis] for axis in kept),
            labels="".join(own[axis] for axis in kept),
            is_changed=len(kept) < len(shape),
        )


def fold_input_transpose(mod: Any) -> Any:
    """The module with permutations of main's inputs folded into the convolutions, in NHWC, that read them."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for _, call in def_use.calls("relax.nn.conv2d"):
        permuted = def_use.definition(call.args[0])
        attrs = call.attrs
        plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout, int(attrs.groups)) == (
            "NHWC",
            "HWIO",
            "NHWC",
            1,
        )
        if plain and permutation(permuted) and def_use.has_one_use(call.args[0]) and permuted.args[0] in def_use.inputs:
            replacements[call] = _convolution_of(call, permuted)
    return replace_calls(mod, replacements)


def _convolution_of(call: Any, permuted: Any) -> Replacement:
    def replacement(builder: Any, current: Callable[[Any], Any]) -> Any:
        x, weight = permuted.args[0], current(call.args[1])
        placeholders = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (x, weight)]
        attrs = call.attrs
        dtype = SUMS if is_half(call) else str(call.ty.dtype)
        result = topi.nn.conv2d(
            topi.transpose(placeholders[0], permutation(permuted)),
            placeholders[1],
            strides=[int(step) for step in attrs.strides],
            padding=[int(width) for width in attrs.padding],
            dilation=[int(step) for step in attrs.dilation],
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=dtype,
        )
        schedule = Schedule(te.create_prim_func([*placeholders, result], index_dtype_override="int64"))
        schedule.compute_inline("T_transpose")
        function = schedule.mod["main"].without_attr("global_symbol")
        sums = relax.call_tir(builder.add_func(function, "conv2d"), (x, weight), relax.TensorType(call.ty.shape, dtype))
        return relax.op.astype(builder.emit(sums), call.ty.dtype) if is_half(call) else sums

    return replacement
