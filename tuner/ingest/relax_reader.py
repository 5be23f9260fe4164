"""The `relax` format and TVMScript. Runs in the child (child.py): the bytes are untrusted.

A Relax module can call any function of the process that runs it, carry pragmas that hand the code generator foreign
code, and name functions that passes call. So the module is walked object by object, and every type, operator and
attribute must be on a list: Relax graphs of registered tensor operators, and tensor functions of plain loops,
branches and arithmetic. Anything else is refused by name.
"""

from __future__ import annotations

from typing import Any

from pitchpipe.errors import InvalidModel, TooLarge, UnsupportedOperator
from tuner.ingest import IngestedModel, IngestLimits, TensorSpec, parse_container
from tuner.ingest.finalize import check_shapes, check_static, finalize
from tuner.tvm_compat import IRModule, PrimFunc, ir, load_ir, relax, tirx, tvm, tvm_ffi

FUNCTION_ATTRIBUTES = frozenset(
    {
        "global_symbol",
        "layout_free_buffers",
        "num_input",
        "op_pattern",
        "params",
        "precision",
        "s_tir",
        "tf32",
        "tirx.noalias",
    }
)
"""Attributes that a function may have. Left out above all: Codegen and Composite, which name foreign generators."""

BLOCK_ANNOTATIONS = frozenset({"schedule_rule"})
"""Annotations that TVM's own operators put on blocks; their values name rules of MetaSchedule."""

RELAX_OPERATORS = frozenset({"relax.call_tir"})
REFUSED_RELAX_OPERATORS = (
    *("relax.call_", "relax.invoke_", "relax.run_", "relax.builtin", "relax.vm", "relax.memory", "relax.print"),
    *("relax.assert", "relax.inspect", "relax.dist", "relax.ccl", "relax.hint", "relax.to_vdevice"),
    *("relax.alloc", "relax.null", "relax.grad", "relax.tensor_to_shape", "relax.multinomial", "relax.random"),
)
"""Beginnings of the Relax operators that are no arithmetic on tensors: calls, storage, devices, effects."""

