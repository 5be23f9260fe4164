"""The kernels that measure a GPU's roofline, compiled without one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tuner.measure import nvrtc
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_roofline import TENSOR_TYPES, fastest, source, tensor_types

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason="no NVRTC: pip install 'pitchpipe[cuda]'")


@pytest.mark.parametrize(
    ("arch", "instruction"), [("sm_80", "mma.sync"), ("sm_90a", "wgmma.mma_async"), ("sm_100a", "")]
)
def test_products_are_measured_with_the_fastest_instruction_of_the_architecture_or_not_at_all(
    arch: str, instruction: str
) -> None:
    assert tensor_types(arch) == (TENSOR_TYPES if instruction else ())
    ptx = DeviceCompiler(arch).ptx(source(arch))
    assert [f".entry tensor_{kind.name}(" in ptx for kind in TENSOR_TYPES] == [bool(instruction)] * len(TENSOR_TYPES)
    assert [name in ptx for name in ("mma.sync", "wgmma.mma_async")] == [
        name == instruction for name in ("mma.sync", "wgmma.mma_async")
    ]
    assert len(re.findall(r"fma\.rn(\.ftz)?\.f32", ptx)) >= 16, "the arithmetic is not folded away"


@pytest.mark.parametrize("arch", ["sm_80", "sm_86"])
def test_kernels_become_machine_code(arch: str) -> None:
    assert DeviceCompiler(arch).compile(source(arch))[:4] == b"\x7fELF"


def test_the_fastest_run_counts_and_runs_end_when_none_was_faster_for_a_while() -> None:
    def times() -> Iterator[float]:
        yield from (5.0, 4.0, 6.0, 3.0)
        while True:
            yield 9.0

    left = times()
    assert fastest(lambda: next(left)) == 3.0
