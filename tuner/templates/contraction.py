"""A workload read as a contraction, with what is computed before and after it.

Notation: C[s, i, j] += A[s, i, k] * B[s, k, j]; s are the axes of all three (batches), i those of A and C (rows, positions
of an image), j those of B and C, k those that are summed (a window and its channels). B is the operand that has the axis
along which neighbouring results lie side by side in memory. A convolution is such a product, whose A is gathered.

What comes before (a padding, a cast, an activation) is an expression of A or B, what comes after (bias, residual,
activation) an expression of the sum. TVM's own inlining makes them, so that no name of an operator is known here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pitchpipe.errors import InvalidTrace
from tuner.tvm_compat import Schedule, inline_into_producer, ir, structural_walk, sym, tirx, tvm_ffi, uses

MAX_ELEMENTS = (1 << 31) - 1
"""Of a tensor: kernels compute indices in 32 bits."""
MAX_BATCH = 65535
"""Iterations of the axes s together: they are an axis of the launch."""
LEAST_SUMMED = 16
"""Iterations of k: below it a product is bound by memory, and tensor cores multiply zeros."""
OPERANDS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "int8": "int32"}
"""Element types that are multiplied, and the type of their sums."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}


class NotRecognised(InvalidTrace):
    """The workload is no contraction that a template knows."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of a loop nest."""

    variable: Any
    extent: int


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """A workload that is one contraction. Axes have extents above 1, the slowest first."""

    params: tuple[Any, ...]
    """The function's parameters."""
    constant: frozenset[int]
    """Places of those that hold weights, which no kernel of a run writes."""
    s: tuple[Axis, ...]
    i: tuple[Axis, ...]
    j: tuple[Axis, ...]
    k: tuple[Axis, ...]
    a: Any
    """Expression of s, i, k."""
    b: Any
    """Expression of s, k, j."""
    dtype: str
    """Element type of both, as they are multiplied."""
    sum_dtype: str
    tf32: bool
    """Whether float32 operands may be rounded to TF32."""
    sums: Any
    """The buffer that `value` reads at the place of its own sum."""
    output: Any
    indices: tuple[Any, ...]
    """Of the element of `output` that is written, in s, i, j."""
    value: Any
    """What is written, in s, i, j."""

    def extent(self, axes: str) -> int:
        """Iterations of the axes of these kinds together: "s", "ij", ..."""
        return math.prod(axis.extent for kind in axes for axis in getattr(self, kind))

    def weights_in(self, expression: Any) -> Any:
        """Where an expression reads weights: the first such load; None where it reads none."""
        loads: list[Any] = []
        structural_walk(expression, (ir.TensorLoad, loads.append))
        return next((load for load in loads if any(load.source.same_as(one) for one in self.weights)), None)

    def is_rounded(self, expression: Any) -> bool:
        """Whether an operand is what tensor cores multiply: not float32, strict, or weights, which are rounded when they are
        bound (tuner/graph/tf32_weights.py)."""
        is_weight = isinstance(expression, ir.TensorLoad) and self.weights_in(expression) is not None
        return self.dtype != "float32" or not self.tf32 or is_weight

    @property
    def weights(self) -> list[Any]:
        """Parameters that hold weights."""
        return [self.params[at] for at in sorted(self.constant)]


def find_contraction(mod: Any) -> Contraction:
    """The contraction of a workload's module. Raises NotRecognised, which says what else it is."""
    schedule = Schedule(mod, debug_mask=0, error_render_level="none")
    try:
        main, last = _isolated(schedule)
    except NotRecognised:
        raise
    except Exception as error:  # TVM raises whatever its C++ side met
        raise NotRecognised("what is computed around the contraction cannot be inlined") from error
    return _Reader(mod["main"], schedule.get(main), schedule.get(last)).contraction()


