"""Rewrites of products keep results and leave no kernel that only moves: small graphs against themselves unprepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests.compiler.graphs import GPU, Graph, check, kernels, linear
from tests.compiler.programs import TARGET
from tuner.graph.prepare import workload_module
from tuner.graph.reshape_transpose import followed
from tuner.space.tiles import find_contraction
from tuner.tasks import workload_functions
from tuner.tvm_compat import Schedule, relax


@pytest.mark.parametrize("batch", [1, 3])
def test_attention_is_three_products_and_a_softmax(batch: int) -> None:
    rows, heads, size = 48, 2, 16
    width = heads * size
    graph = Graph()
    x = graph.tensor(batch, rows, width)
    weights = [(graph.tensor(width, width), graph.tensor(width)) for _ in range(3)]

    def make(emit: Any) -> Any:
        parts = []
        for weight, bias in weights:
            split = emit(relax.op.reshape(linear(emit, x, weight, bias), [batch, rows, heads, size]))
            parts.append(emit(relax.op.permute_dims(split, [0, 2, 1, 3])))
        q, k, v = parts
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        scores = emit(relax.op.nn.softmax(emit(relax.op.multiply(scores, relax.const(0.25, "float32")))))
        read = emit(relax.op.permute_dims(emit(relax.op.matmul(scores, v)), [0, 2, 1, 3]))
        return relax.op.reshape(read, [batch, rows, width])

    prepared = check(graph, make)
    projection = "matmul_add" if batch == 1 else "einsum_add"
    assert kernels(prepared) == sorted(["einsum", "einsum_multiply", projection, "softmax"])
    contractions = [
        find_contraction(Schedule(workload_module(function)))
        for name, function, _ in workload_functions(prepared)
        if "softmax" not in name.name_hint
    ]
    # The design space of register tiles takes all three, and may lay out the weights of one.
    assert sorted(found.prepacked for found in contractions if found is not None) == [False, False, True]


def test_a_product_of_a_tensor_with_itself_keeps_its_transposition() -> None:
    """Else its block would read one tensor in two ways, and would have no tiles."""
    graph = Graph()
    x = graph.tensor(3, 48, 32)

    def make(emit: Any) -> Any:
        return relax.op.matmul(x, emit(relax.op.permute_dims(x, [0, 2, 1])))

    prepared = check(graph, make)
    assert kernels(prepared) == ["matmul", "transpose"]
    product = next(f for name, f, _ in workload_functions(prepared) if "matmul" in name.name_hint)
    assert find_contraction(Schedule(workload_module(product))) is not None


@pytest.mark.parametrize("mask", [None, "BottomRight"])
def test_attention_operators_are_written_out(mask: str | None) -> None:
    graph = Graph()
    q, k, v = graph.tensor(1, 5, 2, 16), graph.tensor(1, 7, 2, 16), graph.tensor(1, 7, 2, 16)
    bias = graph.tensor(1, 1, 5, 7)

    def make(emit: Any) -> Any:
        return relax.op.nn.attention(q, k, v, None if mask else bias, causal_mask=mask)

    assert kernels(check(graph, make, inputs=4)) == ["einsum", "einsum_multiply_add", "softmax"]


def test_one_projection_of_stacked_heads_is_the_same_workload_as_three() -> None:
    rows, heads, size = 12, 2, 16
    width = heads * size

    def stacked(emit: Any, x: Any, weight: Any, bias: Any) -> Any:
        split = emit(relax.op.reshape(linear(emit, x, weight, bias), [1, rows, 3, heads, size]))
        moved = emit(relax.op.permute_dims(split, [2, 0, 3, 1, 4]))
        parts = [emit(relax.op.strided_slice(moved, [0], [part], [part + 1])) for part in range(3)]
        return weighted(emit, *(emit(relax.op.squeeze(part, [0, 1])) for part in parts))

    def separate(emit: Any, x: Any, *tensors: Any) -> Any:
        parts = []
        for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
            split = emit(relax.op.reshape(linear(emit, x, weight, bias), [1, rows, heads, size]))
            parts.append(emit(relax.op.squeeze(emit(relax.op.permute_dims(split, [0, 2, 1, 3])), [0])))
        return weighted(emit, *parts)

    def weighted(emit: Any, q: Any, k: Any, v: Any) -> Any:
        return relax.op.matmul(emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 2, 1])))), v)

    digests = []
    for make, shapes in (
        (stacked, [(3 * width, width), (3 * width,)]),
        (separate, [(width, width), (width,)] * 3),
    ):
        graph = Graph()
        tensors = [graph.tensor(1, rows, width), *(graph.tensor(*shape) for shape in shapes)]
        prepared = check(graph, lambda emit, make=make, tensors=tensors: make(emit, *tensors))
        digests.append({digest for _, _, digest in workload_functions(prepared)})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 3


def test_matmuls_that_read_one_tensor_are_merged_with_the_common_part_of_their_epilogues() -> None:
    graph = Graph()
    x, other = graph.tensor(6, 32), graph.tensor(6, 16)
    weights = [graph.tensor(32, 16) for _ in range(4)]
    biases = [graph.tensor(16) for _ in range(4)]

    def make(emit: Any) -> list[Any]:
        products = [emit(relax.op.matmul(x, weight)) for weight in weights]
        sums = [emit(relax.op.add(product, bias)) for product, bias in zip(products, biases, strict=True)]
        gated = emit(relax.op.multiply(emit(relax.op.nn.silu(sums[0])), sums[1]))
        return [gated, emit(relax.op.nn.relu(sums[2])), emit(relax.op.add(sums[3], other))]

    prepared = check(graph, make, inputs=2)
    assert sum("matmul" in name for name in kernels(prepared)) == 1
    assert "matmul_add" in kernels(prepared)


def test_a_long_computation_of_weights_is_followed_once_for_each_of_its_parts() -> None:
    graph = Graph()
    x, first, second = graph.tensor(6, 16), graph.tensor(16, 16), graph.tensor(16, 16)

    def make(emit: Any) -> Any:
        weights = [first, second]
        for _ in range(30):  # Of which each reads both: as a tree, 2^30 calls.
            total = emit(relax.op.add(*weights))
            weights = [emit(relax.op.tanh(total)), emit(relax.op.multiply(total, relax.const(0.25, "float32")))]
        return [emit(relax.op.matmul(x, weight)) for weight in weights]

    assert sum("matmul" in name for name in kernels(check(graph, make))) == 1


def test_matmuls_whose_parts_would_not_be_aligned_in_memory_are_not_merged() -> None:
    graph = Graph()
    x, weights = graph.tensor(3, 32), [graph.tensor(32, 5) for _ in range(2)]
    prepared = check(graph, lambda emit: [emit(relax.op.matmul(x, weight)) for weight in weights])
    assert kernels(prepared) == ["matmul", "matmul"]


@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_one_product_without_a_copy(bias: bool) -> None:
    graph = Graph()
    x, weight, shift = graph.tensor(1, 3, 8, 12), graph.tensor(16, 3, 4, 4), graph.tensor(16)

    def make(emit: Any) -> Any:
        y = emit(relax.op.nn.conv2d(x, weight, strides=4))
        if bias:
            y = emit(relax.op.add(y, emit(relax.op.reshape(shift, [1, 16, 1, 1]))))
        return relax.op.permute_dims(emit(relax.op.reshape(y, [1, 16, 6])), [0, 2, 1])

    assert kernels(check(graph, make)) == ["einsum_add" if bias else "einsum"]


def test_the_first_convolution_reads_the_input_as_it_comes() -> None:
    graph = Graph()
    x, first, second = graph.tensor(2, 3, 9, 9), graph.tensor(16, 3, 3, 3), graph.tensor(16, 1, 3, 3)

    def make(emit: Any) -> Any:
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, first, strides=2, padding=1))))
        y = emit(relax.op.nn.conv2d(y, second, padding=1, groups=16))
        pooled = emit(relax.op.mean(y, [2, 3], keepdims=True))
        return relax.op.reshape(pooled, [2, 16])

    assert kernels(check(graph, make)) == ["conv2d", "conv2d_relu", "mean"]


@pytest.mark.parametrize("target", [TARGET, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("convolution", "space", "padded"),
    [
        (relax.op.nn.conv1d, (9,), [3, 0]),
        (relax.op.nn.conv2d, (7, 5), [0, 2, 3, 1]),
        (relax.op.nn.conv3d, (4, 5, 3), [1, 0, 2, 3, 0, 2]),
    ],
)
def test_zero_padding_that_several_convolutions_read_is_theirs(
    convolution: Any, space: tuple[int, ...], padded: list[int], target: Target
) -> None:
    graph = Graph()
    ones = (1,) * len(space)
    x, entry = graph.tensor(2, 4, *space), graph.tensor(8, 4, *ones)
    first, second = graph.tensor(6, 8, *(2 * one for one in ones)), graph.tensor(6, 8, *(3 * one for one in ones))

    def make(emit: Any) -> Any:
        y = emit(relax.op.nn.relu(emit(convolution(x, entry))))
        y = emit(relax.op.nn.pad(y, [0, 0, 0, 0, *padded]))
        return [emit(convolution(y, first)), emit(convolution(y, second, padding=1, strides=2))]

    names = kernels(check(graph, make, target=target))
    assert not any("pad" in name for name in names)
    assert sum("conv" in name for name in names) == 3


def test_sums_of_weights_are_made_when_they_are_bound() -> None:
    graph = Graph()
    x, table, kind, shift = graph.tensor(4, 8), graph.tensor(4, 8), graph.tensor(1, 8), graph.tensor(8)

    def make(emit: Any) -> Any:
        total = x
        for each in (table, kind, shift):
            total = emit(relax.op.add(total, each))
        return relax.op.nn.relu(total)

    prepared = check(graph, make)
    ((_, function, _),) = workload_functions(prepared)
    assert len(function.params) == 3  # x, the sum of all, the result


def random_chain(rng: np.random.Generator, shape: Sequence[int]) -> list[tuple[str, list[int]]]:
    steps: list[tuple[str, list[int]]] = []
    extents = list(shape)
    for _ in range(int(rng.integers(1, 6))):
        if rng.random() < 0.5:
            axes = [int(axis) for axis in rng.permutation(len(extents))]
            extents = [extents[axis] for axis in axes]
            steps.append(("permute", axes))
            continue
        factors = [f for extent in extents for f in ((2, extent // 2) if extent % 2 == 0 else (extent,))]
        cut = sorted(rng.choice(len(factors) + 1, size=int(rng.integers(0, 4))))
        parts = np.split(np.array(factors), cut)
        extents = [int(np.prod(part)) for part in parts]
        steps.append(("reshape", list(extents)))
    return steps


def applied(array: np.ndarray, steps: Sequence[tuple[str, list[int]]]) -> np.ndarray:
    for kind, wanted in steps:
        array = array.transpose(wanted) if kind == "permute" else array.reshape(wanted)
    return array


def test_a_chain_of_movements_is_one() -> None:
    rng = np.random.default_rng(1)
    still = told = 0
    for _ in range(400):
        shape = [int(extent) for extent in rng.choice([1, 2, 3, 4, 6], size=int(rng.integers(1, 5)))]
        steps = random_chain(rng, shape)
        array = np.arange(np.prod(shape)).reshape(shape)
        expected = applied(array, steps)
        if (movement := followed(shape, steps)) is None:
            continue
        told += 1
        moved = array.reshape(movement.split).transpose(movement.axes).reshape(expected.shape)
        np.testing.assert_array_equal(moved, expected)
        is_still = np.array_equal(expected.ravel(), array.ravel())
        assert movement.moves_nothing == is_still
        still += is_still
    assert told > 300
    assert still > 30
