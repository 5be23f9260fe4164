"""StableHLO, as JAX exports it, to Relax. Runs in the child (child.py): the bytes are untrusted. Needs jaxlib.

A file is MLIR text (`jax.jit(f).lower(x).as_text()`, `Exported.mlir_module()`) or a portable artifact
(`Exported.mlir_module_serialized`). Functions are inlined where they are called, loops whose number of steps follows from
constants (a `lax.scan`) are unrolled, branches on constants taken. An operator has a method or a row in a
table of stablehlo_operators.py; one that has not, or that is used in a way that its method does not know, is refused by
name (ADR 0025 says why TVM's frontend is not used).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from pitchpipe.errors import InvalidModel, PitchpipeError, TooLarge, UnsupportedOperator, UnsupportedShape
from tuner.ingest import IngestLimits
from tuner.ingest.finalize import check_static
from tuner.ingest.lift import without_weights
from tuner.ingest.stablehlo_operators import Operators
from tuner.ingest.stablehlo_values import Spread, dtype_of
from tuner.tvm_compat import relax

BYTECODE = b"ML\xefR"
"""First bytes of MLIR's bytecode, which a portable artifact is."""
_MAX_DEPTH = 100
MAX_STEPS = 256
"""Of a loop that is unrolled: every step is as many nodes again, and compiling them takes time."""
CONTROL = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
"""Operators that are gone once it is known which way they go."""
STRUCTURE = CONTROL | frozenset(
    {
        *("func.call", "func.return", "stablehlo.return", "stablehlo.composite", "stablehlo.optimization_barrier"),
        "stablehlo.custom_call",
    }
)
"""Operators that the walk knows without a method."""


def read_stablehlo(data: bytes, limits: IngestLimits) -> tuple[bytes, bytes]:
    """The `relax` format of a StableHLO module and its weights; see tuner.ingest.ingest for the errors.

    Inputs are arg0, arg1, ...; constants of two or more different elements are weights.
    """
    with _context() as context:
        module = _parse(context, data)
        functions = {
            operation.sym_name.value: operation for operation in module.body.operations if _is_function(operation)
        }
        if "main" not in functions:
            raise InvalidModel("the module has no function main")
        return without_weights(*_Importer(functions, limits).convert(), lambda _: None, limits)


def missing_operators(data: bytes) -> list[tuple[str, str]]:
    """(operator, the function that it is in) of everything that has no method, once a function; raises InvalidModel."""
    known = Operators(relax.BlockBuilder())
    found: dict[tuple[str, str], None] = {}
    with _context() as context:
        for function in filter(_is_function, _parse(context, data).body.operations):
            for operation in _operations(function):
                name = operation.operation.name
                if name not in STRUCTURE and not known.knows(name):
                    found[name, function.sym_name.value] = None
    return list(found)


def _operations(function: Any) -> Iterator[Any]:
    """Those of a function, and of the loops and branches in it."""
    for block in (block for region in function.regions for block in region.blocks):
        for operation in block.operations:
            yield operation
            if operation.operation.name in CONTROL:
                yield from _operations(operation)


def _context() -> Any:
    context = mlir.Context()
    registry = mlir.DialectRegistry()
    import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    return context


def _parse(context: Any, data: bytes) -> Any:
    try:
        if data.startswith(BYTECODE):
            return stablehlo.deserialize_portable_artifact(context, data)
        return mlir.Module.parse(data, context)
    except Exception as error:  # MLIRError, ValueError, RuntimeError
        raise InvalidModel(f"the file is not StableHLO: {_reason(error)}") from error


def _is_function(operation: Any) -> bool:
    return bool(operation.operation.name == "func.func")