def _isolated(schedule: Any) -> tuple[Any, Any]:
    """The contraction's block, and the one that writes the result, everything else inlined into these two."""
    blocks = list(schedule.get_child_blocks(schedule.get_sblock("root")))
    reductions = [block for block in blocks if reduces(schedule.get(block))]
    if len(reductions) != 1:
        raise NotRecognised(f"{len(reductions)} stages of the workload reduce, where a contraction has one")
    (main,) = reductions
    for block in blocks:
        if schedule.get_consumers(block) and block not in reductions:
            schedule.compute_inline(block)
    after = schedule.get_consumers(main)
    if len(after) > 1:
        raise NotRecognised("the sums are read by more than one stage")
    last = schedule.cache_write(main, 0, "local")
    if after:
        inline_into_producer(schedule, after[0])
    if len(list(schedule.get_child_blocks(schedule.get_sblock("root")))) != 2:
        raise NotRecognised("the workload has more than one result")
    return main, last


def reduces(definition: Any) -> bool:
    return any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in definition.iter_vars)


class _Reader:
    """Reads the two blocks."""

    def __init__(self, function: Any, main: Any, last: Any) -> None:
        self._function, self._main, self._last = function, main, last

    def contraction(self) -> Contraction:
        store, write = _store(self._main), _store(self._last)
        left, right = self._factors(store)
        at = self._places(store, write)
        units = {axis.var: 0 for axis in self._main.iter_vars if int(axis.dom.extent) == 1}
        left, right = (substituted(one, units) for one in (left, right))
        indices = [substituted(substituted(index, at), units) for index in write.indices]
        value = substituted(substituted(write.value, at), units)
        kinds = self._kinds(left, right)
        results = _offset(write.buffer, indices)
        apart = {v: abs(_stride(results, v)) for v in kinds}
        fastest = min((v for v in kinds if apart[v]), key=lambda v: apart[v], default=None)
        if fastest is not None and kinds[fastest] == "s":
            raise NotRecognised("neighbouring results are of different products, as in a depthwise convolution")
        if fastest is not None and kinds[fastest] == "i":  # Then what was A is B.
            left, right = right, left
            kinds = {v: {"i": "j", "j": "i"}.get(kind, kind) for v, kind in kinds.items()}
        extents = {axis.var: int(axis.dom.extent) for axis in self._main.iter_vars}

        def axes(kind: str, place: Any) -> tuple[Axis, ...]:
            own = sorted((v for v, found in kinds.items() if found == kind), key=lambda v: -abs(_stride(place, v)))
            return tuple(Axis(variable=v, extent=extents[v]) for v in own)

        dtypes = {str(one.ty.dtype) for one in (left, right)}
        sum_dtype = str(store.buffer.ty.dtype)
        if len(dtypes) != 1 or OPERANDS.get(next(iter(dtypes))) != sum_dtype:
            raise NotRecognised(f"products of {' and '.join(sorted(dtypes))} are summed in {sum_dtype}")
        found = Contraction(
            params=tuple(self._function.params),
            constant=frozenset(int(at) for at in (self._function.attrs or {}).get("layout_free_buffers", [])),
            s=axes("s", results),
            i=axes("i", results),
            j=axes("j", results),
            k=axes("k", _place(left)),
            a=left,
            b=right,
            dtype=dtypes.pop(),
            sum_dtype=sum_dtype,
            tf32=str((self._function.attrs or {}).get("precision", "")) == "tf32",
            sums=store.buffer,
            output=write.buffer,
            indices=tuple(indices),
            value=value,
        )
        _check_sizes(found)
        return found

    def _factors(self, store: Any) -> tuple[Any, Any]:
        """A and B of C + A * B, without the casts to the type of the sums."""
        value = store.value
        if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
            raise NotRecognised("the reduction is no sum of products")
        if not (isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(store.buffer)):
            raise NotRecognised("the reduction is no sum of products")
        start = store_of(self._main.init)
        if start is None or float(getattr(start.value, "value", 1)) != 0:
            raise NotRecognised("the sums do not begin at zero")
        left, right = value.b.a, value.b.b
        if isinstance(left, tirx.Cast) and isinstance(right, tirx.Cast) and left.ty.dtype == value.ty.dtype:
            return left.value, right.value
        return left, right

    def _places(self, store: Any, write: Any) -> dict[Any, Any]:
        """Axis of the block that writes the results -> axis of the contraction, by where the sums are read."""
        loads: list[Any] = []
        structural_walk(write.value, (ir.TensorLoad, loads.append))
        found: dict[Any, Any] = {}
        for load in (one for one in loads if one.source.same_as(store.buffer)):
            for own, written in zip(load.indices, store.indices, strict=True):
                if isinstance(written, tirx.Var) and isinstance(own, tirx.Var):
                    if not found.setdefault(own, written).same_as(written):
                        raise NotRecognised("a result depends on several sums")
                elif not is_zero(own) and not is_zero(written):
                    raise NotRecognised("the sums are not read element by element")
        for axis in self._last.iter_vars:
            if axis.var not in found:
                if int(axis.dom.extent) != 1:
                    raise NotRecognised("a sum is written to several places")
                found[axis.var] = tirx.const(0, str(axis.var.ty.dtype))
        return found

    def _kinds(self, left: Any, right: Any) -> dict[Any, str]:
        """Variable of an axis longer than one -> s, i, j or k."""
        names = {
            (True, True, False): "s",
            (True, False, False): "i",
            (False, True, False): "j",
            (True, True, True): "k",
        }
        found = {}
        for axis in self._main.iter_vars:
            if int(axis.dom.extent) > 1:
                reduced = int(axis.iter_type) == tirx.IterVar.CommReduce
                kind = names.get((uses(left, axis.var), uses(right, axis.var), reduced))
                if kind is None:
                    raise NotRecognised("an axis is none of a product's")
                found[axis.var] = kind
        return found


