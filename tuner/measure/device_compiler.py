"""CUDA C++ of TVM's generator becomes machine code, without a GPU.

Device code is compiled by NVRTC where `cuda-bindings` is installed, with TVM's options but fast mathematics, else by nvcc.
TVM's preamble for NVRTC includes two headers of the C++ standard library, which take 0.4 s to parse: three quarters of the
compilation of a small kernel. They are left out where the kernels use nothing from them; the machine code of the kernels is
the same, byte for byte.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
from typing import Any, Literal

from tuner.measure import nvrtc
from tuner.tvm_compat import tvm

MAX_CODE_BYTES = 8 << 20
"""Largest machine code of one program; tensor-core kernels have 50 to 600 KiB."""
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
    """The compiler refused, or the host function does more than a list of launches can express (gpu_code.py)."""


class DeviceCompiler:
    """Compiles CUDA C++ for one architecture, such as `sm_90`. Needs no GPU.

    Make it before a fork and use it after: where there is a driver, NVRTC's first compilation initialises it and starts
    threads, and a process that did that can no longer be forked.
    """

    def __init__(self, arch: str) -> None:
        """Raises NotCompiled when this machine has neither NVRTC with CUDA's headers nor nvcc."""
        self.arch = arch
        self._nvrtc = nvrtc.library()
        if self._nvrtc is not None:
            self._options = [option.encode() for option in _options(arch)]
        elif shutil.which("nvcc") is None:
            raise NotCompiled(f"neither NVRTC nor nvcc is here: {nvrtc.INSTALL}")

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
        library = self._nvrtc
        program = _value(library.nvrtcCreateProgram(source.encode(), b"tvm_kernels.cu", 0, None, None))
        try:
            (status,) = library.nvrtcCompileProgram(program, len(self._options), self._options)
            if int(status) != 0:
                log = bytearray(_value(library.nvrtcGetProgramLogSize(program)))
                library.nvrtcGetProgramLog(program, log)
                raise NotCompiled(_first_error(log.decode(errors="replace")))
            size, get = {
                "cubin": (library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN),
                "ptx": (library.nvrtcGetPTXSize, library.nvrtcGetPTX),
            }[form]
            code = bytearray(_value(size(program)))
            _value(get(program, code))
            return bytes(code)
        finally:
            library.nvrtcDestroyProgram(program)

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
    os.environ["TVM_CUDA_NVCC_NO_FAST_MATH"] = "1"  # as `_options`
    return importlib.import_module("tvm.support.nvcc")


def _options(arch: str) -> list[str]:
    """TVM's own options but fast mathematics, with which powf of a negative number is NaN, and sines of large ones wrong."""
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
        *(f"-I{path}" for path in nvrtc.include_folders()),
        *silent,
        *native,
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