class _Importer:
    """Walks main, calls inlined, and emits a Relax function."""

    def __init__(self, functions: dict[str, Any], limits: IngestLimits) -> None:
        self.functions = functions
        self.limits = limits
        self.builder = relax.BlockBuilder()
        self.operators = Operators(self.builder)
        self.converted = 0

    def convert(self) -> tuple[Any, list[str]]:
        """The module and the names of what main takes."""
        block = self.functions["main"].regions[0].blocks[0]
        names = [f"arg{index}" for index in range(len(block.arguments))]
        inputs = [
            relax.Var(name, relax.TensorType(self._shape(name, argument.type), dtype_of(argument.type)))
            for name, argument in zip(names, block.arguments, strict=True)
        ]
        with self.builder.function("main", inputs):
            with self.builder.dataflow():
                found = [self.operators.whole(value) for value in self._block(block, inputs, {}, 0)]
                if not found:
                    raise InvalidModel("main returns nothing")
                # A tensor that is not computed here still needs a binding of its own.
                result = self.builder.emit_output(found[0] if len(found) == 1 else relax.Tuple(found))
            self.builder.emit_func_output(result)
        return self.builder.get(), names

    def _block(self, block: Any, arguments: Sequence[Any], outer: Mapping[Any, Any], depth: int) -> list[Any]:
        """What the block returns for these arguments; `outer` are the values of the blocks around it."""
        if depth > _MAX_DEPTH:
            raise InvalidModel("functions call each other without end, or too deeply")
        if len(arguments) != len(block.arguments):
            raise InvalidModel("a function is called with another number of arguments than it takes")
        values = {**outer, **dict(zip(block.arguments, arguments, strict=True))}
        for operation in block.operations:
            name = operation.operation.name
            operands = [values[operand] for operand in operation.operands]
            if name == "func.return":
                return [self.operators.whole(one) if isinstance(one, Spread) else one for one in operands]
            if name == "stablehlo.return":
                return operands
            self.converted += 1
            if self.converted > self.limits.nodes:
                raise TooLarge(f"the graph has more than {self.limits.nodes} nodes")
            for result in operation.results:
                self._shape(name, result.type)
            values |= zip(operation.results, self._results(name, operation, operands, values, depth), strict=True)
        raise InvalidModel("a function does not return")

    def _results(
        self, name: str, operation: Any, operands: list[Any], values: Mapping[Any, Any], depth: int
    ) -> list[Any]:
        if name == "func.call":
            return self._block(self._callee(operation.attributes["callee"].value), operands, {}, depth + 1)
        if name == "stablehlo.while":
            return self._loop(operation, operands, values, depth)
        if name in ("stablehlo.case", "stablehlo.if"):
            return self._branch(name, operation, operands, values, depth)
        if name == "stablehlo.optimization_barrier":
            return operands
        if name == "stablehlo.composite":
            name = operation.attributes["name"].value
            if not self.operators.knows(name):
                body = self._callee(operation.attributes["decomposition"].value)
                return self._block(body, operands, {}, depth + 1)
        if name == "stablehlo.custom_call":
            target = operation.attributes["call_target_name"].value
            raise UnsupportedOperator(f"operator stablehlo.custom_call of {target!r} is not supported")
        pair = name == "stablehlo.reduce" and len(operation.results) == 2
        if not pair and (not self.operators.knows(name) or len(operation.results) != 1):
            many = f" with {len(operation.results)} results" if self.operators.knows(name) else ""
            raise UnsupportedOperator(f"operator {name}{many} is not supported")
        try:
            if pair:
                return self.operators.extreme(operation, operands)
            return [self.operators.convert(name, operation, operands)]
        except PitchpipeError:
            raise
        except Exception as error:  # Relax raises InternalError, ValueError, TypeError for shapes that do not fit
            raise InvalidModel(f"operator {name} cannot be converted: {_reason(error)}") from error

    def _loop(self, operation: Any, state: list[Any], values: Mapping[Any, Any], depth: int) -> list[Any]:
        condition, body = (region.blocks[0] for region in operation.regions)
        for _ in range(MAX_STEPS + 1):
            (goes_on,) = self._block(condition, state, values, depth + 1)
            known = self.operators.number(goes_on)
            if known is None:
                raise UnsupportedOperator(
                    "operator stablehlo.while of a number of steps that data decide is not supported"
                )
            if not known:
                return state
            state = self._block(body, state, values, depth + 1)
        raise UnsupportedOperator(f"operator stablehlo.while of more than {MAX_STEPS} steps is not supported")

    def _branch(
        self, name: str, operation: Any, operands: list[Any], values: Mapping[Any, Any], depth: int
    ) -> list[Any]:
        known = self.operators.number(operands[0])
        if known is None:
            raise UnsupportedOperator(f"operator {name} on what data decide is not supported")
        branches = list(operation.regions)
        if name == "stablehlo.if":
            chosen = branches[0 if known else 1]
        else:
            chosen = branches[int(known) if 0 <= int(known) < len(branches) else -1]
        return self._block(chosen.blocks[0], [], values, depth + 1)

    def _callee(self, name: str) -> Any:
        if name not in self.functions:
            raise InvalidModel(f"the function {name!r} is called and not in the module")
        return self.functions[name].regions[0].blocks[0]

    def _shape(self, name: str, ty: Any) -> list[int]:
        """Raises UnsupportedShape unless it is that of a tensor of static shape and sane size."""
        if not isinstance(ty, mlir.RankedTensorType):
            raise UnsupportedShape(f"{name} is a {str(ty)[:100]}, not a tensor of known rank")
        check_static(name, list(ty.shape) if ty.has_static_shape else None, self.limits)
        return list(ty.shape)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
