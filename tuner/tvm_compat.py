"""Where TVM keeps its things, all but tensor intrinsics, and the switches it needs before it is imported.

What importing this module does, once per process, and why:

* `TVM_NUM_THREADS` is set to the number of cores this process may use, unless it is set already. TVM's runtime
  believes that every x86 core is a hyper-thread and would use half of them. `TVM_BIND_THREADS` is 0 unless there is a
  thread for each core of the machine: TVM binds to its first cores, whichever the process may use.
* torch is kept out: TVM imports torch when it is installed (2 s) and needs it only for zero-copy exchange. A process
  that imported torch before keeps it; importing torch afterwards works and exchanges through DLPack.
* The package `tvm.s_tir.tensor_intrin` is replaced by an empty one with the same path. Its `__init__` parses the
  tensor intrinsics of every vendor (17 s) and `TuneContext` imports it. Call `TargetKind.load_intrinsics()` instead.
* Methods of `Schedule` lose the decorator that compares each argument with its annotation, in Python: an eighth of the time
  that choosing schedules takes. The C++ side checks them, too.
* Arrays of TVM are iterated over by C code: a generator in Python asks for one element after another through three
  functions, which takes another eighth.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pitchpipe.errors import InvalidModel
from pitchpipe.processes.cores import with_tvm_threads
from pitchpipe.target_kind import HOST, kind_named, kind_of
from pitchpipe.wire.target import Target, Toolchain


def _import_tvm() -> Any:
    os.environ.update(with_tvm_threads(os.environ))
    hide_torch = "torch" not in sys.modules
    if hide_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # the import system's word for "not installed"
    try:
        with _uncollected():
            return importlib.import_module("tvm")
    finally:
        if hide_torch:
            del sys.modules["torch"]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which looks again and again through what an import makes, all of which stays."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


tvm: Any = _import_tvm()


def _empty_intrinsics_package() -> None:
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.s_tir.__path__[0]) / "tensor_intrin")]
    sys.modules[name] = package
    tvm.s_tir.tensor_intrin = package


_empty_intrinsics_package()

import tvm_ffi  # noqa: E402  # after tvm: it would import torch
from tvm import ir, relax, sym, te, tirx, topi  # noqa: E402
from tvm.relax import vm_build  # noqa: E402
from tvm.relax.expr_functor import PyExprMutator, mutator  # noqa: E402
from tvm.s_tir import Schedule, dlight  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.schedule import ScheduleError, Trace  # noqa: E402
from tvm.script import ir_builder  # noqa: E402
from tvm.script.ir_builder import tirx as tir_script  # noqa: E402
from tvm.tirx.build import codegen_build  # noqa: E402
from tvm.tirx.compilation_pipeline import PIPELINE_MAP as _PIPELINES  # noqa: E402
from tvm_ffi import structural_walk  # noqa: E402


def _without_type_checks() -> None:
    for name, method in list(vars(Schedule).items()):
        if (plain := getattr(method, "__wrapped__", None)) is not None:
            setattr(Schedule, name, plain)


def _iterate(array: Any) -> Iterator[Any]:
    return map(_ARRAY_ITEM, itertools.repeat(array), range(len(array)))


_ARRAY_ITEM = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_without_type_checks()
tvm_ffi.Array.__iter__ = _iterate

IRModule: Any = tvm.IRModule
PrimFunc: Any = tirx.PrimFunc
PARTITION_HINT = "pragma_loop_partition_hint"
"""Annotation of a loop that TVM's LoopPartition divides where the answers to its body's questions change."""
SYMBOL_PREFIX = "__tvm_ffi_"
"""Of a tensor function's symbol in machine code."""

__all__ = [
    "PARTITION_HINT",
    "SYMBOL_PREFIX",
    "IRModule",
    "PrimFunc",
    "PyExprMutator",
    "Schedule",
    "ScheduleError",
    "Trace",
    "codegen_build",
    "dlight",
    "executable",
    "generate_unchecked",
    "import_object_loader",
    "ir",
    "ir_builder",
    "link_model",
    "load_ir",
    "load_object_code",
    "loop_bindings",
    "ms",
    "mutate",
    "mutator",
    "object_code",
    "onnx_frontend",
    "pass_layouts_like",
    "register_pipeline",
    "register_reducer",
    "relax",
    "save_ir",
    "structural_walk",
    "sym",
    "take_kernels",
    "te",
    "tflite_frontend",
    "tir_script",
    "tirx",
    "to_tvm_target",
    "toolchain",
    "topi",
    "tvm",
    "tvm_ffi",
    "uses",
    "with_function",
]


def onnx_frontend() -> Any:
    """TVM's module that converts ONNX graphs."""
    return importlib.import_module("tvm.relax.frontend.onnx.onnx_frontend")


