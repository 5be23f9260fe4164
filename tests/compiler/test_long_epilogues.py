"""Long chains behind a product: compiled in a time that grows with their length, not with all paths through them."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.compiler.programs import TARGET, unchecked
from tests.compiler.test_torch_layers import Of, check, prepared
from tuner.deploy.build import schedule_model
from tuner.graph.long_epilogues import MOST_COPIES
from tuner.tvm_compat import IRModule, Schedule, inline_into_producer, ir, structural_walk, te, tirx

torch = pytest.importorskip("torch")


class Chain(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A dense layer, and `length` steps that each read the one before four times."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.dense, self.length = torch.nn.Linear(64, 64), length

    def forward(self, x: Any) -> Any:
        y = self.dense(x) * 0.1
        for _ in range(self.length):
            y = y - y * y * y
        return y


def test_a_chain_of_24_steps_computes_what_pytorch_does() -> None:
    kernels = check(Chain(24), torch.rand(48, 64))
    assert 1 < sum(kernels.values()) <= 6


def test_the_default_schedule_of_no_kernel_holds_more_copies_than_are_allowed() -> None:
    _, model, _ = prepared(Chain(24), (torch.rand(48, 64),))
    with capture_logs() as refused:
        scheduled = schedule_model(model, TARGET, {}, defaults=unchecked)
    assert not refused
    assert scheduled.defaults
    largest = 0

    def of_store(store: Any) -> None:
        nonlocal largest
        loads: list[Any] = []
        structural_walk(store.value, (ir.TensorLoad, loads.append))
        largest = max(largest, len(loads))

    for _, function in scheduled.checked.values():
        structural_walk(function.body, (tirx.BufferStore, of_store))
    assert 1 < largest <= 4 * MOST_COPIES


def test_an_activation_behind_another_stays_in_the_kernel_of_the_product() -> None:
    layer, functional = torch.nn.Linear(64, 64), torch.nn.functional
    kernels = check(Of(lambda x: functional.silu(functional.gelu(layer(x)))), torch.rand(48, 64))
    assert len(kernels) == 1


def test_what_keeps_a_part_of_a_combination_of_two_products_begins_the_next_kernel() -> None:
    """As the end of a convolution by Fourier transforms, where products of real and imaginary parts are subtracted."""
    a, b = torch.randn(65, 128), torch.randn(65, 128)
    module = Of(lambda x, y: torch.nn.functional.gelu(((x @ a - y @ b) * 0.5)[..., :64]))
    kernels = check(module, torch.rand(2, 32, 65), torch.rand(2, 32, 65))
    assert all("strided_slice" not in name or "matmul" not in name for name in kernels)


def test_a_sum_stays_in_the_kernel_of_what_it_scales() -> None:
    """As the norm of a Llama: a row is scaled by what was computed of it."""
    kernels = check(Of(lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)), torch.rand(48, 64))
    assert len(kernels) <= 2
    assert any("mean" in name and "multiply" in name for name in kernels)


def test_a_stage_of_fewer_elements_is_not_computed_where_its_producer_is() -> None:
    """TVM would write beyond its end."""
    x = te.placeholder((8,), name="x")
    y = te.compute((8,), lambda i: x[i] + 1.0, name="y")
    for extent in (8, 4):
        z = te.compute((extent,), lambda i: y[i] * 2.0, name="z")
        schedule = Schedule(IRModule({"main": te.create_prim_func([x, z])}))
        if extent == 8:
            inline_into_producer(schedule, schedule.get_sblock("z"))
        else:
            with pytest.raises(ValueError, match="another number of elements"):
                inline_into_producer(schedule, schedule.get_sblock("z"))


def test_a_state_that_the_next_step_and_an_output_read_copies_nothing() -> None:
    """A kernel writes it to memory in any case: the steps of an unrolled recurrence are fused as short ones are."""
    layer, steps = torch.nn.Linear(16, 16), 48

    def scan(x: Any) -> Any:
        inputs = layer(x)
        state, read = torch.zeros(x.shape[0], 16), []
        for _ in range(steps):
            state = state * 0.5 + inputs * inputs
            read.append((state * state).sum(-1))
        return torch.stack(read, -1)

    kernels = check(Of(scan), torch.rand(8, 16))
    assert not any("alone" in name for name in kernels)
    assert sum(kernels.values()) <= 2 * steps + 2
