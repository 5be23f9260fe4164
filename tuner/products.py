"""Products that read and write tensors as they lie.

* A permutation of an operand or of the result of a product of two computed tensors (scores and values of attention) is
  an order of indices, not a kernel: matmul(a, permute_dims(b)) and permute_dims(matmul(a, b)) become an einsum, which
  lowers to one block that multiplies and accumulates.
* A convolution whose stride is its kernel reads every element once: with its input seen as [channels, rows, kernel rows,
  columns, kernel columns] it is an einsum too (the patches of vision transformers), in whatever layout is around it.
* The permutation that puts a model's input into the layout of its first convolution is done where that pads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuner.facts import Facts, Recipe, op_name, replaced, static_shape
from tuner.tvm_compat import Schedule, relax, te, topi

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def absorb_permutations(mod: Any) -> Any:
    """The module with such products of main as einsums; bindings canonical."""
    facts = Facts(mod["main"])
    recipes: dict[Any, Recipe] = {}
    for variable, call in facts.calls("relax.matmul"):
        if (product := _Product.found(facts, call)) is None:
            continue
        follower = facts.readers.get(variable) if facts.once(variable) else None
        last = facts.bound.get(follower) if follower is not None else None
        axes = _axes(last)
        if axes and axes[-1] == len(axes) - 1:
            recipes[last] = product.written(axes)
        elif product.permuted:
            recipes[call] = product.written(list(range(len(product.out))))
    return replaced(mod, recipes)


def _axes(call: Any) -> list[int]:
    """Axes of a permutation; none for anything else."""
    return [int(axis) for axis in call.attrs.axes or ()] if op_name(call) == "relax.permute_dims" else []


@dataclass(frozen=True, kw_only=True)
class _Product:
    operands: tuple[Any, Any]
    """The tensors as they lie."""
    labels: tuple[str, str]
    out: str
    permuted: bool
    """An operand was read through a permutation."""

    @staticmethod
    def found(facts: Facts, call: Any) -> _Product | None:
        """A product of two computed matrices or batches of them, of equal batches and one type throughout."""
        left, right = (static_shape(argument) for argument in call.args)
        if left is None or right is None or len(left) != len(right) or left[:-2] != right[:-2] or len(left) < 2:
            return None
        types = {str(each.ty.dtype) for each in (*call.args, call)}
        if len(types) > 1 or any(facts.from_weights(argument) for argument in call.args):
            return None
        batch, (i, k, j) = _LETTERS[: len(left) - 2], "xyz"
        labels, operands = [batch + i + k, batch + k + j], list(call.args)
        for place, operand in enumerate(call.args):
            axes = _axes(facts.made(operand))
            # The left operand is read element by element along its last axis: that one has to stay.
            if axes and (place == 1 or axes[-1] == len(axes) - 1):
                by_axis = dict(zip(axes, labels[place], strict=True))
                labels[place] = "".join(by_axis[axis] for axis in range(len(axes)))
                operands[place] = facts.made(operand).args[0]
        return _Product(
            operands=(operands[0], operands[1]),
            labels=(labels[0], labels[1]),
            out=batch + i + j,
            permuted=not all(new.same_as(old) for new, old in zip(operands, call.args, strict=True)),
        )

    def written(self, axes: list[int]) -> Recipe:
        """The einsum whose result is the product's, permuted by `axes`."""
        equation = f"{self.labels[0]},{self.labels[1]}->{''.join(self.out[axis] for axis in axes)}"
        return lambda _, now: relax.op.einsum(tuple(now(each) for each in self.operands), equation)


def patches_as_products(mod: Any) -> Any:
    """The module with every convolution of main whose patches do not overlap, and its bias, as an einsum."""
    facts = Facts(mod["main"])
    recipes: dict[Any, Recipe] = {}
    for variable, call in facts.calls("relax.nn.conv2d"):
        if (patches := _Patches.found(facts, variable, call)) is not None:
            recipes[patches.last] = patches
    return replaced(mod, recipes)


@dataclass(frozen=True, kw_only=True)
class _Patches:
    conv: Any
    bias: Any
    last: Any
    """The call whose place the einsum takes."""

    @staticmethod
    def found(facts: Facts, variable: Any, call: Any) -> _Patches | None:
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
        if facts.once(variable):
            follower: Any = facts.bound.get(facts.readers[variable])
            if op_name(follower) == "relax.add" and follower.args[0].same_as(variable):
                along = static_shape(follower.args[1])
                if along in ([1, kernel[0], 1, 1], [kernel[0], 1, 1]) and facts.from_weights(follower.args[1]):
                    last, bias = follower, follower.args[1]
        return _Patches(conv=call, bias=bias, last=last)

    def __call__(self, builder: Any, now: Callable[[Any], Any]) -> Any:
        emit = builder.emit
        x, weight = (now(argument) for argument in self.conv.args)
        _, channels, height, width = static_shape(x) or []
        outputs, _, down, across = static_shape(weight) or []
        tall, wide = height // down, width // across
        cut = emit(relax.op.reshape(x, [channels, tall, down, wide, across]))
        weight = emit(relax.op.permute_dims(weight, [1, 2, 3, 0]))
        y = emit(relax.op.einsum((cut, weight), "chpwq,cpqo->hwo"))
        if self.bias is not None:
            y = emit(relax.op.add(y, emit(relax.op.reshape(now(self.bias), [outputs]))))
        return emit(relax.op.permute_dims(emit(relax.op.reshape(y, [1, tall, wide, outputs])), [0, 3, 1, 2]))


def absorb_input_layout(mod: Any) -> Any:
    """The module with permutations of main's inputs done by the convolutions that read them, in NHWC."""
    facts = Facts(mod["main"])
    recipes: dict[Any, Recipe] = {}
    for _, call in facts.calls("relax.nn.conv2d"):
        permutation = facts.made(call.args[0])
        attrs = call.attrs
        plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout, int(attrs.groups)) == (
            "NHWC",
            "HWIO",
            "NHWC",
            1,
        )
        if plain and _axes(permutation) and facts.once(call.args[0]) and permutation.args[0] in facts.inputs:
            recipes[call] = _convolution_of(call, permutation)
    return replaced(mod, recipes)


def _convolution_of(call: Any, permutation: Any) -> Recipe:
    def recipe(builder: Any, now: Callable[[Any], Any]) -> Any:
        x, weight = permutation.args[0], now(call.args[1])
        placeholders = [te.placeholder(static_shape(each), str(each.ty.dtype)) for each in (x, weight)]
        attrs = call.attrs
        result = topi.nn.conv2d(
            topi.transpose(placeholders[0], _axes(permutation)),
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

    return recipe
