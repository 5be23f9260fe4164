"""What CUDA C++ has no vectors for, computed lane by lane between vectors that are loaded and stored.

TVM 0.27 writes code that no compiler takes for a vector of booleans where it chooses between values or is kept in memory,
for eight lanes of float32 that are constants or results of functions, and for the complement of whole numbers. Its loads
and stores of other vectors are right. So a statement with such a vector becomes loads into registers, a statement for each
lane, and a store:

    B[i:i + n] = f(A[i:i + n], c)
    =>
    a[0:n] = A[i:i + n];  b[0] = f(a[0], c); ... b[n - 1] = f(a[n - 1], c);  B[i:i + n] = b[0:n]

a and b have constant indices, so the compiler keeps them in registers. Tensors of booleans are read and written element by
element: their vectors have another size in CUDA C++ than in memory.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, structural_walk, tirx, tvm, tvm_ffi

MOST_FLOATS = 4
"""Lanes of float32 of which TVM 0.27 writes constants and results of functions as vectors."""
_CHOICE = "prim.if_then_else"
_PAIRS = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or),
    *(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift),
)


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    apart = _Apart()
    visitors = [(tirx.Bind, apart.bound), (tirx.BufferStore, apart.stored), (tirx.SeqStmt, _flat)]
    body = tvm_ffi.structural_map(function.body, visitors)
    return function if body.same_as(function.body) else function.with_body(body)


LANE_BY_LANE = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.LaneByLane")
"""The pass. After TVM has vectorised loops, before it looks up what functions are called in CUDA C++."""


def _flat(sequence: Any) -> Any:
    """A sequence without sequences in it, within which alone their variables would be known."""
    if not any(isinstance(each, tirx.SeqStmt) for each in sequence.seq):
        return sequence
    return tirx.SeqStmt([s for each in sequence.seq for s in (each.seq if isinstance(each, tirx.SeqStmt) else [each])])


class _Apart:
    """The statements of a function in order, some of which are taken apart."""

    def __init__(self) -> None:
        self._known: dict[Any, list[Any]] = {}
        """Variable of a vector -> its lanes."""

    def bound(self, bind: Any) -> Any:
        if not self._concerns(bind.value):
            return bind
        lanes = _Lanes(self._known, bind.value)
        self._known[bind.var] = [tirx.Var(f"{bind.var.name}_{at}", _one(bind.var)) for at in range(_count(bind.var))]
        made = [tirx.Bind(variable, lanes.of(bind.value, at)) for at, variable in enumerate(self._known[bind.var])]
        return tirx.SeqStmt([*lanes.loads, *made])

    def stored(self, store: Any) -> Any:
        *outer, index = store.indices
        count = _count(store.value)
        if count == 1 or not (_is_boolean(store.value) or any(map(self._concerns, (store.value, index)))):
            return store
        lanes = _Lanes(self._known, store.value)
        values = [lanes.of(store.value, at) for at in range(count)]
        kept, allocated = _registers(store.buffer.name, store.value)
        made = [tirx.BufferStore(kept, value, [tirx.const(at, "int32")]) for at, value in enumerate(values)]
        places = [lanes.of(index, at) for at in range(count)]
        if _is_boolean(store.value) or not isinstance(index, tirx.Ramp):
            parts = [tirx.BufferLoad(kept, [tirx.const(at, "int32")]) for at in range(count)]
            ends = [tirx.BufferStore(store.buffer, p, [*outer, i]) for p, i in zip(parts, places, strict=True)]
        else:
            ends = [tirx.BufferStore(store.buffer, tirx.BufferLoad(kept, [_all(count)]), store.indices)]
        return tirx.SeqStmt([*lanes.loads, allocated, *made, *ends])

    def _concerns(self, value: Any) -> bool:
        """Whether an expression has a vector in it that is to be taken apart, or was."""
        found: list[Any] = []
        visitors: list[Any] = [
            *((kind, lambda node: found.append(node) if _is_boolean(node) else None) for kind in _PAIRS),
            (tirx.Broadcast, lambda node: found.append(node) if _is_wide(node) or _is_boolean(node) else None),
            (ir.Call, lambda node: found.append(node) if _is_wide(node) or _is_boolean(node) else None),
            (tirx.BitwiseNot, lambda node: found.append(node) if _count(node) > 1 else None),
            (ir.TensorLoad, lambda node: found.append(node) if _count(node) > 1 and _is_boolean(node) else None),
            (ir.Var, lambda node: found.append(node) if node in self._known else None),
        ]
        structural_walk(value, visitors)
        return bool(found)


class _Lanes:
    """The lanes of a statement's expressions. `loads` are statements that come before it."""

    def __init__(self, known: dict[Any, list[Any]], value: Any) -> None:
        self.loads: list[Any] = []
        self._known = dict(known)
        self._loaded: list[tuple[Any, Any]] = []
        inside: list[Any] = []
        structural_walk(value, (tirx.Let, lambda let: inside.append(let.var)))
        self._inside = set(inside)
        self._branches = 0

    def of(self, value: Any, at: int) -> Any:
        """One lane of an expression; the expression itself if it is no vector."""
        if isinstance(value, tirx.Let):
            return self._let(value, at)
        if _count(value) == 1:
            return value
        if isinstance(value, tirx.Ramp):
            return value.base + value.stride * tirx.const(at, value.base.ty.dtype)
        if isinstance(value, tirx.Broadcast):
            return value.value
        if isinstance(value, ir.Var):
            return self._known[value][at] if value in self._known else tirx.Shuffle([value], [at])
        if isinstance(value, ir.TensorLoad):
            return self._load(value, at)
        if isinstance(value, tirx.Cast):
            return tirx.Cast(_one(value), self.of(value.value, at))
        if isinstance(value, tirx.Not | tirx.BitwiseNot):
            return type(value)(self.of(value.a, at))
        if isinstance(value, _PAIRS):
            return type(value)(self.of(value.a, at), self.of(value.b, at))
        if isinstance(value, tirx.Select):
            return tirx.Select(*(self.of(each, at) for each in (value.condition, value.true_value, value.false_value)))
        if isinstance(value, ir.Call):
            return self._call(value, at)
        return tirx.Shuffle([value], [at])

    def _let(self, let: Any, at: int) -> Any:
        value = self.of(let.value, at)
        variable = tirx.Var(let.var.name, value.ty)
        self._inside.add(variable)
        if (count := _count(let.var)) > 1:
            self._known[let.var] = [variable] * count
            return tirx.Let(variable, value, self.of(let.body, at))
        renamed = tvm_ffi.structural_map(let.body, (ir.Var, lambda v: variable if v.same_as(let.var) else v))
        return tirx.Let(variable, value, self.of(renamed, at))

    def _call(self, call: Any, at: int) -> Any:
        if not all(_count(each) in (1, _count(call)) for each in call.args) or all(_count(a) == 1 for a in call.args):
            return tirx.Shuffle([call], [at])
        branches = str(getattr(call.op, "name", "")) == _CHOICE
        self._branches += branches
        made = ir.Call(call.op, [self.of(each, at) for each in call.args], call.attrs, call.ty_args, ret_ty=_one(call))
        self._branches -= branches
        return made

    def _load(self, load: Any, at: int) -> Any:
        *outer, index = load.indices
        if _count(index) == 1:
            return tirx.Shuffle([load], [at])
        if self._has_vector(load, index):
            kept = next((kept for other, kept in self._loaded if tvm_ffi.structural_equal(other, load)), None)
            if kept is None:
                kept, allocated = _registers(load.source.name, load)
                self.loads += [allocated, tirx.BufferStore(kept, load, [_all(_count(load))])]
                self._loaded.append((load, kept))
            return tirx.BufferLoad(kept, [tirx.const(at, "int32")])
        return tirx.BufferLoad(load.source, [*outer, self.of(index, at)])

    def _has_vector(self, load: Any, index: Any) -> bool:
        """Whether it may be loaded as one vector before the statement."""
        used: list[Any] = []
        structural_walk(index, (ir.Var, lambda variable: used.append(variable) if variable in self._inside else None))
        side_by_side = isinstance(index, tirx.Ramp) and isinstance(index.stride, tirx.IntImm) and int(index.stride) == 1
        in_memory = str(load.source.scope()) != "local"
        return side_by_side and in_memory and not (used or self._branches or _is_boolean(load))


def _count(value: Any) -> int:
    """Lanes of an expression or variable."""
    return int(tvm.runtime.DataType(str(value.ty.dtype)).lanes) if hasattr(value.ty, "dtype") else 1


def _one(value: Any) -> str:
    """The type of one lane."""
    return str(value.ty.dtype).split("x")[0]


def _is_boolean(value: Any) -> bool:
    return _count(value) > 1 and _one(value) == "bool"


def _is_wide(value: Any) -> bool:
    return _count(value) > MOST_FLOATS and _one(value) == "float32"


def _registers(name: str, value: Any) -> tuple[Any, Any]:
    """Registers for the lanes of an expression, and the statement that allocates them."""
    buffer = tirx.decl_buffer((_count(value),), _one(value), f"{name}_lanes", scope="local")
    return buffer, tirx.AllocBuffer(buffer)


def _all(count: int) -> Any:
    return tirx.Ramp(tirx.const(0, "int32"), 1, count)