TENSOR_INTRINSICS = frozenset(
    f"{space}.{name}"
    for space in ("prim", "tirx")
    for name in (
        *("abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clz", "copysign", "cos", "cosh"),
        *("erf", "exp", "exp10", "exp2", "fabs", "floor", "fmod", "hypot", "if_then_else", "infinity", "isfinite"),
        *("isinf", "isnan", "ldexp", "likely", "log", "log10", "log1p", "log2", "max_value", "min_value", "nearbyint"),
        *("nextafter", "popcount", "pow", "reinterpret", "round", "rsqrt", "shift_left", "shift_right", "sigmoid"),
        *("sin", "sinh", "sqrt", "tan", "tanh", "trunc", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"),
    )
)
"""Pure arithmetic that a tensor function may call."""

TYPES = frozenset(
    {
        *("ir.Call", "ir.DictAttrs", "ir.FloatImm", "ir.GenericConst", "ir.GlobalVar", "ir.IntImm", "ir.Op"),
        *("ir.PrimType", "ir.Range", "ir.SourceMap", "ir.StringImm", "ir.StringType", "ir.TensorLoad"),
        *("ir.TensorRegion", "ir.Tuple", "ir.TupleGetItem", "ir.TupleType", "ir.Type", "ir.Var"),
        *("relax.AnyType", "relax.FuncType", "relax.ObjectType", "relax.ShapeType", "relax.TensorType"),
        *("relax.expr.BindingBlock", "relax.expr.DataTypeImm", "relax.expr.DataflowBlock", "relax.expr.DataflowVar"),
        *("relax.expr.Function", "relax.expr.SeqExpr", "relax.expr.ShapeExpr", "relax.expr.VarBinding"),
        *("s_tir.SBlock", "s_tir.SBlockRealize", "tirx.BufferRegionType", "tirx.BufferStore", "tirx.BufferType"),
        *("tirx.Axis", "tirx.Bind", "tirx.For", "tirx.IfThenElse", "tirx.Iter", "tirx.IterVar", "tirx.PrimFunc"),
        *("tirx.SeqStmt", "tirx.TileLayout"),
    }
)
TYPE_PREFIXES = ("prim.", "relax.attrs.")
"""Integer and floating-point expressions, and the attributes of registered operators."""

_MAX_DEPTH = 150


def read_relax(data: bytes, limits: IngestLimits) -> IngestedModel:
    """The model of a `relax` file; see tuner.ingest.ingest for the errors."""
    given = parse_container(data)
    return judge_model(load_ir(given.ir), given.inputs, given.params, limits)


def read_tvmscript(data: bytes, limits: IngestLimits) -> IngestedModel:
    """The model of TVMScript text: a module with a function main, `num_input` saying how many arguments are inputs.

    Runs the text, so the caller has checked that it is trusted.
    """
    try:
        module = tvm.script.from_source(data.decode())
    except Exception as error:  # the parser raises whatever the text does
        raise InvalidModel(f"the TVMScript cannot be parsed: {str(error).strip()[-300:]}") from error
    if not isinstance(module, IRModule) or "main" not in {variable.name_hint for variable in module.functions}:
        raise InvalidModel("the TVMScript holds no module with a function main")
    main = module["main"]
    if not isinstance(main, relax.Function):
        raise InvalidModel("main is not a Relax function")
    num_input = int((main.attrs or {}).get("num_input", len(main.params)))
    for variable in main.params:
        check_shapes(variable.name, variable.ty, limits)
    specs = [_spec(variable) for variable in main.params]
    return judge_model(module, tuple(specs[:num_input]), tuple(specs[num_input:]), limits)


def judge_tensor_function(module: Any, limits: IngestLimits) -> None:
    """Raises InvalidModel unless the module is one function of plain loops and arithmetic over tensors of static shape.

    The same rules as for the tensor functions of a model.
    """
    names = {variable.name_hint for variable in module.functions}
    _Judge(names, limits).walk(module)
    for function in module.functions.values():
        if not isinstance(function, PrimFunc):
            raise InvalidModel(f"a workload is a tensor function, not a {_type_key(function)}")
        for variable in function.params:
            shape = getattr(variable.ty, "shape", None)
            if shape is None:
                raise InvalidModel(f"a workload takes tensors; {variable.name!r} is a {_type_key(variable.ty)}")
            static = all(isinstance(extent, (int, tirx.IntImm)) for extent in shape)
            check_static(variable.name, [int(extent) for extent in shape] if static else None, limits)


def _spec(variable: Any) -> TensorSpec:
    if not isinstance(variable.ty, relax.TensorType):
        raise InvalidModel(f"main takes {variable.name!r}, which is not a tensor")
    shape = tuple(int(extent) for extent in variable.ty.shape.values)
    return TensorSpec(name=variable.name, shape=shape, dtype=str(variable.ty.dtype))


def judge_model(
    module: Any, inputs: tuple[TensorSpec, ...], params: tuple[TensorSpec, ...], limits: IngestLimits
) -> IngestedModel:
    """The model of a module whose main takes `inputs` and `params`; raises InvalidModel or UnsupportedOperator."""
    functions = {variable.name_hint: function for variable, function in module.functions.items()}
    for name, function in functions.items():
        if not isinstance(function, PrimFunc) and (name != "main" or not isinstance(function, relax.Function)):
            raise InvalidModel(
                f"function {name!r} is a {_type_key(function)}: only a Relax function main and tensor functions may be"
            )
    if "main" not in functions:
        raise InvalidModel("the module has no function main")
    _Judge(set(functions), limits).walk(module)
    try:
        relax.analysis.well_formed(module)
    except Exception as error:  # TVM raises InternalError or ValueError, whichever check it was
        raise InvalidModel(f"the module is not well-formed: {str(error).strip()[-300:]}") from error
    _check_bindings(functions["main"], limits)
    return finalize(module, list(functions["main"].params), [*inputs, *params], len(inputs), limits)


def _check_bindings(main: Any, limits: IngestLimits) -> None:
    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            check_shapes(expr.name, expr.ty, limits)

    relax.analysis.post_order_visit(main, visit)


def _type_key(value: Any) -> str:
    return str(type(value).__tvm_ffi_type_info__.type_key)


class _Judge:
    """One walk over everything that a module holds; raises InvalidModel or UnsupportedOperator at the first offence."""

    def __init__(self, functions: set[str], limits: IngestLimits) -> None:
        self.functions = functions
        self.limits = limits
        self.seen: set[int] = set()
        self.keep_alive: list[Any] = []

    def walk(self, value: Any, depth: int = 0) -> None:
        if value is None or isinstance(value, (bool, int, float, str, tvm_ffi.dtype, tvm_ffi.Tensor)):
            return
        if depth > _MAX_DEPTH:
            raise InvalidModel("the module nests too deeply")
        if isinstance(value, (list, tuple, tvm_ffi.Array)):
            for item in value:
                self.walk(item, depth + 1)
        elif isinstance(value, (dict, tvm_ffi.Map)):
            for key, item in value.items():
                self.walk(key, depth + 1)
                self.walk(item, depth + 1)
        else:
            self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        info = getattr(type(value), "__tvm_ffi_type_info__", None)
        if info is None:
            raise InvalidModel(f"a module cannot hold a {type(value).__name__}")
        key = info.type_key
        handle = value.__chandle__()
        if handle in self.seen:
            return
        self.seen.add(handle)
        self.keep_alive.append(value)
        if len(self.seen) > 200 * self.limits.nodes:
            raise TooLarge(f"the module has more than {200 * self.limits.nodes} objects")
        if key == "ir.IRModule":
            self._attributes(value.attrs, depth)
            if value.global_infos:
                raise InvalidModel("a module cannot carry global_infos (virtual devices)")
            for _, function in value.functions.items():
                self.walk(function, depth + 1)
            return
        if key not in TYPES and not key.startswith(TYPE_PREFIXES):
            raise InvalidModel(f"a model cannot hold a {key}")
        check = _CHECKS.get(key)
        if check is not None:
            check(self, value, depth)
        if key in ("ir.Op", "ir.DictAttrs"):
            return
        while info is not None:
            for field in info.fields or ():
                if field.name != "span":
                    self.walk(field.getter(value), depth + 1)
            info = info.parent_type_info

    def _attributes(self, attributes: Any, depth: int) -> None:
        for name, item in (attributes or {}).items():
            if name not in FUNCTION_ATTRIBUTES:
                raise InvalidModel(f"the attribute {name!r} is not allowed")
            self.walk(item, depth + 1)

    def _operator(self, operator: Any, _depth: int) -> None:
        name = str(operator.name)
        if name.startswith("relax."):
            allowed = name in RELAX_OPERATORS or not name.startswith(REFUSED_RELAX_OPERATORS)
        else:
            allowed = name in TENSOR_INTRINSICS
        if not allowed:
            raise UnsupportedOperator(f"operator {name} is not allowed in a model")

    def _call(self, call: Any, _depth: int) -> None:
        if not isinstance(call.op, ir.Op):
            raise InvalidModel(
                f"a call of a {_type_key(call.op)} is not allowed: only registered operators may be called"
            )

    def _function_name(self, variable: Any, _depth: int) -> None:
        if variable.name_hint not in self.functions:
            raise InvalidModel(f"the function {variable.name_hint!r} is called and not in the module")

    def _loop(self, loop: Any, _depth: int) -> None:
        if loop.annotations or loop.thread_binding is not None or int(loop.kind) != 0:
            raise InvalidModel("a tensor function may have serial loops without annotations only")

    def _block(self, block: Any, _depth: int) -> None:
        for name, value in block.annotations.items():
            known = name in BLOCK_ANNOTATIONS and isinstance(value, (str, ir.StringImm))
            text = str(getattr(value, "value", value))
            if not known or not (text == "None" or text.startswith("meta_schedule.")):
                raise InvalidModel(f"the annotation {str(name)!r} on a block is not allowed")

    def _axis(self, axis: Any, _depth: int) -> None:
        if str(axis.name) != "m":
            raise InvalidModel(f"a buffer along {str(axis.name)!r} is not allowed: buffers lie in memory")

    def _iterator(self, variable: Any, _depth: int) -> None:
        if variable.thread_tag:
            raise InvalidModel(f"the thread {variable.thread_tag!r} is not allowed: models are not scheduled")


_CHECKS = {
    "ir.Op": _Judge._operator,
    "ir.Call": _Judge._call,
    "ir.DictAttrs": _Judge._attributes,
    "ir.GlobalVar": _Judge._function_name,
    "tirx.Axis": _Judge._axis,
    "tirx.For": _Judge._loop,
    "s_tir.SBlock": _Judge._block,
    "tirx.IterVar": _Judge._iterator,
}