def store_of(statement: Any) -> Any:
    while isinstance(statement, tirx.SeqStmt) and len(statement.seq) == 1:
        statement = statement.seq[0]
    return statement if isinstance(statement, tirx.BufferStore) else None


def _store(definition: Any) -> Any:
    store = store_of(definition.body)
    if store is None:
        raise NotRecognised("a stage is more than one assignment")
    return store


def is_zero(expression: Any) -> bool:
    return isinstance(expression, tirx.IntImm) and int(expression) == 0


def substituted(expression: Any, values: dict[Any, Any]) -> Any:
    """The expression with variables replaced, simplified where that changes anything."""
    if not values:
        return expression

    def known(variable: Any) -> Any:
        value = next((value for other, value in values.items() if variable.same_as(other)), None)
        return variable if value is None else tirx.const(value, str(variable.ty.dtype)) if value == 0 else value

    return tvm_ffi.structural_map(expression, (ir.Var, known))


def _offset(buffer: Any, indices: Sequence[Any]) -> Any:
    """Where an element lies, in elements from the first one."""
    total: Any = tirx.const(0, "int64")
    for index, extent in zip(indices, buffer.ty.shape, strict=True):
        total = total * tirx.const(int(extent), "int64") + tirx.Cast("int64", index)
    return total


def _place(expression: Any) -> Any:
    """Where the first tensor that an expression reads is read; zero where it reads none."""
    found: list[Any] = []
    structural_walk(expression, (ir.TensorLoad, lambda one: found.append(_offset(one.source, one.indices))))
    return found[0] if found else tirx.const(0, "int64")


def stride_of(load: Any, variable: Any) -> int:
    """Elements between what a load reads for one value of a variable and for the next, all others at zero."""
    return _stride(_offset(load.source, load.indices), variable)


def _stride(offset: Any, variable: Any) -> int:
    """Elements from one value of a variable to the next, all others at zero."""

    def at(value: int) -> int:
        def known(other: Any) -> Any:
            return tirx.const(value if other.same_as(variable) else 0, str(other.ty.dtype))

        found = sym.Analyzer().simplify(tvm_ffi.structural_map(offset, (ir.Var, known)))
        return int(found) if isinstance(found, tirx.IntImm) else 0

    return at(1) - at(0)


def _check_sizes(found: Contraction) -> None:
    """Raises NotRecognised where indices do not fit in 32 bits, a sum is short, or a launch has too many batches."""
    sizes = [math.prod(int(extent) for extent in param.ty.shape) for param in found.params]
    if max([*sizes, found.extent("sij"), found.extent("k")]) > MAX_ELEMENTS:
        raise NotRecognised("a tensor has more elements than 32 bits count")
    if found.extent("k") < LEAST_SUMMED:
        raise NotRecognised(
            f"{found.extent('k')} products a sum, which tensor cores take at least {LEAST_SUMMED} at a time"
        )
    if found.extent("s") > MAX_BATCH:
        raise NotRecognised(f"a batch of {found.extent('s')} products, the cap is {MAX_BATCH}")
