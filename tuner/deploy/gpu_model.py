"""From a finished module to a GPU program: every kernel compiled once, all memory planned, nothing left to the host.

Needs no GPU. What a run computes on the way lies in one block of scratch memory (`memory_plan.py`); what binding weights
makes of them stays on the device. Results are memory of the caller's: the last kernel writes where the caller wants them. A
result that is an argument, a weight, a constant, or the same as another result is copied by a kernel, so that no result
shares memory with anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any

from pitchpipe.errors import PitchpipeError, UnsupportedOperator
from pitchpipe.gpu.program import (
    CALLER_ALIGNMENT,
    Buffer,
    InvalidProgram,
    Kernel,
    Launch,
    Place,
    Pointer,
    Program,
    Scalar,
    TensorMap,
)
from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.deploy.flow import Flow, Step, Tensor, View, read_flow
from tuner.deploy.joining import join_calls
from tuner.deploy.memory_plan import Lifetime, plan
from tuner.graph.prepare import MAIN
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled
from tuner.measure.gpu_code import lower
from tuner.measure.gpu_lowered import KernelCall, Lowered
from tuner.templates.kernels import template_of
from tuner.tvm_compat import IRModule, PrimFunc, te, to_tvm_target, tvm_ffi

_SYMBOL_LENGTH = 120
"""Of what kernels' names begin with. A function that many operators were fused into has a name of any length, and a program
takes none beyond 512 characters."""
_lowering = threading.Lock()
"""TVM's code generator is told by the environment not to compile at once (tuner/measure/gpu_code.py)."""


class FunctionRefused(UnsupportedOperator):
    """A tensor function that cannot be compiled, or that needs the host. `function` is its name."""

    def __init__(self, detail: str = "", *, function: str = "", retry_after_secs: float | None = None) -> None:
        super().__init__(detail, retry_after_secs=retry_after_secs)
        self.function = function


def compile_gpu_model(module: Any, target: Target) -> Program:
    """Compiles a module that `finish` made for a CUDA target.

    Raises UnsupportedOperator for what a list of launches cannot express, such as work that is left to the host, and
    FunctionRefused for a function of the module that cannot be compiled.
    """
    flow, functions = settled_flow(module, target)
    run, apart = flow.run, dict(functions)
    join_calls(flow, functions)
    try:
        return assemble_checked(flow, *compile_functions(functions, target))
    except FunctionRefused as error:
        if error.function in apart:
            raise
        flow.run = run  # It was a joined function that was refused.
        return assemble_checked(flow, *compile_functions(apart, target))


def settled_flow(module: Any, target: Target) -> tuple[Flow, dict[str, Any]]:
    """The calls of a finished module with a place for every tensor, and the tensor functions that they call, by name.

    Raises UnsupportedOperator for what is no call of a tensor function.
    """
    flow = read_flow(module)
    functions = {v.name_hint: function for v, function in module.functions.items() if isinstance(function, PrimFunc)}
    with _lowering:
        settle(flow, lambda view: _copy(view, functions, target))
    used = dict.fromkeys(step.function for step in (*flow.prepare, *flow.run))
    return flow, {name: functions[name] for name in used}


def compile_functions(functions: Mapping[str, Any], target: Target) -> tuple[dict[str, Lowered], dict[str, bytes]]:
    """Scheduled functions taken apart, by name, and machine code by source. Raises FunctionRefused."""
    with _lowering:
        lowered = _lowered(functions, target)
    return lowered, _compiled(lowered, target)


def assemble_checked(flow: Flow, lowered: Mapping[str, Lowered], codes: Mapping[str, bytes]) -> Program:
    """`assemble`, which raises UnsupportedOperator for launches that no device takes."""
    try:
        return assemble(flow, lowered, codes)
    except InvalidProgram as error:
        raise UnsupportedOperator(f"a kernel cannot be launched on any device: {error}") from error


def settle(flow: Flow, copying: Callable[[View], str]) -> None:
    """Decides where every tensor lies that is not scratch memory, and adds copies of results that would share memory.

    copying: the name of a function that copies as many elements of such a type.
    """
    read = {id(view.tensor): view.tensor for step in flow.run for view in step.arguments}
    made = {id(view.tensor): view.tensor for step in flow.prepare for view in step.arguments}
    for key in made.keys() & {*read, *(id(view.tensor) for view in flow.outputs)}:
        if made[key].buffer.place is Place.SCRATCH:
            made[key].buffer = replace(made[key].buffer, place=Place.RESIDENT)
    for at, view in enumerate(flow.outputs):
        result = Buffer(place=Place.OUTPUT, dtype=view.dtype, shape=view.shape)
        if id(view.tensor) in read and view.tensor.buffer.place is Place.SCRATCH and view.is_whole:
            view.tensor.buffer = result
            continue
        flow.outputs[at] = View(tensor=Tensor(buffer=result), dtype=view.dtype, shape=view.shape)
        if result.size_bytes:
            flow.run.append(Step(function=copying(view), arguments=(view, flow.outputs[at])))


