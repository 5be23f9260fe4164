"""Tensors written out of every cache before a call that is to find them there no more.

clflush, which TVM's own function uses, waits for each line: 140 ns a line on an Intel Emerald Rapids in a virtual machine,
7 ms for a tensor of 3 MB, before every call of a kernel of 0.2 ms. clflushopt lets lines overtake each other ("CLFLUSHOPT"
in volume 2 of Intel's manual) and takes 4 ns a line there. Where a processor has it, a function of ours is compiled, once in
a process that is then forked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner.measure.build import compile_module, cpu_target_of_host
from tuner.tvm_compat import IRModule, flush_by_tvm, tirx, tvm

LINE_BYTES = 64
"""Of a cache of every x86-64 processor."""


def evict(tensors: Sequence[Any]) -> None:
    """Writes tensors in the host's memory out of every cache, line by line; on x86-64 and AArch64."""
    if (flush := prepared()) is None:
        flush_by_tvm(tensors)
        return
    for tensor in tensors:
        address = int(tensor.data_ptr())
        first = address - address % LINE_BYTES
        flush(first, -(-(address + _size_bytes(tensor) - first) // LINE_BYTES))


@functools.cache
def prepared() -> Callable[[int, int], None] | None:
    """A function that evicts so many lines from an address on; None where the processor has no clflushopt. Starts no thread,
    so that the process may still be forked."""
    target = cpu_target_of_host()
    # LLVM knows what processors of this name have; the kernel tells what a virtual machine lets through.
    if not (tvm.target.codegen.llvm_cpu_has_features("clflushopt", target) and "clflushopt" in _flags()):
        return None
    first, lines, line = (tirx.Var(name, "int64") for name in ("first", "lines", "line"))
    address = tirx.reinterpret("handle", first + line * LINE_BYTES)
    flush = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.x86.clflushopt", address))
    each = tirx.For(line, tirx.const(0, "int64"), lines, tirx.ForKind.SERIAL, flush)
    fence = tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.x86.sse.sfence"))
    function = tirx.PrimFunc([first, lines], tirx.SeqStmt([each, fence])).with_attr("global_symbol", "flush")
    module = compile_module(IRModule({"flush": function}), target)
    made: Callable[[int, int], None] = module.get_function("flush", query_imports=True)
    return made


def _flags() -> Sequence[str]:
    """The features of the first processor, by the kernel's names; none where it does not tell."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return line.split()
    return ()


def _size_bytes(tensor: Any) -> int:
    kind = tvm.runtime.DataType(str(tensor.dtype))
    return math.prod(int(extent) for extent in tensor.shape) * -(-int(kind.bits) * int(kind.lanes) // 8)