def tflite_frontend() -> Any:
    """TVM's module that converts TFLite graphs."""
    return importlib.import_module("tvm.relax.frontend.tflite.tflite_frontend")


def pass_layouts_like(name: str, other: str) -> None:
    """Has ConvertLayout pass layouts through an operator as through another one of as many operands. Operands of `where`,
    as of any ternary operator, must then be scalars or have the rank of the result."""
    attribute = "FRelaxInferLayout"
    tvm.ir.register_op_attr(name, attribute, tvm.ir.Op.get(other).get_attr(attribute))


def register_pipeline(name: str, first: Any, last: Any) -> None:
    """Gives TVM's pipeline for CPUs a name with two more passes: before all others, and before calls of the runtime are
    lowered."""

    def made() -> tuple[Any, Any, Any]:
        pipeline, of_host, of_device = tirx.get_tir_pipeline("s_tir")
        return tvm.transform.Sequential([first, pipeline, last]), of_host, of_device

    _PIPELINES[name] = made


def generate_unchecked(mod: Any, target: Any, pipeline: str = "s_tir") -> tuple[Any, Any]:
    """The lowered module for a CPU target, and LLVM's module of it, whose functions trust their arguments.

    What `tirx.build` does with the pipeline of that name, less what measuring pays for and does not need: the checks of
    every argument with their messages (a fifth to a half of the compiler's work on a kernel) and the search for device
    functions. The kernels themselves are the same.
    """
    lower, finalize, _ = tirx.get_tir_pipeline(pipeline)
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        bound = tirx.transform.BindTarget(target.with_host(target))(mod)
        lowered = finalize()(lower(bound))
        return lowered, codegen_build(lowered, target)


def executable(library: Any) -> Any:
    """A module of machine code, made of LLVM's module when a function is first asked for."""
    return tvm.runtime.Executable(library).jit()


def object_code(library: Any) -> bytes:
    """Relocatable object code of LLVM's module, in the format of this machine.

    LLVM writes it to a file, and to this process's standard output where that is named "-": a file in memory for the
    time of the call, so that a process which may write no file can call this. One thread at a time.
    """
    memory, standard_output = os.memfd_create("object-code", os.MFD_CLOEXEC), os.dup(1)
    try:
        os.dup2(memory, 1)
        library.write_to_file("-", "o")
        return os.pread(memory, os.fstat(memory).st_size, 0)
    finally:
        os.dup2(standard_output, 1)
        os.close(standard_output)
        os.close(memory)


def load_object_code(code: bytes) -> Any:
    """A module of machine code, made of what `object_code` returned. Starts no thread and no process, opens no file."""
    loader = import_object_loader()
    # Without LLVM's runtime for constructors, which TVM's code has none of, and with memory of its own for each module.
    session = loader.ExecutionSession(orc_rt=None, slab_size=-1)
    # What the package's own method adds is the search for a C++ compiler, by starting one.
    return tvm_ffi.get_global_func("tvm_ffi_orcjit.SessionLoadModule")(session, [code], "", None, None)


def import_object_loader() -> Any:
    """The package that loads object code. A process that will be forked calls this once, for all its forks."""
    return importlib.import_module("tvm_ffi_orcjit")


