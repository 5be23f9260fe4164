"""Launches that begin before the launch before them has ended (CUDA's programmatic dependent launch).

A kernel says at its very start that the next launch may begin, and then waits until the one before it has ended and all that
it wrote is there. So the blocks of the next launch are on the device, as far as there is room, when the last ones of this
end, and a boundary between two kernels of a graph costs a third less. Since every kernel waits before it does anything, what
it reads has been written, and what it overwrites nobody reads any more: the launch before has waited for the one before it.
"""

from __future__ import annotations

import re

from tuner.templates.assembler import capability
from tuner.templates.kernel_source import EARLIEST

VERSION = 1
"""Of what kernels do at their start: a part of the toolchain's name, since times depend on it."""
BEGIN = 'asm volatile("griddepcontrol.launch_dependents;\\n griddepcontrol.wait;" ::: "memory");'
"""The first statement of a kernel in CUDA C++, for the devices that know it; in a launch that is not early, of no effect."""
_KERNEL = re.compile(r'extern "C" __global__ [^;{]*\{')


def launches_early(arch: str) -> bool:
    """Whether kernels for an architecture such as sm_90a begin so, and are launched early."""
    return capability(arch) >= EARLIEST


def beginning_early(source: str) -> str:
    """CUDA C++ of TVM's generator whose kernels begin so."""
    return _KERNEL.sub(lambda found: f"{found[0]}\n  {BEGIN}", source)
