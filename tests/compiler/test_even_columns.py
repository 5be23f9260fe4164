"""Columns of products with weights fill vectors, whatever their number, and results are what they were."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # needs torch

from pitchpipe.wire.target import Target  # noqa: E402
from tests.compiler.test_torch_layers import check, prepared  # noqa: E402
from tuner.graph.prepare import prepare  # noqa: E402
from tuner.ingest import DEFAULT_LIMITS  # noqa: E402
from tuner.ingest.relax_reader import read_relax  # noqa: E402
from tuner.ingest.torch_export import from_torch  # noqa: E402
from tuner.tvm_compat import load_ir  # noqa: E402

CASES = {
    # name: (module, input, columns of the product)
    "linear": (nn.Linear(64, 21), (9, 64), 24),
    "linear of three dimensions": (nn.Linear(64, 21), (2, 9, 64), 24),
    "many columns": (nn.Linear(64, 1001), (9, 64), 1024),
    "more": (nn.Linear(64, 1030), (1, 64), 1088),
    "columns that fill vectors": (nn.Linear(64, 24), (9, 64), 24),
    "short sums": (nn.Linear(40, 21), (9, 40), 21),
    "convolution": (nn.Conv2d(8, 3, 3, padding=1), (1, 8, 9, 7), 8),
    "convolution of one dimension": (nn.Conv1d(64, 58, 1), (2, 64, 9), 64),
    "convolution of groups": (nn.Conv2d(24, 6, 3, groups=2), (1, 24, 9, 7), 6),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_columns_fill_vectors(name: str) -> None:
    torch.manual_seed(0)
    layer, shape, columns = CASES[name]
    module, x = nn.Sequential(layer, nn.GELU()), torch.randn(*shape)
    mod, *_ = prepared(module, (x,))
    found = [
        int(function.params[-1].ty.shape[-1])
        for variable, function in mod.functions.items()
        if any(each in variable.name_hint for each in ("matmul", "conv"))
    ]
    assert found == [columns]
    check(module, x)


@pytest.mark.parametrize(
    ("mcpu", "rows", "columns", "filled"),
    [
        ("znver5", 9, 116, 128),
        ("haswell", 9, 116, 120),
        ("znver5", 9, 1000, 1024),
        ("haswell", 9, 1000, 1000),
        ("znver5", 9, 24, 24),
        ("znver5", 1, 1000, 1000),
    ],
)
def test_columns_fill_the_vectors_of_the_processor(mcpu: str, rows: int, columns: int, filled: int) -> None:
    """From some columns on: a vector that is half empty costs as much as a full one."""
    data, _ = from_torch(nn.Linear(64, columns).eval(), (torch.randn(rows, 64),))
    target = Target.parse({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})
    mod = prepare(load_ir(read_relax(data, DEFAULT_LIMITS).ir), target)
    (product,) = [function for variable, function in mod.functions.items() if "matmul" in variable.name_hint]
    assert int(product.params[1].ty.shape[-1]) == filled


def test_what_reads_a_slice_is_fused_with_the_slice() -> None:
    kernels = check(nn.Sequential(nn.Linear(64, 21), nn.ReLU()), torch.randn(9, 64))
    assert sum(kernels.values()) == 2, "a kernel for the product, and one for what is left of it"


@pytest.mark.parametrize("bias", [False, True])
def test_a_slice_by_the_model_is_not_fused_into_a_product(bias: bool) -> None:
    """Tiles of a causal convolution were written beyond the end of what it keeps."""

    class Causal(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(16, 16, 3, padding=2, dilation=1, bias=bias)

        def forward(self, x: Any) -> Any:
            return x + torch.relu(self.convolution(x)[..., : x.shape[-1]] * 2)

    torch.manual_seed(0)
    kernels = check(Causal(), torch.randn(4, 16, 37))
    assert not any("conv" in name and "slice" in name for name in kernels), kernels


def test_a_product_whose_parts_are_read_keeps_its_bias() -> None:
    layer = nn.Linear(64, 48)

    class Gated(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return y[:, :24] * y[:, 24:].sigmoid()

    kernels = check(Gated(), torch.randn(9, 64))
    assert any("matmul" in name and "add" in name for name in kernels), kernels


def test_products_of_two_inputs_stay() -> None:
    class Product(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return x @ y.transpose(-1, -2)

    inputs = (torch.randn(21, 64), torch.randn(21, 64))
    mod, *_ = prepared(Product(), inputs)
    (product,) = [function for variable, function in mod.functions.items() if "einsum" in variable.name_hint]
    assert [int(n) for n in product.params[-1].ty.shape] == [21, 21]
    check(Product(), *inputs)
