"""What a finished module computes, as a list of calls of tensor functions on pieces of memory.

main and main_transform_params are straight lines of calls: here they are read with names for the tensors in place of
values. Reshapes and views of memory call nothing, they are the same memory seen in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.gpu.program import Buffer, InvalidProgram, Place
from tuner.graph.prepare import MAIN, TRANSFORM
from tuner.tvm_compat import ir, relax


@dataclass(eq=False, kw_only=True)
class Tensor:
    """A piece of memory. Equal to nothing but itself."""

    buffer: Buffer
    """Of place SCRATCH until it is known that it has to stay, or to be given to the caller."""
    data: bytes = b""
    """Contents of a constant."""
    value: Any = None
    """The constant itself, TVM's tensor, where only main was read."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A tensor, or a part of one, as some shape."""

    tensor: Tensor
    offset: int = 0
    """In bytes."""
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of what is seen."""
        return _buffer(self.dtype, self.shape).size_bytes

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its memory."""
        return self.offset == 0 and self.size_bytes == self.tensor.buffer.size_bytes


@dataclass(frozen=True, kw_only=True)
class Step:
    """A call of a tensor function."""

    function: str
    arguments: tuple[View, ...]
    """What it reads, then what it writes, as the function takes them."""


@dataclass(kw_only=True)
class Flow:
    """A finished module's calls."""

    inputs: list[View] = field(default_factory=list)
    weights: list[View] = field(default_factory=list)
    prepare: list[Step] = field(default_factory=list)
    run: list[Step] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    in_tuple: bool = False
    """Whether main returns a tuple."""
    flat: bool = True
    """Whether no tuple that main returns holds another."""

    def returns(self, result: Any) -> None:
        """Sets what main returns: a view, or a tuple of values."""
        self.outputs, self.in_tuple = list(_flat(result)), isinstance(result, tuple)
        self.flat = not self.in_tuple or all(isinstance(part, View) for part in result)


def read_flow(module: Any) -> Flow:
    """The calls of a module that `finish` made. Raises UnsupportedOperator for what is no call of a tensor function."""
    main, transform = module[MAIN], module[TRANSFORM]
    flow, count = Flow(), int(main.attrs["num_input"])
    flow.inputs = [_new(param.ty, Place.INPUT) for param in main.params[:count]]
    flow.weights = [_new(found, Place.WEIGHT) for found in transform.params[0].ty.fields]
    constants: dict[tuple[Any, ...], Tensor] = {}
    transformed = _Reader(module, flow.prepare, constants).call(transform, [tuple(flow.weights)])
    result = _Reader(module, flow.run, constants).call(main, [*flow.inputs, *_flat(transformed)])
    flow.returns(result)
    return flow


def read_main(module: Any) -> Flow:
    """The calls of main alone; `weights` are what main_transform_params gives it, and constants have no `data`. Raises as
    `read_flow` does."""
    main = module[MAIN]
    flow, count = Flow(), int(main.attrs["num_input"])
    flow.inputs = [_new(param.ty, Place.INPUT) for param in main.params[:count]]
    flow.weights = [_new(param.ty, Place.RESIDENT) for param in main.params[count:]]
    flow.returns(_MainReader(module, flow.run, {}).call(main, [*flow.inputs, *flow.weights]))
    return flow


class _Reader:
    """Reads functions with views for values; their calls are appended to `steps`."""

    def __init__(self, module: Any, steps: list[Step], constants: dict[tuple[Any, ...], Tensor]) -> None:
        self._module, self._steps, self._constants = module, steps, constants

    def call(self, function: Any, arguments: Sequence[Any]) -> Any:
        """The value of a function: a view, or a tuple of values."""
        known = dict(zip(function.params, arguments, strict=True))
        for block in function.body.blocks:
            for binding in block.bindings:
                known[binding.var] = self._value(getattr(binding, "value", None), known)
        return self._value(function.body.body, known)

    def _value(self, expression: Any, known: dict[Any, Any]) -> Any:
        match expression:
            case ir.GenericConst() if hasattr(expression.value, "numpy"):
                return self._constant(expression)
            case relax.Tuple():
                return tuple(self._value(part, known) for part in expression.fields)
            case relax.TupleGetItem():
                return self._value(expression.tuple_value, known)[expression.index]
            case ir.Call() if isinstance(expression.op, ir.GlobalVar):
                given = [self._value(argument, known) for argument in expression.args]
                return self.call(self._module[expression.op], given)
            case ir.Call():
                return self._operator(expression, known)
            case _ if expression in known:
                return known[expression]
            case _:
                raise UnsupportedOperator(f"a model for a GPU has no {type(expression).__name__}")

    def _operator(self, call: Any, known: dict[Any, Any]) -> Any:
        name = getattr(call.op, "name", str(call.op))
        if name == "relax.call_tir" and len(call.args) == 2:
            made = _result(call.ty)
            views = [*self._value(call.args[1], known), *_flat(made)]
            if any(view.tensor.buffer.size_bytes for view in _flat(made)):  # else there is nothing to compute
                self._steps.append(Step(function=str(call.args[0].name_hint), arguments=tuple(views)))
            return made
        if name in ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"):
            view = self._value(call.args[0], known)
            moved = int(call.args[3].value) if name == "relax.memory.view" and hasattr(call.args[3], "value") else 0
            dtype, shape = _type(call.ty)
            return View(tensor=view.tensor, offset=view.offset + moved, dtype=dtype, shape=shape)
        raise UnsupportedOperator(f"operator {name} has no implementation for this target")

    def _constant(self, constant: Any) -> View:
        dtype, shape = _type(constant.ty)
        data = constant.value.numpy().tobytes()
        key = (dtype, shape, data)
        if key not in self._constants:
            self._constants[key] = Tensor(buffer=_buffer(dtype, shape, Place.CONSTANT), data=data)
        return View(tensor=self._constants[key], dtype=dtype, shape=shape)


class _MainReader(_Reader):
    """Leaves constants where they are."""

    def _constant(self, constant: Any) -> View:
        dtype, shape = _type(constant.ty)
        key = (dtype, shape, constant.value.data_ptr())
        if key not in self._constants:
            self._constants[key] = Tensor(buffer=_buffer(dtype, shape, Place.CONSTANT), value=constant.value)
        return View(tensor=self._constants[key], dtype=dtype, shape=shape)


def _result(found: Any) -> Any:
    """New memory for what a tensor function writes."""
    if isinstance(found, relax.TupleType):
        return tuple(_result(part) for part in found.fields)
    return _new(found, Place.SCRATCH)


def _new(found: Any, place: Place) -> View:
    dtype, shape = _type(found)
    return View(tensor=Tensor(buffer=_buffer(dtype, shape, place)), dtype=dtype, shape=shape)


def _buffer(dtype: str, shape: tuple[int, ...], place: Place = Place.SCRATCH) -> Buffer:
    try:
        return Buffer(place=place, dtype=dtype, shape=shape)
    except InvalidProgram as error:
        raise UnsupportedOperator(f"a tensor {dtype}{list(shape)} has no form on a GPU: {error}") from error


def _type(found: Any) -> tuple[str, tuple[int, ...]]:
    """Element type and shape. Raises UnsupportedOperator where they are not known."""
    try:
        return str(found.dtype), tuple(int(extent) for extent in found.shape.values)
    except (AttributeError, TypeError, ValueError) as error:
        raise UnsupportedOperator(f"a tensor of type {found} has no size that is known") from error


def _flat(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    else:
        for part in value:
            yield from _flat(part)
