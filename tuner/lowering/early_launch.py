"""Launches that begin before the launch before them has ended (CUDA's programmatic dependent launch).

A kernel says at its very start that the next launch may begin, and then waits until the one before it has ended and all that
it wrote is there. So the blocks of the next launch are on the device, as far as there is room, when the last ones of this
end, and a boundary between two kernels of a graph costs a third less. Since every kernel waits before it does anything, what
it reads has been written, and what it overwrites nobody reads any more: the launch before has waited for the one before it.

The compiler must not read before the wait either. It does where a kernel's parameter is `__restrict__` and never written:
such a read is taken to give the same at any time, and moved above the assembly whatever that clobbers. So the pointers come
out of the wait, as far as the compiler knows; it is told again that they point to global memory, and what follows is a
function of its own that takes them.
"""

from __future__ import annotations

import re

from tuner.templates.assembler import capability
from tuner.templates.kernel_source import EARLIEST

VERSION = 2
"""Of what kernels do at their start: a part of the toolchain's name, since times depend on it."""
_WAIT = "griddepcontrol.launch_dependents;\\n griddepcontrol.wait;"
BEGIN = f'asm volatile("{_WAIT}" ::: "memory");'
"""The first statement of a kernel in CUDA C++ that reads nothing, for the devices that know it; in a launch that is not
early, of no effect."""
_KERNEL = re.compile(
    r'extern "C" __global__ void (?P<bounds>(?:__launch_bounds__\(\d+\) )?)(?P<name>\w+)\((?P<params>[^;{]*)\) \{'
)


def launches_early(arch: str) -> bool:
    """Whether kernels for an architecture such as sm_90a begin so, and are launched early."""
    return capability(arch) >= EARLIEST


def beginning_early(source: str) -> str:
    """CUDA C++ of TVM's generator whose kernels begin so."""
    kernels = "\n".join(_kernel(found) for found in _KERNEL.finditer(source))
    bodies = _KERNEL.sub(r"static __device__ __forceinline__ void \g<name>_body(\g<params>) {", source)
    return f"{bodies}\n{kernels}\n"


def _kernel(found: re.Match[str]) -> str:
    """The kernel that waits and then calls its body."""
    params = [param.strip() for param in found["params"].split(",")]
    names = [re.split(r"\W+", param)[-1] for param in params]
    pointers = [name for name, param in zip(names, params, strict=True) if "*" in param]
    written = ", ".join(f'"+l"({name})' for name in pointers)
    known = "".join(f"  __builtin_assume(__isGlobal({name}));\n" for name in pointers)
    return (
        f'extern "C" __global__ void {found["bounds"]}{found["name"]}({found["params"]}) {{\n'
        f'  asm volatile("{_WAIT}" : {written} :: "memory");\n'
        f"{known}"
        f"  {found['name']}_body({', '.join(names)});\n"
        "}"
    )