def _copy(view: View, functions: dict[str, Any], target: Target) -> str:
    """The name of a function that copies as many elements of the type; added where it is not there."""
    count = prod(view.shape)
    name = f"copy_{count}_{view.dtype}"
    if name not in functions:
        source = te.placeholder((count,), view.dtype, name="source")
        copied = te.compute((count,), lambda i: source[i], name="copied")
        module = IRModule({MAIN: te.create_prim_func([source, copied])})
        functions[name] = kind_of(target).default_schedule(module, target)[MAIN]
    return name


def _lowered(functions: Mapping[str, Any], target: Target) -> dict[str, Lowered]:
    """Every function taken apart; equal ones share what was made of the first. Raises FunctionRefused."""
    tvm_target = to_tvm_target(target)
    alike: dict[int, list[tuple[Any, str]]] = {}
    first_of: dict[str, str] = {}
    plain_of: dict[str, Any] = {}
    for name, function in functions.items():
        plain = function.without_attr("global_symbol")
        others = alike.setdefault(tvm_ffi.structural_hash(plain), [])
        first_of[name] = next((other for known, other in others if tvm_ffi.structural_equal(known, plain)), name)
        if first_of[name] == name:
            others.append((plain, name))
            plain_of[name] = plain
    place_of = {name: place for place, name in enumerate(plain_of)}

    def one(name: str) -> Lowered:
        symbol = name if len(name) <= _SYMBOL_LENGTH else f"{name[:_SYMBOL_LENGTH]}_{place_of[name]}"
        try:
            return lower(IRModule({symbol: plain_of[name].with_attr("global_symbol", symbol)}), tvm_target, symbol)
        except Exception as error:  # NotCompiled, or whatever TVM's C++ side met
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
            raise FunctionRefused(f"{name} cannot be run by a GPU alone: {reason}", function=name) from error

    with ThreadPoolExecutor(usable_cores()) as threads:
        # What a template computes is compiled at once, outside of the interpreter's lock for most of the time.
        begun = {name: threads.submit(one, name) for name, plain in plain_of.items() if template_of(plain) is not None}
        own = {name: one(name) for name in plain_of if name not in begun}
        found = {**own, **{name: future.result() for name, future in begun.items()}}
    return {name: found[first] for name, first in first_of.items()}


def _compiled(lowered: Mapping[str, Lowered], target: Target) -> dict[str, bytes]:
    """Machine code by source, on all cores. Raises FunctionRefused, and PitchpipeError where there is no compiler."""
    assert target.arch is not None
    made = {one.source: one.code for one in lowered.values()}
    names = {one.source: name for name, one in lowered.items() if not one.code}
    try:
        compiler = DeviceCompiler(target.arch)
    except NotCompiled as error:
        raise PitchpipeError(str(error)) from error

    def compiled(source: str) -> bytes:
        try:
            return compiler.compile(source)
        except NotCompiled as error:
            raise FunctionRefused(f"the compiler refused {names[source]}: {error}", function=names[source]) from error

    with ThreadPoolExecutor(usable_cores()) as threads:
        return made | dict(zip(names, threads.map(compiled, names), strict=True))


def assemble(flow: Flow, lowered: Mapping[str, Lowered], codes: Mapping[str, bytes]) -> Program:
    """The program of settled calls. lowered: by function. codes: machine code by source. Raises InvalidProgram."""
    return _Assembly(flow, lowered, codes).program()


