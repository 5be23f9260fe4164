"""Products that read and write tensors as they lie.

* A permutation of an operand or of the result of a product of two computed tensors (scores and values of attention) is
  an order of indices, not a kernel: matmul(a, permute_dims(b)) and permute_dims(matmul(a, b)) become an einsum, which
  lowers to one block that multiplies and accumulates. So does a product that broadcasts over several dimensions, whose
  unit dimensions would be constant indices.
* A convolution whose stride is its kernel reads every element once: with its input seen as [channels, rows, kernel rows,
  columns, kernel columns] it is an einsum too (the patches of vision transformers), in whatever layout is around it.
* The permutation that puts a model's input into the layout of its first convolution is done where that pads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.graph.def_use import DefUse, Replacement, op_name, permutation, replace_calls, reshaped, static_shape
from tuner.graph.reshape_transpose import Step, followed
from tuner.tvm_compat import Schedule, relax, te, topi

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def absorb_permutations(mod: Any) -> Any:
    """The module with such products of main as einsums; bindings canonical."""
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
        computed = not any(def_use.from_weights(argument) for argument in call.args)
        last = def_use.values.get(def_use.last_users[variable]) if computed and def_use.has_one_use(variable) else None
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
    """An operand of a product as it lies."""

    tensor: Any
    shape: tuple[int, ...]
    """Of the tensor without the dimensions along which it is broadcast."""
    labels: str
    """A letter for each of them."""
    is_changed: bool
    """The product had it permuted, or with dimensions along which it is broadcast."""

    @staticmethod
    def found(def_use: DefUse, tensor: Any, labels: str, out: list[int], *, keeps_last: bool) -> _Operand:
        """`labels` are those of an operand with all of the result's dimensions `out`. `keeps_last`: the operand is read
        element by element along its last axis, which has to stay the last."""
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


def patches_as_products(mod: Any) -> Any:
    """The module with every convolution of main whose patches do not overlap, and its bias, as an einsum."""
    def_use = DefUse(mod["main"])
    replacements: dict[Any, Replacement] = {}
    for variable, call in def_use.calls("relax.nn.conv2d"):
        if (patches := _Patches.found(def_use, variable, call)) is not None:
            replacements[patches.last] = patches
    return replace_calls(mod, replacements)


@dataclass(frozen=True, kw_only=True)
class _Patches:
    conv: Any
    channels_last: Any
    """The image before it was permuted, or None."""
    bias: Any
    last: Any
    """The call whose place the einsum takes."""

    @staticmethod
    def found(def_use: DefUse, variable: Any, call: Any) -> _Patches | None:
        data, kernel = (static_shape(argument) for argument in call.args)
        attrs = call.attrs
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        if data is None or kernel is None or layouts != ("NCHW", "OIHW", "NCHW") or int(attrs.groups) != 1:
            return None
        size = kernel[2:]
        windows = [int(extent) for extent in attrs.strides] == size and max(size) > 1 and data[0] == 1
        if not windows or any(map(int, attrs.padding)) or any(int(extent) != 1 for extent in attrs.dilation):
            return None
        if any(extent % step for extent, step in zip(data[2:], size, strict=True)) or data[1] == 1:
            return None
        if len({str(each.ty.dtype) for each in (*call.args, call)}) > 1:
            return None
        last, bias = call, None
        if def_use.has_one_use(variable):
            follower: Any = def_use.values.get(def_use.last_users[variable])
            if op_name(follower) == "relax.add" and follower.args[0].same_as(variable):
                along = static_shape(follower.args[1])
                if along in ([1, kernel[0], 1, 1], [kernel[0], 1, 1]) and def_use.from_weights(follower.args[1]):
                    last, bias = follower, follower.args[1]
        return _Patches(conv=call, channels_last=_channels_last(def_use, call.args[0]), bias=bias, last=last)

    def __call__(self, builder: Any, current: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        weight = current(self.conv.args[1])
        _, channels, height, width = static_shape(self.conv.args[0]) or []
        outputs, _, down, across = static_shape(weight) or []
        tall, wide = height // down, width // across
        if self.channels_last is None:
            cut = emit(relax.op.reshape(current(self.conv.args[0]), [channels, tall, down, wide, across]))
            weight = emit(relax.op.permute_dims(weight, [1, 2, 3, 0]))
            y = emit(relax.op.einsum((cut, weight), "chpwq,cpqo->hwo"))
        else:
            cut = emit(relax.op.reshape(current(self.channels_last), [tall, down, wide, across, channels]))
            weight = emit(relax.op.permute_dims(weight, [2, 3, 1, 0]))
            y = emit(relax.op.einsum((cut, weight), "hpwqc,pqco->hwo"))
        if self.bias is not None:
            y = emit(relax.op.add(y, emit(relax.op.reshape(current(self.bias), [outputs]))))
        return emit(relax.op.permute_dims(emit(relax.op.reshape(y, [1, tall, wide, outputs])), [0, 3, 1, 2]))


def _channels_last(def_use: DefUse, image: Any) -> Any:
    """What main computed and permuted to make an image [1, channels, height, width] of; None where it was made otherwise."""
    steps: list[Step] = []
    x = image
    while op_name(definition := def_use.definition(x)) == "relax.reshape" or permutation(definition):
        steps.insert(
            0, ("permute", permutation(definition)) if permutation(definition) else ("reshape", static_shape(x) or [])
        )
        x = definition.args[0]
    source, shape = static_shape(x), static_shape(image) or []
    if source is None or not steps or (isinstance(x, relax.Var) and x not in def_use.values):
        return None
    wanted = followed([*shape[2:], shape[1]], [("permute", [2, 0, 1])])
    return x if followed(source, steps) == wanted else None


def absorb_input_layout(mod: Any) -> Any:
    """The module with permutations of main's inputs done by the convolutions that read them, in NHWC."""
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
        result = topi.nn.conv2d(
            topi.transpose(placeholders[0], permutation(permuted)),
            placeholders[1],
            strides=[int(step) for step in attrs.strides],
            padding=[int(width) for width in attrs.padding],
            dilation=[int(step) for step in attrs.dilation],
            data_layout="NHWC",
            kernel_layout="HWIO",
            out_dtype=attrs.out_dtype or None,
        )
        schedule = Schedule(te.create_prim_func([*placeholders, result], index_dtype_override="int64"))
        schedule.compute_inline("T_transpose")
        function = schedule.mod["main"].without_attr("global_symbol")
        return relax.call_tir(builder.add_func(function, "conv2d"), (x, weight), call.ty)

    return replacement
