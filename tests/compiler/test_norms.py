"""Norms where float32 is short of digits, where elements are all alike, and in the types that TVM's functions do not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from pitchpipe.model.comparison import difference  # noqa: E402
from tests.compiler.programs import TARGET  # noqa: E402

nn = torch.nn
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]


class Norms(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)
        self.pairs, self.layer = nn.GroupNorm(3, 6), nn.LayerNorm(x.shape[2:])
        self.tensors = [x]
        for weight in self.parameters():
            nn.init.normal_(weight)

    def forward(self, x: Any) -> Any:
        own = nn.functional.batch_norm(x, None, None, training=True)
        rows = nn.functional.group_norm(x[..., 0, 0], 2)
        return self.group(x), self.instance(x), self.pairs(x.flatten(2)), self.layer(x), own, rows


def found_and_expected(x: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What is built for a CPU gives, and what PyTorch gives in float64, rounded to the type of x."""
    torch.manual_seed(0)
    module = Norms(x).to(x.dtype).eval()
    with torch.no_grad():
        found = [*map(np.asarray, through_load(module, TARGET))]
        expected = [each.to(x.dtype).numpy() for each in module.double()(x.double())]
    return found, expected


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, -300.0, 1000.0])
def test_norms_of_elements_that_differ_by_little_are_pytorchs_in_float64(dtype: Any, offset: float) -> None:
    torch.manual_seed(1)
    assert difference(*found_and_expected(torch.randn(2, 6, 9, 7).to(dtype) + offset)) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_norms_of_equal_elements_are_their_biases(dtype: Any) -> None:
    torch.manual_seed(1)
    x = torch.full((2, 6, 9, 7), 255.3, dtype=dtype)
    module = nn.Sequential(nn.GroupNorm(2, 6), nn.InstanceNorm2d(6)).to(dtype).eval()
    module.tensors = [x]
    nn.init.normal_(module[0].bias)
    first = module[:1]
    first.tensors = [x]
    (found,) = map(np.asarray, through_load(first, TARGET))
    assert (found == module[0].bias.detach().numpy().reshape(1, 6, 1, 1)).all()
    assert (np.asarray(through_load(module, TARGET)[0]) == 0).all()
