"""From a scheduled module to a GPU program that is plain data: no GPU, no driver, no host code.

A program (`pitchpipe/gpu/program.py`) is the machine code of the kernels (a cubin) and the list of their launches. The host
function that TVM would generate around them is never compiled: with static shapes it launches kernels one after another on
buffers that are its parameters or its own workspaces, and the list of launches is extracted from the lowered module. So one
process can compile while another, which holds the GPU, loads and runs programs, and no code of a candidate runs on the host.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tuner.schedule.reducers  # noqa: F401  # so that TVM lowers them between threads
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program, Scalar, TensorMap
from pitchpipe.target_kind import kind_named
from tuner.lowering.atomics import with_atomics
from tuner.lowering.bindings import without_vector_bindings
from tuner.lowering.device_extrema import KEEP_NAN, begin_with_infinities, defined
from tuner.lowering.early_launch import beginning_early, launches_early
from tuner.lowering.fastmath import expand_powers
from tuner.lowering.lane_by_lane import LANE_BY_LANE
from tuner.lowering.lane_conditions import free_of_lanes
from tuner.lowering.named_operands import NAMED_OPERANDS
from tuner.lowering.special_constants import KNOWN_CONSTANTS
from tuner.measure.build import parameters
from tuner.measure.check import numpy_dtype, size_bytes
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled
from tuner.measure.gpu_alignment import misaligned, without_type
from tuner.measure.gpu_lowered import KernelCall, Lowered, from_template
from tuner.measure.properties import WorkloadProperties
from tuner.schedule.tensor_type import TensorType
from tuner.templates.kernels import template_of
from tuner.tvm_compat import IRModule, codegen_build, ir, structural_walk, sym, tirx, tvm, tvm_ffi

_AXES = {f"{kind}Idx.{axis}": (kind, i) for kind in ("block", "thread") for i, axis in enumerate("xyz")}
_GENERATING = threading.Lock()
_SHARED = "tirx.use_dyn_shared_memory"
_STATIC_BYTES = 48 << 10
"""Of shared memory of a block, where a target does not say how many there are."""
_MOST_CALLS = 1000
"""Launches of one tensor function, at most."""


def compile_program(mod: Any, target: Any, properties: WorkloadProperties, compiler: DeviceCompiler) -> Program:
    """Lowers a scheduled module for a CUDA target and compiles its kernels.

    properties: of the workload, whose parameters the scheduled function must have too. They are the program's first
    buffers. Raises NotCompiled, or whatever TVM's lowering raises.
    """
    check_parameters(mod, properties.params)
    lowered = lower(mod, target)
    names = tuple(dict.fromkeys(call.kernel for call in lowered.calls))
    places = [Place.OUTPUT if at in properties.outputs else Place.INPUT for at in range(len(properties.params))]
    return Program(
        codes=(lowered.code or compiler.compile(lowered.source),),
        kernels=tuple(Kernel(code=0, name=name) for name in names),
        buffers=(
            *(
                Buffer(place=place, dtype=found.dtype, shape=found.shape)
                for place, found in zip(places, properties.params, strict=True)
            ),
            *(Buffer(place=Place.SCRATCH, dtype="uint8", shape=(size,)) for size in lowered.workspaces),
        ),
        run=tuple(
            Launch(
                kernel=names.index(call.kernel),
                arguments=tuple(_argument(one) for one in call.arguments),
                grid=call.grid,
                block=call.block,
                shared_bytes=call.shared_bytes,
                programmatic=call.programmatic,
                cluster=call.cluster,
            )
            for call in lowered.calls
        ),
    )


def _argument(one: int | bytes | TensorMap) -> Pointer | Scalar | TensorMap:
    match one:
        case int():
            return Pointer(buffer=one)
        case bytes():
            return Scalar(data=one)
        case TensorMap():
            return one


def check_parameters(mod: Any, params: Sequence[TensorType]) -> None:
    """Raises NotCompiled unless the scheduled function takes what the workload takes."""
    if tuple(params) != parameters(mod):
        raise NotCompiled("the schedule changes the function's parameters")


def lower(mod: Any, target: Any, name: str = "main") -> Lowered:
    """Takes the scheduled function of that name apart, whose kernels get names that begin with it. Raises NotCompiled.

    A function that a template computes is compiled at once, which takes longer: only then its launches are known.
    """
    if template_of(mod[name]) is not None:
        return from_template(mod[name], str(target.attrs["arch"]))
    return lowered_of(*split_kernels(mod, target), target, name)


def lowered_of(split: Any, device: Any, target: Any, name: str = "main") -> Lowered:
    """The same of what `split_kernels` gave."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for variable, kernel in device.functions_items():
            if (told := misaligned(kernel)) is not None:
                raise NotCompiled(f"{getattr(variable, 'name_hint', variable)} may access {told}: not aligned")
            if (told := without_type(kernel)) is not None:
                raise NotCompiled(f"{getattr(variable, 'name_hint', variable)} has {told}")
            most = int(target.attrs.get("max_shared_memory_per_block", _STATIC_BYTES))
            if (shared := _static_shared_bytes(kernel)) > most:
                raise NotCompiled(
                    f"{getattr(variable, 'name_hint', variable)} has {shared} bytes of shared memory a block"
                )
        calls, workspaces = _calls(split[name])
        source = _source(device, target)
        if launches_early(str(target.attrs["arch"])):
            calls, source = tuple(replace(call, programmatic=True) for call in calls), beginning_early(source)
        return Lowered(calls=calls, workspaces=workspaces, source=source)


