"""Between two convolutions everything is channels last: nothing is transposed for what stands between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch
from torch.nn import functional  # noqa: E402

from tests.compiler.test_torch_layers import check  # noqa: E402

CHANNELS = 8


class Between(nn.Module):  # type: ignore[misc]
    """Two convolutions, and a function between them."""

    def __init__(self, function: Callable[[Any], Any], dimensions: int) -> None:
        super().__init__()
        made = (nn.Conv1d, nn.Conv2d)[dimensions - 1]
        self.first, self.second = made(4, CHANNELS, 3, padding=1), made(CHANNELS, 4, 3)
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.second(self.function(self.first(x)))


LAST = torch.arange(7.0) > 3
FUNCTIONS = {
    "relu": nn.ReLU(),
    "leaky relu": nn.LeakyReLU(),
    "prelu": nn.PReLU(CHANNELS),
    "prelu and a norm of one group": nn.Sequential(nn.PReLU(), nn.GroupNorm(1, CHANNELS)),
    "elu": nn.ELU(),
    "selu and elu": nn.Sequential(nn.SELU(), nn.ELU()),
    "celu": nn.CELU(),
    "mish": nn.Mish(),
    "softplus": nn.Softplus(),
    "soft shrinkage": nn.Softshrink(),
    "logarithm of a sigmoid": nn.LogSigmoid(),
    "hard swish": nn.Hardswish(),
    "bound from below": lambda x: x.clamp(min=-0.1),
    "bound from above": lambda x: x.clamp(max=0.1),
    "choice by channel": lambda x: torch.where(x.mean(-1, keepdim=True) > 0, x, 0.5),
    "reflection": lambda x: functional.pad(x, (1,) * (2 * x.ndim - 4), mode="reflect"),
    "replication and elu": lambda x: functional.elu(functional.pad(x, (2,) * (2 * x.ndim - 4), mode="replicate")),
    "rows in another order": lambda x: x.index_select(-1, torch.tensor([3, 3, 0, 5, 1, 2])),
    "choice between ranks": lambda x: torch.where(x > 0, x, x.mean()),
    "scale of channels": lambda x: x + x * torch.arange(8.0)[(..., *[None] * (x.ndim - 2))],
    "mean of images over windows without padding": lambda x: (
        functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x if x.ndim == 4 else x
    ),
    "choice of numbers": lambda x: x * torch.where(x > 0.1, 1.0, -0.5),
}


@pytest.mark.long
@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_transposed_for_what_stands_between_convolutions(name: str, dimensions: int) -> None:
    torch.manual_seed(0)
    kernels = check(Between(FUNCTIONS[name], dimensions), torch.randn(1, 4, *(9, 7)[-dimensions:]))
    # The first convolution reads its input as it lies, or in one dimension transposed; the result is transposed.
    assert sum(count for name, count in kernels.items() if "transpose" in name) <= (2 if dimensions == 1 else 1)


def test_padding_by_reflection_copies_an_image_once() -> None:
    kernels = check(Between(FUNCTIONS["reflection"], 2), torch.randn(1, 4, 9, 7))
    assert sum(count for name, count in kernels.items() if "take" in name) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(LAST, x, 0.5),
        lambda x: torch.where(LAST, x, functional.elu(x).flip(1)),
        lambda x: torch.where(x > 0, x, x.cumsum(-1)),
        lambda x: x.index_select(2, torch.tensor([1, 0, 1])) + x.index_select(2, torch.tensor([1, 0, 1]))[..., [0]],
        lambda x: x[:, :, [5, 0, 2]][:, :, :, [1, 1, -1]][:, [7, 6, 5, 4, 0, 0, 1, 2]][:, :, [2, 1, 1]],
        lambda x: x.transpose(-1, -2).expm1().transpose(-1, -2),
    ],
    ids=["row", "row and flipped", "scan", "rows read twice", "rows of rows", "transposed by the model"],
)
def test_what_lies_otherwise_is_right(function: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    check(Between(function, 2), torch.randn(1, 4, 9, 7))


def test_a_function_of_an_elements_place_stays_where_it_is() -> None:
    from tests.compiler.gpu_cases import one_function
    from tuner.graph.sink_transposes import _element
    from tuner.tvm_compat import te

    def made(element: Callable[..., Any]) -> Any:
        return one_function(lambda x: [te.compute(x.shape, lambda i, j: element(x, i, j))], ((4, 4), "float32"))["main"]

    assert _element(made(lambda x, i, j: x[i, j] * x[i, j])) is not None
    assert _element(made(lambda x, i, j: x[i, j] * (i + j).astype("float32"))) is None
    assert _element(made(lambda x, i, j: x[j, i])) is None
    assert _element(made(lambda x, i, j: x[0, j])) is None
