"""One function that runs a whole model on a CPU: it calls the model's kernels in order, on memory that was there before.

TVM's virtual machine allocates every intermediate result in every run, makes a tensor of it, drops it, and looks each
argument up: a tenth of a microsecond for each instruction, of which there are five or six to a kernel. Where all shapes
are known and main is a straight line of kernels, none of that depends on the call. So the library gets, beside the virtual
machine's main,

    main_run(inputs, results, memory) -> 0, or 1 where an input is not what the model takes or a kernel failed: then the
                                         virtual machine tells what is wrong
    main_memory() -> (description, constants)

`memory` is what main_transform_params gave, then the constants, then pieces of one block of scratch memory. The description
is JSON: `pieces`, offset and size in bytes of each, as `memory_plan.py` placed them, `results`, shape and type of each, and
`in_tuple`, whether main returns a tuple. All memory is contiguous and begins at multiples of 64 bytes. Kernels trust their
arguments, of which they read the address alone, so a piece stands for every tensor that lies there, a reshape is nothing,
and a part of an intermediate result is one more piece. A result that no kernel writes, that is two results, or of which
parts are read as tensors of their own, is copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pitchpipe.errors import UnsupportedOperator
from pitchpipe.gpu.program import Buffer, Place
from pitchpipe.run_function import ALIGNMENT, MEMORY, RUN
from tuner.deploy.flow import Flow, Step, Tensor, View, read_main
from tuner.deploy.memory_plan import Lifetime, plan
from tuner.tvm_compat import SYMBOL_PREFIX, ir, relax, tirx, tvm

_DATA, _SHAPE, _AXES, _TYPE_CODE, _BITS, _LANES, _OFFSET, _DEVICE = 1, 2, 4, 5, 6, 7, 8, 10
"""Fields of DLPack's tensor as TVM counts them (TVMStructFieldKind)."""
_ANY_TYPE, _ANY_PADDING, _ANY_VALUE = 13, 14, 15
"""Fields of an argument or a result, TVMFFIAny."""
_CPU = 1
"""DLPack's kDLCPU."""
_NONE, _TENSOR = 0, 7
"""Types of arguments: nothing, and the address of DLPack's tensor (kTVMFFINone, kTVMFFIDLTensorPtr)."""
Copies = list[tuple[View, Tensor]]
"""(source, result)."""
Key = tuple[int, int]
"""What a kernel is given: a tensor, by id, and the offset into it in bytes."""


def with_run_function(module: Any) -> Any:
    """The module that `finish` made, with the two functions; as it is where the virtual machine is needed to run it."""
    try:
        flow = read_main(module)
    except UnsupportedOperator:
        return module
    steps = _without_reshapes(flow, module)
    if not flow.flat or not all(_has_address(view) for view in _views(flow, steps)):
        return module
    copies = _settle(flow, steps)
    memory = _Memory.of(flow, steps, copies)
    found = ir.IRModule(dict(module.functions.items()), attrs=module.attrs)
    found[MEMORY] = _told(flow, memory)
    found[RUN] = _function(flow, steps, copies, memory)
    return found


def _views(flow: Flow, steps: Sequence[Step]) -> list[View]:
    return [*flow.outputs, *(view for step in steps for view in step.arguments)]


def _has_address(view: View) -> bool:
    """Whether there is, or can be, a tensor that begins where the view does. Only scratch memory is divided here."""
    return view.offset == 0 or (view.tensor.buffer.place is Place.SCRATCH and view.offset % ALIGNMENT == 0)


def _without_reshapes(flow: Flow, module: Any) -> list[Step]:
    """The steps that compute something; what a reshape gives is what it was given, in the flow's results as well."""
    same: dict[int, View] = {}

    def seen(view: View) -> View:
        if (source := same.get(id(view.tensor))) is None:
            return view
        offset = source.offset + view.offset
        return View(tensor=source.tensor, offset=offset, dtype=view.dtype, shape=view.shape)

    steps = []
    for step in flow.run:
        arguments = tuple(seen(view) for view in step.arguments)
        if len(arguments) == 2 and relax.analysis.has_reshape_pattern(module[step.function]):
            same[id(arguments[1].tensor)] = arguments[0]
        else:
            steps.append(Step(function=step.function, arguments=arguments))
    flow.outputs = [seen(view) for view in flow.outputs]
    return steps


