"""Default schedules of reductions to several values on a GPU: places of extrema, and the two sums of a norm."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.compiler.gpu_cases import check, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.graphs import Graph
from tests.compiler.test_gpu_default import trace_of
from tests.gpu_interpreter import run
from tuner.graph import image_norms
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest.aten.reductions import arg_reducer
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import IRModule, relax, te, tirx, topi

F, H = "float32", "float16"


def places(shape: Sequence[int], axis: int, dtype: str, largest: bool, last: bool) -> Any:
    """A module that finds the places of the extrema along an axis of two, and the extrema."""
    reducer = arg_reducer(largest, last)

    def make(x: Any) -> list[Any]:
        k = te.reduce_axis((0, shape[axis]), "k")

        def element(i: Any) -> Any:
            place = (k.var, i) if axis == 0 else (i, k.var)
            return reducer((k.var.astype("int64"), x[place]), axis=k)

        return list(te.compute((shape[1 - axis],), element, name="arg"))

    return one_function(make, (tuple(shape), dtype))


def expected(x: np.ndarray, axis: int, largest: bool, last: bool) -> np.ndarray:
    turned = x if largest else -x
    if last:
        return np.asarray(x.shape[axis] - 1 - np.argmax(np.flip(turned, axis), axis))
    return np.asarray(np.argmax(turned, axis))


def with_ties(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Few different numbers; of floats some rows have several NaN, and one is all of an infinity."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape).astype(dtype)
    if dtype == F:
        x[x == 0] = -0.0
        x[rng.random(shape) < 1.5 / shape[1]] = np.nan
        x[0] = -np.inf
        x[-1] = np.inf
    return x


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("shape", "axis", "kernels"),
    [((40, 1000), 1, 1), ((9, 17), 1, 1), ((300, 5), 1, 1), ((40, 1), 1, 1), ((300, 70), 0, 1), ((2, 70001), 1, 2)],
)
@pytest.mark.parametrize("dtype", [F, "int32"])
@pytest.mark.parametrize(("largest", "last"), [(True, False), (False, False), (True, True)])
def test_the_place_of_an_extremum_is_the_first_or_last_and_nan_is_before_all(
    shape: tuple[int, int], axis: int, kernels: int, dtype: str, largest: bool, last: bool
) -> None:
    mod = places(shape, axis, dtype, largest, last)
    scheduled = apply_trace(mod, trace_of(mod, HOPPER)).mod
    x = with_ties(shape, dtype)
    found, values = np.full(shape[1 - axis], -7), np.zeros(shape[1 - axis], dtype)
    assert len(run(scheduled, HOPPER, [x, found, values]).calls) == kernels
    np.testing.assert_array_equal(found, expected(x, axis, largest, last))
    np.testing.assert_array_equal(values, np.take_along_axis(x, np.expand_dims(found, axis), axis).reshape(-1))


def half_group_norm(groups: int) -> Any:
    def make(*given: Any) -> list[Any]:
        x, g, s = (topi.cast(each, F) for each in given)
        axes = list(range(2, len(x.shape)))
        return [topi.cast(topi.nn.group_norm(x, g, s, groups, 1, axes), H)]

    return make


def two_pass(groups: int | None) -> Any:
    """As `tuner/graph/image_norms.py` makes them: groups of channels in half precision, or a batch norm in training mode."""

    def make(*given: Any) -> list[Any]:
        if groups is None:
            return [image_norms.instance_norm(*given, 1, [0, 2, 3], 1e-5)]
        x, g, s = (topi.cast(each, F) for each in given)
        return [topi.cast(image_norms.group_norm(x, g, s, groups, 1, [2, 3], 1e-5), H)]

    return make


def activated(channels_last: bool, shape: Sequence[int], groups: int) -> Any:
    """The tensor function of a prepared model, of a norm of groups of channels with its activation; channels lie last
    behind a convolution."""
    graph = Graph()
    x, weight = graph.tensor(*shape, dtype=H), graph.tensor(shape[1], shape[1], 1, 1, dtype=H)
    gamma, beta = graph.tensor(shape[1]), graph.tensor(shape[1])

    def make(emit: Callable[[Any], Any]) -> Any:
        y = emit(relax.op.nn.conv2d(x, weight)) if channels_last else x
        wide = emit(relax.op.astype(y, F))
        normed = emit(relax.op.nn.group_norm(wide, gamma, beta, num_groups=groups, channel_axis=1, axes=[2, 3]))
        return emit(relax.op.nn.silu(emit(relax.op.astype(normed, H))))

    prepared = prepare(graph.module(make, 1), HOPPER)
    (name,) = (each for each in call_counts(prepared) if "group_norm" in each)
    return IRModule({"main": prepared[name].with_attr("global_symbol", "main")})


def norm_of_batch(x: Any, g: Any, s: Any) -> list[Any]:
    """A batch norm in training mode."""
    return [topi.nn.instance_norm(x, g, s, 1, [0, 2, 3])]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "shape", "dtype", "kernels"),
    [
        (half_group_norm(8), (2, 16, 28, 28), H, 1),
        (half_group_norm(3), (2, 9, 7, 5), H, 1),
        (half_group_norm(2), (1, 4, 192, 190), H, 3),
        (norm_of_batch, (3, 5, 14, 13), F, 1),
        (norm_of_batch, (2, 3, 190, 188), F, 3),
        (two_pass(8), (2, 16, 28, 28), H, 1),
        (two_pass(3), (2, 9, 7, 5), H, 1),
        (two_pass(2), (1, 4, 192, 190), H, 5),
        (two_pass(None), (3, 5, 14, 13), F, 1),
        (two_pass(None), (2, 3, 190, 188), F, 5),
    ],
)
def test_a_norm_of_images_is_one_kernel_or_divides_long_rows(make: Any, shape: Any, dtype: str, kernels: int) -> None:
    mod = one_function(make, (shape, dtype), ((shape[1],), dtype), ((shape[1],), dtype))
    assert len(check(mod, HOPPER).lowered.calls) == kernels


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("other", [lambda i, j: (i, 0), lambda i, j: (i, j + 8), lambda i, j: (i, j + 1)])
def test_a_statement_that_reads_a_tensor_at_two_places_computes_what_it_should(dtype: str, other: Any) -> None:
    """The first element of a row stays the same, what lies a whole vector away is aligned, and what is next is not."""

    def make(x: Any) -> list[Any]:
        apart = te.compute((40, 128), lambda i, j: x[i, j] - x[other(i, j)], name="apart")
        k = te.reduce_axis((0, 128), "k")
        total = te.compute((40,), lambda i: te.sum(single(x[i, k] - x[other(i, k)]), axis=k), name="total")
        return [apart, total]

    check(one_function(make, ((40, 136), dtype)), HOPPER)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("shape", "groups"), [((1, 256, 16, 16), 32), ((2, 16, 16, 16), 8), ((2, 12, 9, 7), 3)])
def test_a_norm_of_groups_has_a_block_for_each_and_is_activated_in_it(
    channels_last: bool, shape: Sequence[int], groups: int
) -> None:
    """The activation is of an image, whose channels are no groups; one block had the sums of all groups."""
    (call,) = check(activated(channels_last, shape, groups), HOPPER).lowered.calls
    assert math.prod(call.grid) == shape[0] * groups


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [((300, 128), 0, H), ((70, 96), 0, F), ((3, 49, 128), 1, H), ((2, 70, 40), 1, F), ((4000, 64), 0, H)],
)
def test_several_reductions_of_columns_are_results_of_their_own(shape: Any, axis: int, dtype: str) -> None:
    mod = one_function(
        lambda x: [topi.sum(topi.cast(x, F), axis), topi.max(topi.cast(x, F), axis)], (tuple(shape), dtype)
    )
    check(mod, HOPPER)


def softmax_over(axis: int) -> Callable[..., list[Any]]:
    return lambda x: [topi.cast(topi.nn.softmax(topi.cast(x, F), axis), str(x.dtype))]


def normalised_over(axis: int) -> Callable[..., list[Any]]:
    """By mean and deviation, which reduce one after the other."""

    def make(x: Any) -> list[Any]:
        wide = topi.cast(x, F)
        less = topi.subtract(
            wide, topi.multiply(topi.sum(wide, axis, keepdims=True), tirx.const(1 / int(x.shape[axis]), F))
        )
        squares = topi.sum(topi.multiply(less, less), axis, keepdims=True)
        return [topi.cast(topi.multiply(less, topi.rsqrt(topi.add(squares, tirx.const(1e-3, F)))), str(x.dtype))]

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize("make", [softmax_over, normalised_over])
@pytest.mark.parametrize(
    ("shape", "axis"), [((120, 128), 0), ((2, 120, 128), 1), ((2, 49, 8, 4), 1), ((49, 7), 0), ((3, 200, 64), 1)]
)
def test_two_reductions_of_rows_that_lie_side_by_side_are_one_kernel(
    make: Any, shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    """Two guarded reductions in vectors of rows had no schedule but one thread an element, in three kernels of one block."""
    assert len(check(one_function(make(axis), (shape, dtype)), HOPPER).lowered.calls) == 1


def scaled_by(reduced: Callable[[Any], Any]) -> Callable[..., list[Any]]:
    """Long rows times what is reduced of short ones."""
    return lambda x, y: [topi.cast(topi.multiply(reduced(topi.cast(x, F)), topi.cast(y, F)), str(y.dtype))]


def scaled_and_reduced(axis: int) -> Callable[..., list[Any]]:
    """The largest of short rows times the sums of long ones."""

    def make(x: Any, y: Any) -> list[Any]:
        sums = topi.sum(topi.cast(y, F), axis, keepdims=True)
        return [topi.cast(topi.max(topi.multiply(topi.cast(x, F), sums), axis), str(x.dtype))]

    return make


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize(
    ("make", "short", "long"),
    [
        (scaled_by(topi.nn.softmax), (49, 1), (49, 220)),
        (scaled_by(topi.nn.softmax), (3136, 1), (3136, 48)),
        (scaled_by(lambda x: topi.max(x, 0)), (3, 64), (300, 64)),
        (scaled_by(lambda x: topi.sum(topi.nn.softmax(x, 0), 0)), (12, 64), (300, 64)),
        (scaled_and_reduced(1), (64, 1), (64, 300)),
        (scaled_and_reduced(0), (3, 64), (300, 64)),
    ],
)
def test_a_reduction_of_fewer_columns_than_threads_reads_what_was_written(
    make: Any, short: tuple[int, ...], long: tuple[int, ...], dtype: str
) -> None:
    check(one_function(make, (short, dtype), (long, dtype)), HOPPER)


def depthwise(x: Any, w: Any) -> list[Any]:
    """A window of a channel at a time, summed in single precision; [batch, rows, columns, channels]."""
    n, rows, columns, channels = x.shape
    size = int(w.shape[0])
    i, j = (te.reduce_axis((0, size), name=name) for name in "ij")
    padded = topi.nn.pad(x, (0, size // 2, size // 2, 0))

    def element(b: Any, y: Any, z: Any, c: Any) -> Any:
        return te.sum(single(padded[b, y + i, z + j, c]) * single(w[i, j, c]), axis=[i, j])

    return [te.compute((n, rows, columns, channels), element, name="summed")]


def single(value: Any) -> Any:
    return value.astype(F)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "specs"),
    [
        (depthwise, (((1, 16, 16, 96), H), ((7, 7, 96), H))),
        (depthwise, (((1, 16, 16, 64), H), ((7, 7, 64), H))),
        (depthwise, (((1, 7, 8, 40), H), ((7, 7, 40), H))),
        (lambda x: [topi.max(x, 3)], (((64, 13, 13, 40), "int16"),)),
    ],
)
def test_a_block_keeps_the_partial_results_of_its_own_rows_alone(make: Any, specs: Any) -> None:
    """TVM kept those of whole axes: 786,432 bytes for 64 of 96 channels."""
    source = check(one_function(make, *specs), HOPPER).lowered.source
    arrays = [int(count) for count in re.findall(r"__shared__ .*\[(\d+)\];", source)]
    assert 0 < 4 * sum(arrays) <= 8192
