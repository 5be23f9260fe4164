"""Kernels that begin before the launch before them has ended touch no memory before they have waited for it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.compiler.gpu_cases import functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.test_gpu_default import CASES, FUSED, trace_of
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_code import lower
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import to_tvm_target

knobs = pytest.importorskip("triton.knobs")  # Triton comes with a disassembler.

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);")
_WAIT = "ACQBULK"
_MEMORY = re.compile(r"\b(LD|LDG|LDGSTS|ST|STG|ATOM|ATOMG|RED|UBLKCP|UTMALDG)\b")


def instructions(code: bytes, folder: Path) -> list[list[str]]:
    """The instructions of each kernel of machine code."""
    (folder / "code.cubin").write_bytes(code)
    command = [knobs.nvidia.nvdisasm.path, "-c", str(folder / "code.cubin")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [_INSTRUCTION.findall(part) for part in text.split(".section\t.text.")[1:]]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["broadcast", "layer norm", "one long row", "mean of columns", "product of half precision", "embedding", *FUSED],
)
def test_no_kernel_touches_memory_before_it_has_waited(name: str, tmp_path: Path) -> None:
    """The compiler moves reads of what a kernel never writes above the wait, if it is let."""
    make, specs, _ = CASES[name] if name in CASES else FUSED[name]
    for mod in functions(make, *specs) if name in CASES else [one_function(make, *specs)]:
        scheduled = apply_trace(mod, trace_of(mod, HOPPER)).mod
        lowered = lower(scheduled, to_tvm_target(HOPPER))
        assert all(call.programmatic for call in lowered.calls)
        kernels = instructions(DeviceCompiler("sm_90a").compile(lowered.source), tmp_path)
        assert len(kernels) == len({call.kernel for call in lowered.calls})
        for kernel in kernels:
            waits = next(at for at, instruction in enumerate(kernel) if _WAIT in instruction)
            assert not [one for one in kernel[:waits] if _MEMORY.search(one)]
            assert [one for one in kernel[waits:] if _MEMORY.search(one)]