def _settle(flow: Flow, steps: Sequence[Step]) -> Copies:
    """Gives results memory of the caller's; the copies that this takes."""
    written = {id(view.tensor) for step in steps for view in step.arguments}
    divided = {id(view.tensor) for view in _views(flow, steps) if not view.is_whole}
    copies: Copies = []
    for at, view in enumerate(flow.outputs):
        result = Tensor(buffer=Buffer(place=Place.OUTPUT, dtype=view.dtype, shape=view.shape))
        if id(view.tensor) in written - divided and view.tensor.buffer.place is Place.SCRATCH:
            view.tensor.buffer = result.buffer
        else:
            copies.append((view, result))
            flow.outputs[at] = View(tensor=result, dtype=view.dtype, shape=view.shape)
    return copies


@dataclass(kw_only=True)
class _Memory:
    """What lies where, but for inputs and results."""

    constants: list[Any] = field(default_factory=list)
    pieces: list[tuple[int, int]]
    """Offset and size in bytes of each."""
    number: dict[Key, int] = field(default_factory=dict)
    """Among weights, constants and pieces."""

    @staticmethod
    def of(flow: Flow, steps: Sequence[Step], copies: Copies) -> _Memory:
        lifetimes: dict[int, Lifetime] = {}
        constants: dict[int, Tensor] = {}
        scratch: list[View] = []
        for at, view in _touched(steps, copies):
            tensor, key = view.tensor, id(view.tensor)
            if tensor.buffer.place is Place.CONSTANT:
                constants[key] = tensor
            elif tensor.buffer.place is Place.SCRATCH:
                first = lifetimes[key].first if key in lifetimes else at
                lifetimes[key] = Lifetime(size_bytes=tensor.buffer.size_bytes, first=first, last=at)
                scratch.append(view)
        starts = dict(zip(lifetimes, plan(list(lifetimes.values())).offsets, strict=True))
        sizes: dict[int, int] = {}
        for view in scratch:
            start = starts[id(view.tensor)] + view.offset
            sizes[start] = max(sizes.get(start, 1), view.size_bytes)
        found = _Memory(pieces=sorted(sizes.items()))
        for key in (*(id(view.tensor) for view in flow.weights), *constants):
            found.number.setdefault((key, 0), len(found.number))
        found.constants = [relax.const(tensor.value) for tensor in constants.values()]
        places = {start: len(found.number) + at for at, (start, _) in enumerate(found.pieces)}
        found.number |= {_key(view): places[starts[id(view.tensor)] + view.offset] for view in scratch}
        return found


def _touched(steps: Sequence[Step], copies: Copies) -> Iterator[tuple[int, View]]:
    """Each view that is read or written, with the number of the step; copies are made after the last one."""
    for at, step in enumerate(steps):
        for view in step.arguments:
            yield at, view
    for source, _ in copies:
        yield len(steps), source


def _key(view: View) -> Key:
    return id(view.tensor), view.offset


def _function(flow: Flow, steps: Sequence[Step], copies: Copies, memory: _Memory) -> Any:
    inputs, results = ([_handle(f"{name}{at}") for at in range(len(views))] for name, views in _named(flow))
    kept = [_handle(f"memory{at}") for at in range(len(memory.constants) + len(flow.weights) + len(memory.pieces))]
    place = {key: kept[number] for key, number in memory.number.items()}
    place |= {_key(view): handle for view, handle in zip(flow.inputs, inputs, strict=True)}
    place |= {_key(view): handle for view, handle in zip(flow.outputs, results, strict=True)}
    body = [statement for view, handle in zip(flow.inputs, inputs, strict=True) for statement in _checks(handle, view)]
    body += _calls(steps, place)
    for source, result in copies:
        addresses = (_field(place[key], _DATA, "handle") for key in ((id(result), 0), _key(source)))
        size = tirx.const(result.buffer.size_bytes, "int64")
        body.append(tirx.Evaluate(tirx.call_extern("handle", "memcpy", *addresses, size)))
    body.append(_answer(0))
    function = tirx.PrimFunc([*inputs, *results, *kept], tirx.SeqStmt(body), ir.PrimType("int64"))
    return function.with_attr("global_symbol", RUN)


