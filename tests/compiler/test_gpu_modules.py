"""Small modules of PyTorch as whole GPU programs in every type: what a CPU runs, a GPU does not refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compiler.gpu_programs import HOPPER
from tests.compiler.test_gpu_default import compilers
from tuner.deploy.build import schedule_model
from tuner.deploy.gpu_model import compile_gpu_model
from tuner.ingest import parse_container

torch = pytest.importorskip("torch")

from tuner.ingest.torch_export import from_torch  # noqa: E402  # needs torch

attend = torch.nn.functional.scaled_dot_product_attention
HEADS = (1, 4, 16, 64)


class Of(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def zeros_in_equal_rows(x: Any, y: Any) -> Any:
    return torch.where((x == y).all(-1, keepdim=True), 0.0, x)


MODULES: dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "attention with a mask": (lambda: Of(attend), (HEADS, HEADS, HEADS, (1, 4, 16, 16))),
    "cell of an LSTM": (lambda: torch.nn.LSTMCell(32, 32), ((4, 32),)),
    "zeros in rows that are equal": (lambda: Of(zeros_in_equal_rows), ((5, 28), (5, 28))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not compilers(), reason="needs NVRTC or nvcc")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_a_gpu_program(name: str, dtype: str) -> None:
    make, shapes = MODULES[name]
    module = make().eval().to(getattr(torch, dtype))
    examples = tuple(torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes)
    scheduled = schedule_model(parse_container(from_torch(module, examples)[0]), HOPPER, {}).module
    assert all(code[:4] == b"\x7fELF" for code in compile_gpu_model(scheduled, HOPPER).codes)
