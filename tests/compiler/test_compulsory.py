"""The least work of a workload, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.programs import workload
from tuner.tvm_compat import load_ir, relax, te
from tuner.workload.compulsory import compulsory_bytes, least_flops, winograd_saving

SIZE, CHANNELS, FILTERS = 14, 16, 32


def convolution(kernel: int, stride: int, padding: int) -> Any:
    def make(builder: Any, data: Any, weight: Any) -> Any:
        options = {"strides": stride, "padding": padding, "data_layout": "NHWC", "kernel_layout": "HWIO"}
        return builder.emit(relax.op.nn.conv2d(data, weight, **options))

    shapes = (1, SIZE, SIZE, CHANNELS), (kernel, kernel, CHANNELS, FILTERS)
    return load_ir(workload(make, *shapes).ir)["main"]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "pairs"),
    [
        # (output, tap) pairs of one axis that meet no padding, and Winograd's 2 per axis where it applies.
        (1, 1, 0, 14),
        (1, 2, 0, 7),
        (3, 1, 0, 12 * 3 / 2),
        (3, 1, 1, (14 * 3 - 2) / 2),
        (3, 2, 1, 7 * 3 - 1),
        (5, 1, 2, 14 * 5 - 6),
    ],
)
def test_a_convolution_multiplies_at_least_so_often(kernel: int, stride: int, padding: int, pairs: float) -> None:
    found = least_flops(convolution(kernel, stride, padding))
    assert found == pytest.approx(2 * pairs**2 * CHANNELS * FILTERS)


def test_a_transposed_convolution_skips_the_zeros_between_its_inputs() -> None:
    def make(builder: Any, data: Any, weight: Any) -> Any:
        return builder.emit(relax.op.nn.conv2d_transpose(data, weight, strides=2, padding=1))

    found = least_flops(load_ir(workload(make, (1, 16, 7, 7), (16, 8, 4, 4)).ir)["main"])
    pairs = sum((place + tap - 2) % 2 == 0 and 0 <= place + tap - 2 < 14 for place in range(14) for tap in range(4))
    assert found == 2 * pairs**2 * 16 * 8


def test_winograd_saves_in_windows_of_three_that_move_by_one() -> None:
    assert winograd_saving([(3, 1, 1), (3, 1, 1)]) == 4
    assert winograd_saving([(3, 2, 1), (3, 1, 2), (5, 1, 1)]) == 1


def test_a_strided_window_leaves_inputs_unread() -> None:
    def elements(kernel: int, stride: int, padding: int) -> float:
        return compulsory_bytes(convolution(kernel, stride, padding)) / 4

    weights = CHANNELS * FILTERS
    assert elements(1, 1, 0) == 14 * 14 * CHANNELS + weights + 14 * 14 * FILTERS
    assert elements(1, 2, 0) == 7 * 7 * CHANNELS + weights + 7 * 7 * FILTERS
    assert elements(3, 2, 1) == 14 * 14 * CHANNELS + 9 * weights + 7 * 7 * FILTERS


def test_a_chain_of_reductions_counts_their_steps_and_reads_its_input_once() -> None:
    def make(builder: Any, data: Any) -> Any:
        return builder.emit(relax.op.nn.softmax(data))

    function = load_ir(workload(make, (128, 256)).ir)["main"]
    assert least_flops(function) == 2 * 128 * 256
    assert compulsory_bytes(function) == 2 * 4 * 128 * 256


@pytest.mark.parametrize(("dtype", "flops"), [("float32", 2 * 16 * 24 * 32), ("float16", 0)])
def test_nothing_is_certain_of_numbers_with_faster_instructions(dtype: str, flops: int) -> None:
    left, right = te.placeholder((16, 32), dtype), te.placeholder((32, 24), dtype)
    k = te.reduce_axis((0, 32))
    product = te.compute((16, 24), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k))
    assert least_flops(te.create_prim_func([left, right, product])) == flops