def _calls(steps: Sequence[Step], place: Mapping[Key, Any]) -> Iterator[Any]:
    """Statements that call kernels as their C signature has it: (self, arguments, their count, result) -> 0 if all is well.

    One array of arguments serves all calls, and is written where it differs from the one before.
    """
    arguments, result = _handle("arguments"), _handle("result")
    count = max((len(step.arguments) for step in steps), default=1)
    yield tirx.Bind(arguments, tirx.tvm_stack_alloca("tvm_ffi_any", count))
    yield tirx.Bind(result, tirx.tvm_stack_alloca("tvm_ffi_any", 1))
    for array, at, kind in ((result, 0, _NONE), *((arguments, at, _TENSOR) for at in range(count))):
        yield _set(array, at, _ANY_TYPE, tirx.const(kind, "int32"))
        yield _set(array, at, _ANY_PADDING, tirx.const(0, "int32"))
    before: dict[int, Any] = {}
    for number, step in enumerate(steps):
        for at, view in enumerate(step.arguments):
            if before.get(at) is not (given := place[_key(view)]):
                before[at] = given
                yield _set(arguments, at, _ANY_VALUE, given)
        symbol, taken = SYMBOL_PREFIX + step.function, tirx.const(len(step.arguments), "int32")
        status = tirx.Var(f"status{number}", "int32")
        yield tirx.Bind(status, tirx.call_extern("int32", symbol, arguments, arguments, taken, result))
        yield _leave_unless(status, tirx.const(0, "int32"))


def _told(flow: Flow, memory: _Memory) -> Any:
    """Without `BlockBuilder.function`, which is for one thread of a process."""
    described = relax.Tuple([ir.StringImm(_described(flow, memory)), *memory.constants])
    function = relax.Function([], relax.BlockBuilder().normalize(relax.SeqExpr([], described)))
    return function.with_attr("global_symbol", MEMORY)


def _described(flow: Flow, memory: _Memory) -> str:
    results = [(view.shape, view.dtype) for view in flow.outputs]
    return json.dumps({"pieces": memory.pieces, "results": results, "in_tuple": flow.in_tuple})


def _named(flow: Flow) -> tuple[tuple[str, list[View]], ...]:
    return ("input", flow.inputs), ("result", flow.outputs)


def _checks(handle: Any, view: View) -> Iterator[Any]:
    """Statements that leave the function unless the tensor is of the input's shape and type, and the host's."""
    dtype = tvm.runtime.DataType(view.dtype)
    wanted = (
        (_DEVICE, "int32", _CPU),
        (_AXES, "int32", len(view.shape)),
        (_TYPE_CODE, "uint8", dtype.type_code),
        (_BITS, "uint8", dtype.bits),
        (_LANES, "uint16", dtype.lanes),
        (_OFFSET, "uint64", 0),
    )
    for which, kind, value in wanted:
        yield _leave_unless(_field(handle, which, kind), tirx.const(value, kind))
    if view.shape:
        shape = tirx.decl_buffer((len(view.shape),), "int64", "shape")
        yield tirx.DeclBuffer(shape, data=_field(handle, _SHAPE, "handle"))
        for axis, extent in enumerate(view.shape):
            yield _leave_unless(shape[axis], tirx.const(extent, "int64"))


def _leave_unless(found: Any, wanted: Any) -> Any:
    return tirx.IfThenElse(found != wanted, _answer(1), None)


def _set(array: Any, at: int, which: int, value: Any) -> Any:
    return tirx.Evaluate(tirx.tvm_struct_set(array, at, which, value))


def _answer(value: int) -> Any:
    return tirx.Return(tirx.const(value, "int64"))


def _field(handle: Any, which: int, kind: str) -> Any:
    return tirx.tvm_struct_get(handle, 0, which, kind)


def _handle(name: str) -> Any:
    return tirx.Var(name, ir.PointerType(ir.PrimType("void")))
