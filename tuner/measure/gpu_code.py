"""From a scheduled module to a GPU program that is plain data: no GPU, no driver, no host code.

A `GpuProgram` is the machine code of the kernels (a cubin) and the list of their launches. The host function that TVM
would generate around them is never compiled: with static shapes it launches kernels one after another on buffers that
are its parameters or its own workspaces, and the list of launches is extracted from the lowered module. So one process can
compile while another, which holds the GPU, loads and runs programs, and no code of a candidate runs on the host.

Device code is compiled by NVRTC where `cuda-bindings` is installed, with TVM's own options, else by nvcc. TVM's preamble for
NVRTC includes two headers of the C++ standard library, which take 0.4 s to parse: three quarters of the compilation of a
small kernel. They are left out where the kernels use nothing from them; the machine code of the kernels is the same, byte
for byte.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import struct
import threading
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pitchpipe.target_kind import kind_named
from tuner.measure.build import parameters
from tuner.measure.check import size_bytes
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import IRModule, codegen_build, tirx, tvm

MAX_CODE_BYTES = 8 << 20
"""Largest machine code of one program; tensor-core kernels have 50 to 600 KiB."""
_LENGTH = struct.Struct("!I")
_AXES = {f"{kind}Idx.{axis}": (kind, i) for kind in ("block", "thread") for i, axis in enumerate("xyz")}
_GENERATING = threading.Lock()
_SHARED = "tirx.use_dyn_shared_memory"

_PREAMBLE = (
    "#include <cuda/std/cstdint>\n"
    + "".join(f"using cuda::std::{sign}int{bits}_t;\n" for sign in ("u", "") for bits in (8, 16, 32, 64))
    + """#ifndef __asm__
#define __asm__ asm
#endif
#ifndef __volatile__
#define __volatile__ volatile
#endif
#ifndef INFINITY
#define INFINITY __builtin_huge_valf()
#endif
"""
)
"""Types and macros that TVM's kernels use and NVRTC does not define."""
_TRAITS = re.compile(r" *#include <cuda/std/type_traits>\s*namespace std \{[^{}]*\}\n")
_STANDARD = re.compile(r"(?<!cuda::)\bstd::|\bcuda::std::(?!u?int(8|16|32|64)_t)")


class NotCompiled(Exception):
    """The compiler refused, or the host function does more than a list of launches can express."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel's launch."""

    kernel: str
    buffers: tuple[int, ...]
    """The kernel's arguments: indices into the program's parameters, and after them its workspaces."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory of a thread block."""


@dataclass(frozen=True, kw_only=True)
class GpuProgram:
    """A candidate compiled for a GPU."""

    launches: tuple[Launch, ...]
    workspaces: tuple[int, ...]
    """Bytes of each buffer that carries intermediate results from one kernel to another."""
    code: bytes
    """The cubin that `cuModuleLoadData` takes."""

    def to_bytes(self) -> bytes:
        head = json.dumps(
            {"launches": [asdict(launch) for launch in self.launches], "workspaces": self.workspaces}
        ).encode()
        return _LENGTH.pack(len(head)) + head + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> GpuProgram:
        """What `to_bytes` encoded. Raises ValueError, KeyError or TypeError when the data is no program."""
        if len(data) < _LENGTH.size:
            raise ValueError("a program that has no head")
        (size,) = _LENGTH.unpack(data[: _LENGTH.size])
        head = json.loads(data[_LENGTH.size : _LENGTH.size + size])
        launches = tuple(
            Launch(
                kernel=str(launch["kernel"]),
                buffers=tuple(int(index) for index in launch["buffers"]),
                grid=_three(launch["grid"]),
                block=_three(launch["block"]),
                shared_bytes=int(launch["shared_bytes"]),
            )
            for launch in head["launches"]
        )
        workspaces = tuple(int(size) for size in head["workspaces"])
        return cls(launches=launches, workspaces=workspaces, code=data[_LENGTH.size + size :])