class _Assembly:
    """Puts a program together: buffers in the order of places, scratch memory by the plan."""

    def __init__(self, flow: Flow, lowered: Mapping[str, Lowered], codes: Mapping[str, bytes]) -> None:
        self._flow, self._lowered, self._codes = flow, lowered, codes
        self._sources = list(codes)
        self._kernels: dict[tuple[int, str], int] = {}
        self._buffers: list[Buffer] = []
        self._index: dict[int, int] = {}
        self._constants: list[bytes] = []

    def program(self) -> Program:
        flow = self._flow
        calls = [list(self._calls(steps)) for steps in (flow.prepare, flow.run)]
        for view in (*flow.inputs, *flow.outputs, *flow.weights):
            self._add(view.tensor)
        touched = [view.tensor for _, arguments in calls[0] + calls[1] for view, _ in arguments if view is not None]
        for place in (Place.RESIDENT, Place.CONSTANT):
            for tensor in touched:
                if tensor.buffer.place is place:
                    self._add(tensor)
        prepare, run = (self._launches(of) for of in calls)
        return Program(
            codes=tuple(self._codes.values()),
            kernels=tuple(Kernel(code=code, name=name) for code, name in self._kernels),
            buffers=tuple(self._buffers),
            prepare=prepare,
            run=run,
            constants=tuple(self._constants),
            in_tuple=flow.in_tuple,
        )

    def _add(self, tensor: Tensor) -> None:
        if id(tensor) not in self._index:
            self._index[id(tensor)] = len(self._buffers)
            self._buffers.append(tensor.buffer)
            if tensor.buffer.place is Place.CONSTANT:
                self._constants.append(tensor.data)

    def _calls(self, steps: Sequence[Step]) -> Iterator[tuple[tuple[int, KernelCall], list[_Argument]]]:
        """(code, call) of every kernel of the steps, in order, and its arguments; each step has workspaces of its own."""
        for step in steps:
            lowered = self._lowered[step.function]
            code = self._sources.index(lowered.source)
            tensors = [*step.arguments, *(_workspace(size) for size in lowered.workspaces)]
            for call in lowered.calls:
                yield (code, call), [_argument(one, tensors) for one in call.arguments]

    def _launches(self, calls: Sequence[tuple[tuple[int, KernelCall], list[_Argument]]]) -> tuple[Launch, ...]:
        """The launches of a list of calls, whose intermediate results get a scratch buffer of their own."""
        lifetimes: dict[int, Lifetime] = {}
        for at, (_, arguments) in enumerate(calls):
            for one in (view for view, _ in arguments if view is not None):
                if one.tensor.buffer.place is Place.SCRATCH:
                    size = one.tensor.buffer.size_bytes
                    first = lifetimes[id(one.tensor)].first if id(one.tensor) in lifetimes else at
                    lifetimes[id(one.tensor)] = Lifetime(size_bytes=size, first=first, last=at)
        planned = plan(list(lifetimes.values()))
        offsets, scratch = dict(zip(lifetimes, planned.offsets, strict=True)), len(self._buffers)
        if lifetimes:
            self._buffers.append(Buffer(place=Place.SCRATCH, dtype="uint8", shape=(planned.size_bytes,)))

        def placed(argument: _Argument) -> Pointer | Scalar | TensorMap:
            match argument:
                case None, bytes() as data:
                    return Scalar(data=data)
                case View() as view, None:
                    return pointer(view)
                case View() as view, TensorMap() as described:
                    return replace(described, base=pointer(view))
            raise AssertionError(argument)

        def pointer(view: View) -> Pointer:
            if view.offset % CALLER_ALIGNMENT:
                raise UnsupportedOperator(f"a part of a tensor begins at byte {view.offset}, where no kernel may")
            if id(view.tensor) in offsets:
                return Pointer(buffer=scratch, offset=offsets[id(view.tensor)] + view.offset)
            return Pointer(buffer=self._index[id(view.tensor)], offset=view.offset)

        return tuple(
            Launch(
                kernel=self._kernels.setdefault((code, call.kernel), len(self._kernels)),
                arguments=tuple(placed(one) for one in arguments),
                grid=call.grid,
                block=call.block,
                shared_bytes=call.shared_bytes,
                cluster=call.cluster,
                programmatic=call.programmatic and at > 0,  # Before the first one may be a copy, which is no kernel.
            )
            for at, ((code, call), arguments) in enumerate(calls)
        )


_Argument = tuple[View | None, bytes | TensorMap | None]
"""Of a launch: what it points to, or a scalar's bytes, or what it points to and how that is described."""


def _argument(one: int | bytes | TensorMap, tensors: Sequence[View]) -> _Argument:
    match one:
        case int():
            return tensors[one], None
        case bytes():
            return None, one
        case TensorMap():
            return tensors[one.base.buffer], one


def _workspace(size_bytes: int) -> View:
    tensor = Tensor(buffer=Buffer(place=Place.SCRATCH, dtype="uint8", shape=(size_bytes,)))
    return View(tensor=tensor, dtype="uint8", shape=(size_bytes,))
