"""Long values of variables in buffers of one element, for code generators of CPUs.

Where an expression binds a variable (`Let`), TVM 0.27's code generator for LLVM simplifies the value with the values of
other variables put in, and remembers the outcome: of a chain of variables, each used twice in the value of the next, the
last one's has 2^n copies of the first. Six tanh, one of another, took 27 s. What is loaded from a buffer is not put in. So a
variable whose value grows beyond a limit becomes a buffer on the stack, which LLVM turns into a register.
"""

from __future__ import annotations

from typing import Any

from tuner.tvm_compat import ir, tirx, tvm_ffi

LONGEST = 64
"""Variables in a value, those in the values of these put in, beyond which it goes through a buffer. No single formula
of fastmath.py goes beyond it; a sine does (sines.py)."""
_CHOICE = "prim.if_then_else"


def _function(function: Any, _mod: Any, _context: Any) -> Any:
    body = tvm_ffi.structural_map(function.body, [(tirx.BufferStore, _stored)])
    return function if body.same_as(function.body) else function.with_body(body)


LONG_VALUES_IN_BUFFERS = tirx.transform.prim_func_pass(_function, opt_level=0, name="pitchpipe.LongValuesInBuffers")
"""The pass. After TVM has vectorised and unrolled loops."""


def _stored(store: Any) -> Any:
    if not (long := _long(store.value)):
        return store
    statements = _Statements(long, {})
    value = statements.expression(store.value)
    return tirx.SeqStmt([*statements.made, tirx.BufferStore(store.buffer, value, store.indices)])


def _long(value: Any) -> set[Any]:
    """Of the variables that are bound in an expression those that are to become buffers."""
    lengths: dict[Any, int] = {}
    found: set[Any] = set()
    length = 0

    def bound(let: Any, visitor: Any) -> None:
        nonlocal length
        before, length = length, 1
        visitor.visit(let.value)
        if length > LONGEST and _has_buffers(let.var.ty):
            found.add(let.var)
            length = 1
        lengths[let.var], length = length, before
        visitor.visit(let.body)

    def used(variable: Any, _visitor: Any) -> None:
        nonlocal length
        length += lengths.get(variable, 0)

    tvm_ffi.structural_visit(value, [(tirx.Let, bound), (ir.Var, used)])
    return found


def _has_buffers(ty: Any) -> bool:
    return str(ty.dtype).startswith(("float", "int", "uint"))


class _Statements:
    """What an expression binds, as statements before it; those within a branch stay within it."""

    def __init__(self, long: set[Any], values: dict[Any, Any]) -> None:
        self.made: list[Any] = []
        self._long = long
        self._values = values

    def expression(self, value: Any) -> Any:
        """The expression without what it binds, which is added to the statements."""
        visitors = [(tirx.Let, self._bound), (ir.Var, self._used), (ir.Call, self._called)]
        return tvm_ffi.structural_mutate(value, visitors)

    def _used(self, variable: Any, _mutator: Any) -> Any:
        return self._values.get(variable, variable)

    def _bound(self, let: Any, mutator: Any) -> Any:
        value = mutator.mutate(let.value)
        if let.var in self._long:
            buffer = self._buffer(let.var.name, value)
            self.made.append(tirx.BufferStore(buffer, value, [_ZERO]))
            self._values[let.var] = tirx.BufferLoad(buffer, [_ZERO])
        else:
            variable = tirx.Var(let.var.name, let.var.ty)
            self.made.append(tirx.Bind(variable, value))
            self._values[let.var] = variable
        return mutator.mutate(let.body)

    def _called(self, call: Any, mutator: Any) -> Any:
        if getattr(call.op, "name", "") != _CHOICE:
            return mutator.default_mutate(call)
        condition = mutator.mutate(call.args[0])
        branches = [_Statements(self._long, dict(self._values)) for _ in range(2)]
        values = [branch.expression(value) for branch, value in zip(branches, call.args[1:], strict=True)]
        if not any(branch.made for branch in branches):
            return tirx.if_then_else(condition, *values)
        buffer = self._buffer("chosen", values[0])
        ends = [tirx.BufferStore(buffer, value, [_ZERO]) for value in values]
        bodies = [[*branch.made, end] for branch, end in zip(branches, ends, strict=True)]
        self.made.append(tirx.IfThenElse(condition, *(tirx.SeqStmt(b) if len(b) > 1 else b[0] for b in bodies)))
        return tirx.BufferLoad(buffer, [_ZERO])

    def _buffer(self, name: str, value: Any) -> Any:
        buffer = tirx.decl_buffer((1,), str(value.ty.dtype), name)
        self.made.append(tirx.AllocBuffer(buffer))
        return buffer


_ZERO = tirx.const(0, "int32")
