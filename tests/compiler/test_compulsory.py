"""The least work of a workload, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.programs import workload
from tuner.tvm_compat import load_ir, relax, te
from tuner.workload.compulsory import compulsory_bytes, flops_type, least_flops, winograd_saving

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


def product(left_type: str, right_type: str, sums: str) -> Any:
    left, right = te.placeholder((16, 32), left_type), te.placeholder((32, 24), right_type)
    k = te.reduce_axis((0, 32))
    made = te.compute((16, 24), lambda i, j: te.sum(left[i, k].astype(sums) * right[k, j].astype(sums), axis=k))
    return te.create_prim_func([left, right, made])


@pytest.mark.parametrize(("dtype", "flops"), [("float32", 2 * 16 * 24 * 32), ("float16", 0)])
def test_nothing_is_certain_of_sums_of_a_shorter_type(dtype: str, flops: int) -> None:
    assert least_flops(product(dtype, dtype, dtype)) == flops


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        *((one, one, one) for one in ("float32", "float64", "float16", "bfloat16")),
        ("float16", "float32", "float32"),
        ("int8", "int8", "float32"),
    ],
)
def test_the_type_of_the_factors_is_told_whatever_they_are_summed_in(left: str, right: str, found: str) -> None:
    function = product(left, right, "float64" if "float64" in (left, right) else "float32")
    assert flops_type(function) == found
    if found != "float64":
        assert least_flops(function) == 2 * 16 * 24 * 32
