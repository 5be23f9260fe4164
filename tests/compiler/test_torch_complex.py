"""Complex numbers inside a program: what PyTorch computes, its compiled form does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from tests.compiler.programs import TARGET  # noqa: E402
from tests.compiler.test_torch_operators import Of  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("unoptimised")]

FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "real plus imaginary": lambda x, y, _: x + 1j * y,
    "real and complex": lambda x, _, z: (z + x, x - z, z * x, x / z, z / x),
    "numbers": lambda _x, _y, z: (z - 1, 1 - z, z + 2j, z * (2 - 1j), z / 2j, 1 / z),
    "part by part": lambda x, y, z: torch.add(torch.cat([z, torch.complex(y, x)]), torch.cat([z, z]), alpha=2),
    "padding": lambda _x, _y, z: torch.nn.functional.pad(z, (1, 0), value=3.0),
    "chosen": lambda x, y, z: (torch.where(x > 0, z, y), z.masked_fill(x > 0, 2)),
    "functions": lambda _x, _y, z: (z.exp(), z.log(), z**2, z**3, z.abs(), z.angle()),
    "products": lambda _x, _y, z: (z @ z.T, torch.nn.functional.linear(z, z, z[:, 0]), torch.einsum("ab,cb->ac", z, z)),
    "diagonal state space": lambda x, y, z: (torch.exp(z[..., None] * torch.arange(5)) - 1.0) / (x + 1j * y)[..., None],
}


def parts(found: Any) -> list[Any]:
    """Real tensors."""
    return [torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in found]


def test_arithmetic_of_complex_numbers_is_pytorchs() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 4, generator=generator) for _ in range(2))

    def all_of_them(x: Any, y: Any) -> list[Any]:
        found = [make(x, y, torch.complex(x, y)) for make in FUNCTIONS.values()]
        return parts(torch.utils._pytree.tree_leaves(found))

    for found, wanted in zip(through_load(Of(all_of_them, x, y).eval(), TARGET), all_of_them(x, y), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)