def take_kernels(model: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    """A Relax module as the virtual machine's instructions, in TVM's builder of them, and the tensor functions that they
    call by name, which are not compiled yet. What `relax.build` does first."""
    builder = relax.ExecBuilder()
    with target:
        rest = vm_build._vmcodegen(builder, relax.get_pipeline("default")(model))
    return builder, {v.name_hint: f for v, f in rest.functions.items() if isinstance(f, PrimFunc)}


def link_model(instructions: Any, target: Any, objects: Sequence[tuple[Sequence[str], bytes]]) -> Any:
    """An executable of the instructions and of object code (names of its functions, code), which can be exported."""
    libraries = []
    with NamedTemporaryFile(suffix=".o") as file:
        for names, code in objects:
            file.seek(0)
            file.truncate()
            file.write(code)
            file.flush()
            libraries.append(tvm.runtime.load_static_library(file.name, list(names)))
    return vm_build._vmlink(instructions, target, ext_libs=libraries)


def to_tvm_target(target: Target) -> Any:
    """TVM's target, with this machine as the host of a GPU. Raises InvalidTarget for a CPU that LLVM does not know."""
    return kind_of(target).tvm_target(target)


def load_ir(text: str) -> Any:
    """The IRModule of TVM JSON; raises InvalidModel. Foreign text goes through tuner/ingest first."""
    try:
        # What another version wrote is brought up to date by parsing and writing all of it in Python.
        own = f'"tvm_version":"{tvm.__version__}"' in text
        module = tvm_ffi.serialization.from_json_graph_str(text) if own else ir.load_json(text)
    except Exception as error:  # TVM raises whatever its C++ side met: ValueError, KeyError, TypeError, ...
        raise InvalidModel(f"not TVM JSON: {str(error).strip().splitlines()[-1][:200]}") from error
    if not isinstance(module, IRModule):
        raise InvalidModel(f"the TVM JSON holds a {type(module).__name__}, not an IRModule")
    return module


def save_ir(module: Any) -> str:
    """TVM JSON of an IRModule; equal modules made by equal steps give equal text."""
    return str(ir.save_json(module))


def with_function(module: Any, name: str, function: Any) -> Any:
    """A copy of the module in which `name` is `function`; callers of the others keep their callees."""
    result = IRModule(dict(module.functions.items()), attrs=module.attrs)
    result.update_func(result.get_global_var(name), function)
    return result


def toolchain(kind: str = HOST) -> Toolchain:
    """Versions of what turns a trace into code for targets of this kind, in this process."""
    return Toolchain(tvm=tvm.__version__, tvm_ffi=tvm_ffi.__version__, codegen=kind_named(kind).codegen())


def mutate(mutator: Any, trace: Any, seed: int) -> Any:
    """A neighbour of a trace, or None. The method on the mutator itself would draw its own seed from the device."""
    return _apply_mutator(mutator, trace, seed)


def uses(expression: Any, variable: Any) -> bool:
    """Whether the variable occurs in the expression."""
    return any(found.same_as(variable) for found in tirx.analysis.undefined_vars(expression))


def loop_bindings(schedule: Any, block: Any) -> list[Any]:
    """What each axis of a block is bound to, in the order of its `iter_vars`."""
    return list(_block_realize(schedule, block).iter_values)


def dividing(types: Sequence[str], place: int, size: int) -> Any:
    """The map of indices of such types that divides one of them in two, the second of `size` values."""
    indices = [tirx.Var(f"x{number}", dtype) for number, dtype in enumerate(types)]
    at = indices[place]
    return tirx.IndexMap(indices, [*indices[:place], at // size, at % size, *indices[place + 1 :]], None)


def joining(types: Sequence[str], place: int, size: int) -> Any:
    """The map of indices of such types that makes one of two neighbours, the second of `size` values."""
    indices = [tirx.Var(f"x{number}", dtype) for number, dtype in enumerate(types)]
    joined = indices[place] * size + indices[place + 1]
    return tirx.IndexMap(indices, [*indices[:place], joined, *indices[place + 2 :]], None)


def inline_into_producer(schedule: Any, stage: Any) -> None:
    """reverse_compute_inline: computes a stage where the stage that it reads is computed, which then writes its result.

    TVM takes the loops of the stage that is read for those of the result. A slice that begins at the first element would be
    written to beyond its end: it has fewer elements than there are iterations. Raises ValueError for such a stage, and
    whatever TVM raises where it cannot substitute.
    """
    size = _elements(schedule.get(stage))
    if any(_elements(schedule.get(producer)) != size for producer in schedule.get_producers(stage)):
        raise ValueError("a stage with another number of elements than its producer cannot be computed there")
    schedule.reverse_compute_inline(stage)


def _elements(definition: Any) -> int:
    """That a stage writes."""
    return math.prod(int(axis.dom.extent) for axis in definition.iter_vars if axis.iter_type != axis.CommReduce)


def register_reducer(name: str, count: int, combine: Any, identity: Any) -> None:
    """Lets TVM take apart reductions of `count` values by `combine` (two lists of values -> list), whose identity for a
    block's initial values `identity` tells.

    TVM frees its list of reducers when the process ends, after Python; its table of named functions, which holds them as
    well, it never frees.
    """
    functions = []
    for part, function in (("combine", combine), ("identity", identity)):
        named = f"pitchpipe.reducer.{name}.{part}"
        tvm_ffi.register_global_func(named, function)
        functions.append(tvm_ffi.get_global_func(named))
    _register_reducer(count, *functions)


def tensor_in(memory: Any, shape: Sequence[int], dtype: str) -> Any:
    """A tensor of that shape and type in NumPy's bytes, which it keeps: contiguous, writable, on a boundary of 64 bytes."""
    return tvm.runtime.from_dlpack(memory)._create_view(tuple(shape), dtype)


def flush_by_tvm(tensors: Sequence[Any]) -> None:
    """Writes tensors in the host's memory out of every cache, one line after another; on x86-64 and AArch64."""
    _flush_all_but_first(tensors[0], *tensors)


_register_reducer: Any = tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")
_flush_all_but_first: Any = tvm_ffi.get_global_func("cache_flush_cpu_non_first_arg")
_block_realize: Any = tvm_ffi.get_global_func("s_tir.schedule.GetSBlockRealize")
_apply_mutator: Any = tvm_ffi.get_global_func("s_tir.meta_schedule.MutatorApply")