def _three(values: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = (int(value) for value in values)
    return x, y, z


def compile_program(mod: Any, target: Any, params: Sequence[TensorType], compiler: DeviceCompiler) -> GpuProgram:
    """Lowers a scheduled module for a CUDA target and compiles its kernels.

    params: the types of the workload's parameters, which the scheduled function must have too. Raises NotCompiled, or
    whatever TVM's lowering raises.
    """
    check_parameters(mod, params)
    launches, workspaces, source = lower(mod, target)
    return GpuProgram(launches=launches, workspaces=workspaces, code=compiler.compile(source))


def check_parameters(mod: Any, params: Sequence[TensorType]) -> None:
    """Raises NotCompiled unless the scheduled function takes what the workload takes."""
    if tuple(params) != parameters(mod):
        raise NotCompiled("the schedule changes the function's parameters")


def lower_kernels(mod: Any, target: Any) -> Any:
    """The module of the kernels, as CUDA C++ is generated from it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _lower(mod, target)[1]


def lower(mod: Any, target: Any) -> tuple[tuple[Launch, ...], tuple[int, ...], str]:
    """(launches in order, bytes of each workspace, CUDA C++ of the kernels) of a scheduled module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split, device = _lower(mod, target)
        launches, workspaces = _launches(split["main"])
        return launches, workspaces, _source(device, target)


def _lower(mod: Any, target: Any) -> tuple[Any, Any]:
    """The module right after TVM split host and device code, and the device functions ready for code generation."""
    captured: list[Any] = []

    @tvm.ir.instrument.pass_instrument
    class Capture:
        def run_after_pass(self, module: Any, info: Any) -> None:
            if info.name == "tirx.SplitHostDevice":
                captured.append(module)

    pipeline, _, finalize_device = tirx.get_default_tir_pipeline(target)
    with tvm.transform.PassContext(instruments=[Capture()], config=kind_named(target.kind.name).pass_config()):
        lowered = pipeline(tirx.transform.BindTarget(target)(mod))
    if len(captured) != 1:
        raise NotCompiled("TVM's pipeline for CUDA splits host and device in another way than expected")
    kernels = {
        name: function
        for name, function in lowered.functions_items()
        if function.attrs.get("target", target).kind.name == "cuda"
    }
    return captured[0], finalize_device()(IRModule(kernels, attrs=lowered.attrs))


def _source(device: Any, target: Any) -> str:
    """CUDA C++ of the kernels. One thread at a time, since an environment variable says that nothing is to be compiled."""
    with _GENERATING:
        # Otherwise TVM would compile at once, and hold the result in a module that needs a GPU.
        os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"
        try:
            return str(codegen_build(device, target).inspect_source("cuda"))
        finally:
            del os.environ["TVM_COMPILE_FORCE_FALLBACK"]


def _launches(function: Any) -> tuple[tuple[Launch, ...], tuple[int, ...]]:
    """The launches of a host function in order, and the bytes of each workspace. Raises NotCompiled."""
    places: list[tuple[Any, int]] = [(param, index) for index, param in enumerate(function.params)]
    workspaces: list[int] = []
    launches: list[Launch] = []

    def place(expression: Any) -> int:
        if getattr(getattr(expression, "op", None), "name", "") == "tirx.buffer_data":
            for buffer, index in places:
                if expression.args[0].same_as(buffer):
                    return index
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
            places.append((statement.buffer, place(statement.data)))
        elif isinstance(statement, tirx.Evaluate) and _is_launch(statement.value):
            launches.append(_launch(statement.value, place))
        elif not (isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm)):
            raise NotCompiled(f"the host function does more than launch kernels: {str(statement)[:80]}")

    visit(function.body)
    if not launches:
        raise NotCompiled("nothing runs on the GPU")
    return tuple(launches), tuple(workspaces)


def _is_launch(value: Any) -> bool:
    return getattr(getattr(value, "op", None), "name", "") == "tirx.call_ffi_kernel"


def _launch(call: Any, place: Any) -> Launch:
    tags = [str(tag) for tag in call.attrs.launch_params]
    name, *arguments = call.args
    split = len(arguments) - len(tags)
    sizes = {"block": [1, 1, 1], "thread": [1, 1, 1]}
    shared_bytes = 0
    for tag, extent in zip(tags, arguments[split:], strict=True):
        if not isinstance(extent, tirx.IntImm):
            raise NotCompiled(f"a launch depends on {str(extent)[:80]}")
        if tag == _SHARED:
            shared_bytes = int(extent)
        elif tag in _AXES:
            kind, axis = _AXES[tag]
            sizes[kind][axis] = int(extent)
        else:
            raise NotCompiled(f"a launch with {tag} is not known here")
    return Launch(
        kernel=str(name.value),
        buffers=tuple(place(argument) for argument in arguments[:split]),
        grid=_three(sizes["block"]),
        block=_three(sizes["thread"]),
        shared_bytes=shared_bytes,
    )


