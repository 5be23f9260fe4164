"""A state space model that is written as steps, and a norm of responses: few kernels, and what eager computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.gpu_programs import HOPPER
from tests.compiler.graphs import kernels
from tests.compiler.test_gpu_default import trace_of
from tests.compiler.test_gpu_models import checked
from tests.gpu_interpreter import run
from tuner.graph.prepare import workload_module
from tuner.schedule.trace import apply_trace
from tuner.tasks import workload_functions

torch = pytest.importorskip("torch")
nn = torch.nn


class Steps(nn.Module):  # type: ignore[misc,name-defined]
    """h = decay * h + x_t, y_t = h c_t, as models of `transformers` without its kernels do it."""

    def __init__(self, steps: int, state: int) -> None:
        super().__init__()
        self.decay, self.read = nn.Linear(24, 24 * state), nn.Linear(24, steps * state)
        self.steps, self.state = steps, state

    def forward(self, x: Any) -> Any:
        decay = torch.sigmoid(self.decay(x).float()).reshape(x.shape[0], self.steps, 24, self.state)
        read = self.read(x).reshape(x.shape[0], self.steps, self.steps, self.state)[:, 0]
        h = decay[:, 0]
        found = []
        for step in range(self.steps):
            h = decay[:, step] * h + x[:, step, :, None].float()
            found.append((h.to(x.dtype) @ read[:, step].unsqueeze(-1))[..., 0])
        return torch.stack(found, dim=1)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_step_of_a_state_space_model_is_two_kernels(batch: int, dtype: str) -> None:
    precision = getattr(torch, dtype)
    prepared = checked(lambda: (Steps(5, 16).to(precision), (torch.randn(batch, 5, 24).to(precision),)))
    names = kernels(prepared)
    assert sum(name.startswith("vector_product") for name in names) == 5
    assert sum("multiply" in name for name in names) == 5
    assert sum(name.startswith("matmul") for name in names) == 2
    assert len(names) <= 14  # With the first step's slice, and what puts the steps together.


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_default_schedule_of_a_product_with_one_column_is_one_kernel_and_right(dtype: str) -> None:
    precision = getattr(torch, dtype)
    prepared = checked(lambda: (Steps(5, 16).to(precision), (torch.randn(1, 5, 24).to(precision),)))
    mod, *_ = (workload_module(f) for name, f, _ in workload_functions(prepared) if "vector_product" in name.name_hint)
    state, read, found = (
        np.random.default_rng(0).normal(size=list(map(int, each.ty.shape))).astype(str(each.ty.dtype))
        for each in mod["main"].params
    )
    lowered = run(apply_trace(mod, trace_of(mod, HOPPER)).mod, HOPPER, [state, read, found])
    assert len(lowered.calls) == 1
    step = read.reshape(-1, 16)[:1] if read.size > 16 else read.reshape(1, 16)
    expected = (state.astype(np.float64) * step).sum(-1)
    np.testing.assert_allclose(found[..., 0], expected, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-3)


class Overflow(nn.Module):  # type: ignore[misc,name-defined]
    """A state beyond half precision, which is infinite where it is read."""

    def forward(self, x: Any, c: Any) -> Any:
        h = (x.float().abs() + 1) * 1e5
        return h.sum(-1), h.half() @ ((c.abs() + 1) * 1e-3)


def test_a_state_is_rounded_where_it_is_read() -> None:
    prepared = checked(lambda: (Overflow(), (torch.randn(2, 6, 16).half(), torch.randn(2, 16, 1).half())))
    assert any(name.startswith("vector_product") for name in kernels(prepared))


class Products(nn.Module):  # type: ignore[misc,name-defined]
    """Products with one column: of many terms, and with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 1))

    def forward(self, a: Any, b: Any, long: Any) -> Any:
        return a @ b, a @ self.weight, long @ long.mean(1, keepdim=True).transpose(1, 2)


def test_other_products_with_one_column_stay_products() -> None:
    prepared = checked(lambda: (Products(), (torch.randn(2, 6, 16), torch.randn(2, 16, 1), torch.randn(2, 6, 300))))
    names = kernels(prepared)
    assert sum("vector_product" in name for name in names) == 1
    assert sum("matmul" in name or "einsum" in name for name in names) == 2


class ResponseNorm(nn.Module):  # type: ignore[misc,name-defined]
    """The block of ConvNeXt V2 around its norm (Woo et al., CVPR 2023)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain, self.bias = (nn.Parameter(torch.randn(1, 1, 1, 4 * width)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        y = nn.functional.gelu(self.wide(x))
        size = torch.linalg.vector_norm(y, ord=2, dim=(1, 2), keepdim=True)
        part = size / (size.mean(dim=-1, keepdim=True) + 1e-6)
        return x + self.narrow(self.gain * (y * part) + self.bias + y)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_norm_of_responses_is_two_kernels_between_two_products(dtype: str) -> None:
    precision = getattr(torch, dtype)
    prepared = checked(lambda: (ResponseNorm(12).to(precision), (torch.randn(2, 6, 6, 12).to(precision),)))
    names = kernels(prepared)
    assert len(names) == 4
    assert sum(name.startswith("matmul") for name in names) == 2
    assert sum(name.endswith("multiply_sum") for name in names) == 1


class Flattened(nn.Module):  # type: ignore[misc,name-defined]
    """Element-wise operators, one of them of two tensors, between a stored tensor and a reduction in another shape."""

    def forward(self, x: Any, y: Any) -> Any:
        z = torch.sigmoid(x) * y + 2.0
        return z.reshape(4, 5, 6).sum(1), torch.sigmoid(x) + y


def test_what_is_reduced_in_another_shape_is_computed_in_it() -> None:
    prepared = checked(lambda: (Flattened(), (torch.randn(20, 6), torch.randn(20, 6))))
    assert not any("reshape" in name for name in kernels(prepared))