def _static_shared_bytes(kernel: Any) -> int:
    """Shared memory of a block that is allocated where it is used; what a launch asks for is not in it."""
    sizes: list[int] = []

    def note(allocation: Any) -> None:
        if str(allocation.buffer.scope()) == "shared":
            sizes.append(size_bytes(TensorType.of(allocation.buffer)))

    structural_walk(kernel.body, (tirx.AllocBuffer, note))
    return sum(sizes)


def split_kernels(mod: Any, target: Any) -> tuple[Any, Any]:
    """The module right after TVM split host and device code, and that of the kernels, of which CUDA C++ is generated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _lower(mod, target)


def _lower(mod: Any, target: Any) -> tuple[Any, Any]:
    captured: list[Any] = []

    @tvm.ir.instrument.pass_instrument
    class Capture:
        def run_after_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.SplitHostDevice":
                captured.append(module)

    pipeline, _, finalize_device = tirx.get_default_tir_pipeline(target)
    with tvm.transform.PassContext(instruments=[Capture()], config=kind_named(target.kind.name).pass_config()):
        plain = free_of_lanes(without_vector_bindings(begin_with_infinities(expand_powers(mod))))
        lowered = pipeline(tirx.transform.BindTarget(target)(plain))
    if len(captured) != 1:
        raise NotCompiled("TVM's pipeline for CUDA splits host and device in another way than expected")
    kernels = {
        name: function
        for name, function in lowered.functions_items()
        if function.attrs.get("target", target).kind.name == "cuda"
    }
    device = finalize_device()(LANE_BY_LANE(KEEP_NAN(IRModule(kernels, attrs=lowered.attrs))))
    return captured[0], NAMED_OPERANDS(KNOWN_CONSTANTS(device))


def _source(device: Any, target: Any) -> str:
    """CUDA C++ of the kernels. One thread at a time, since an environment variable says that nothing is to be compiled."""
    with _GENERATING:
        # Otherwise TVM would compile at once, and hold the result in a module that needs a GPU.
        os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"
        try:
            return with_atomics(defined(str(codegen_build(device, target).inspect_source("cuda"))))
        finally:
            del os.environ["TVM_COMPILE_FORCE_FALLBACK"]


def _calls(function: Any) -> tuple[tuple[KernelCall, ...], tuple[int, ...]]:
    """The launches of a host function in order, and the bytes of each workspace. Raises NotCompiled.

    Loops and numbers that depend on nothing but constants are worked out, as in a sort, which merges longer and longer runs.
    """
    places: list[tuple[Any, int]] = [(param, index) for index, param in enumerate(function.params)]
    numbers: list[tuple[Any, Any]] = [(offset, 0) for param in function.params for offset in _offsets(param)]
    workspaces: list[int] = []
    calls: list[KernelCall] = []

    def known(variable: Any) -> Any:
        found = next((value for other, value in reversed(numbers) if variable.same_as(other)), None)
        return variable if found is None else tirx.const(int(found), str(variable.ty.dtype))

    def number(expression: Any) -> Any:
        """The expression as a constant; as it is where it is none."""
        if isinstance(expression, (tirx.IntImm, tirx.FloatImm)):
            return expression
        return sym.Analyzer().simplify(tvm_ffi.structural_map(expression, (ir.Var, known)))

    def place(expression: Any) -> int | bytes:
        if getattr(getattr(expression, "op", None), "name", "") == "tirx.buffer_data":
            for buffer, index in places:
                if expression.args[0].same_as(buffer):
                    return index
        elif isinstance(value := number(expression), (tirx.IntImm, tirx.FloatImm)):
            return scalar_bytes(str(value.ty.dtype), value.value)
        raise NotCompiled(f"a kernel takes {str(expression)[:80]}, which is no buffer of the host function")

    def visit(statement: Any) -> None:
        if isinstance(statement, tirx.SeqStmt):
            for item in statement.seq:
                visit(item)
        elif isinstance(statement, tirx.AttrStmt):
            visit(statement.body)
        elif isinstance(statement, tirx.AllocBuffer):
            places.append((statement.buffer, len(function.params) + len(workspaces)))
            workspaces.append(size_bytes(TensorType.of(statement.buffer)))
        elif isinstance(statement, tirx.DeclBuffer):
            places.append((statement.buffer, _index(place(statement.data))))
        elif isinstance(statement, tirx.Bind) and isinstance(value := number(statement.value), tirx.IntImm):
            numbers.append((statement.var, value))
        elif isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.SERIAL:
            first, count = number(statement.min), number(statement.extent)
            if not (isinstance(first, tirx.IntImm) and isinstance(count, tirx.IntImm)):
                raise NotCompiled(f"a loop of the host function has {str(count)[:80]} iterations")
            for at in range(int(count)):
                numbers.append((statement.loop_var, int(first) + at))
                visit(statement.body)
                if len(calls) > _MOST_CALLS:
                    raise NotCompiled(f"more than {_MOST_CALLS} launches")
        elif isinstance(statement, tirx.Evaluate) and _is_launch(statement.value):
            calls.append(_call(statement.value, place, number))
        elif not (isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)):
            raise NotCompiled(f"the host function does more than launch kernels: {str(statement)[:80]}")

    visit(function.body)
    if not calls:
        raise NotCompiled("nothing runs on the GPU")
    return tuple(calls), tuple(workspaces)


def _offsets(param: Any) -> list[Any]:
    """The variable for where a buffer begins, if it has one: buffers begin where they are said to."""
    offset = getattr(param, "elem_offset", None)
    return [offset] if isinstance(offset, ir.Var) else []


def _index(place: int | bytes) -> int:
    if isinstance(place, bytes):
        raise NotCompiled("a buffer lies at a fixed address")
    return place


def scalar_bytes(dtype: str, value: float) -> bytes:
    """A number as the device reads it."""
    return np.asarray(value, numpy_dtype(dtype)).tobytes()


def _is_launch(value: Any) -> bool:
    return getattr(getattr(value, "op", None), "name", "") == "tirx.call_ffi_kernel"


def _call(call: Any, place: Callable[[Any], int | bytes], number: Callable[[Any], Any]) -> KernelCall:
    tags = [str(tag) for tag in call.attrs.launch_params]
    name, *arguments = call.args
    split = len(arguments) - len(tags)
    sizes = {"block": [1, 1, 1], "thread": [1, 1, 1]}
    shared_bytes = 0
    for tag, extent in zip(tags, map(number, arguments[split:]), strict=True):
        if not isinstance(extent, tirx.IntImm):
            raise NotCompiled(f"a launch depends on {str(extent)[:80]}")
        if tag == _SHARED:
            shared_bytes = int(extent)
        elif tag in _AXES:
            kind, axis = _AXES[tag]
            sizes[kind][axis] = int(extent)
        else:
            raise NotCompiled(f"a launch with {tag} is not known here")
    return KernelCall(
        kernel=str(name.value),
        arguments=tuple(place(argument) for argument in arguments[:split]),
        grid=_three(sizes["block"]),
        block=_three(sizes["thread"]),
        shared_bytes=shared_bytes,
    )


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