class DeviceCompiler:
    """Compiles CUDA C++ for one architecture, such as `sm_90`. Needs no GPU.

    Make it before a fork and use it after: where there is a driver, NVRTC's first compilation initialises it and starts
    threads, and a process that did that can no longer be forked.
    """

    def __init__(self, arch: str) -> None:
        """Raises NotCompiled when this machine has neither NVRTC with CUDA's headers nor nvcc."""
        self.arch = arch
        self._nvrtc = _nvrtc()
        if self._nvrtc is not None:
            self._options = [option.encode() for option in _options(arch)]
        elif shutil.which("nvcc") is None:
            raise NotCompiled("neither NVRTC (the package cuda-bindings, and CUDA's headers) nor nvcc is here")

    @property
    def in_process(self) -> bool:
        """Whether it compiles without starting a program or writing a file, as a confined process must."""
        return self._nvrtc is not None

    def compile(self, source: str) -> bytes:
        """The machine code (a cubin) of CUDA C++. Raises NotCompiled."""
        code = self._generate(source, "cubin")
        if len(code) > MAX_CODE_BYTES:
            raise NotCompiled(f"{len(code)} bytes of machine code, the cap is {MAX_CODE_BYTES}")
        return code

    def ptx(self, source: str) -> str:
        """What `compile` makes machine code of, as text; raises NotCompiled."""
        return self._generate(source, "ptx").rstrip(b"\0").decode()

    def _generate(self, source: str, form: Literal["cubin", "ptx"]) -> bytes:
        return self._nvcc(source, form) if self._nvrtc is None else self._run(for_nvrtc(source), form)

    def _run(self, source: str, form: Literal["cubin", "ptx"]) -> bytes:
        nvrtc = self._nvrtc
        program = _value(nvrtc.nvrtcCreateProgram(source.encode(), b"tvm_kernels.cu", 0, None, None))
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(self._options), self._options)
            if int(status) != 0:
                log = bytearray(_value(nvrtc.nvrtcGetProgramLogSize(program)))
                nvrtc.nvrtcGetProgramLog(program, log)
                raise NotCompiled(_first_error(log.decode(errors="replace")))
            size, get = {
                "cubin": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
                "ptx": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
            }[form]
            code = bytearray(_value(size(program)))
            _value(get(program, code))
            return bytes(code)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _nvcc(self, source: str, form: Literal["cubin", "ptx"]) -> bytes:
        try:
            with tvm.target.Target({"kind": "cuda", "arch": self.arch}):
                return bytes(_tvm_nvcc().compile_cuda(source, target_format=form, compiler="nvcc"))
        except RuntimeError as error:
            raise NotCompiled(_first_error(str(error))) from error


def for_nvrtc(source: str) -> str:
    """CUDA C++ of TVM's generator, changed so that NVRTC compiles it and does so quickly."""
    source = "\n".join(line for line in source.splitlines() if line.strip() != "#include <cuda.h>") + "\n"
    short = _TRAITS.sub("", source)
    return _PREAMBLE + (source if _STANDARD.search(short) else short)


def _tvm_nvcc() -> Any:
    return importlib.import_module("tvm.support.nvcc")


def _nvrtc() -> Any:
    """The module cuda.bindings.nvrtc with a library behind it and headers beside it; None without them."""
    if os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower() != "nvrtc" or not _include_paths():
        return None
    try:
        found: Any = importlib.import_module("cuda.bindings.nvrtc")
        found.nvrtcVersion()
    except Exception:  # noqa: BLE001 - ImportError, or the package's own way of saying that the library is missing
        return None
    return found


def _include_paths() -> list[str]:
    """Folders of CUDA's headers and of its standard library (CCCL); empty where they are not installed."""
    roots = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)]
    if (nvcc := shutil.which("nvcc")) is not None:
        roots.append(Path(nvcc).resolve().parents[1])
    roots.append(Path("/usr/local/cuda"))
    if (package := importlib.util.find_spec("nvidia")) is not None:
        roots += [Path(place) / "cu13" for place in package.submodule_search_locations or ()]
    for root in roots:
        places = [root / "include", *(root / "targets").glob("*/include")]
        places += [place / "cccl" for place in places]
        found = [str(place) for place in places if place.is_dir()]
        if any((Path(place) / name).is_file() for place in found for name in ("cuda_runtime.h",)):
            return found
    return []


def _options(arch: str) -> list[str]:
    """TVM's own options, so that a deployment compiles the same machine code as was measured."""
    silent = [f"-D__NV_SILENCE_{kind}DEPRECATION_{end}=" for kind in ("", "HOST_") for end in ("BEGIN", "END")]
    native = [
        f"-U__CUDA_NO_{kind}__"
        for kind in (
            *("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_OPERATORS", "BFLOAT16_CONVERSIONS"),
            *("BFLOAT162_OPERATORS", "BFLOAT162_CONVERSIONS"),
        )
    ]
    return [
        f"--gpu-architecture={arch}",
        "-default-device",
        "--device-int128",
        *(f"-I{path}" for path in _include_paths()),
        *silent,
        *native,
        "--use_fast_math",
        *(f"--ptxas-options={flag}" for flag in _tvm_nvcc()._ptxas_option_flags()),
        *shlex.split(os.environ.get("TVM_CUDA_NVRTC_EXTRA_OPTS", "")),
    ]


def _value(answer: tuple[Any, ...]) -> Any:
    """The value that a function of NVRTC returns beside its status. Raises NotCompiled for a status that is an error."""
    status, *values = answer
    if int(status) != 0:
        raise NotCompiled(f"NVRTC: {status}")
    return values[0] if values else None


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if "error" in line.lower()]
    return (lines[0] if lines else log.strip()[:200])[:500]
