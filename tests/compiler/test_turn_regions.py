"""Regions of a graph in the layout of what is around them: what they compute, and the copies that are saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests.compiler.graphs import GPU, Graph, check, kernels
from tests.compiler.programs import TARGET
from tuner.graph.def_use import DefUse, op_name
from tuner.graph.turn_regions import turn_regions
from tuner.tvm_compat import relax, tvm_ffi

Emit = Callable[[Any], Any]
KINDS = pytest.mark.parametrize("target", [GPU, TARGET], ids=["cuda", "cpu"])


def _norm_of_channels(emit: Emit, x: Any, scale: Any) -> Any:
    """As users of images write it: x is [1, C, H, W]."""
    centred = emit(relax.op.subtract(x, emit(relax.op.mean(x, [1], keepdims=True))))
    variance = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), [1], keepdims=True))
    deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, relax.const(1e-5, "float32")))))
    return emit(relax.op.multiply(emit(relax.op.divide(centred, deviation)), scale))


def _shuffled(emit: Emit, x: Any) -> Any:
    """A pixel shuffle by 2."""
    _, channels, height, width = map(int, x.ty.shape)
    y = emit(relax.op.reshape(x, [1, channels // 4, 2, 2, height, width]))
    y = emit(relax.op.permute_dims(y, [0, 1, 4, 2, 5, 3]))
    return emit(relax.op.reshape(y, [1, channels // 4, 2 * height, 2 * width]))


def _has_no_copies(prepared: Any) -> bool:
    return not any(set(name.split("_")) <= {"reshape", "transpose"} for name in kernels(prepared))


@KINDS
def test_a_stream_that_begins_with_patches_lies_as_its_convolutions_do(target: Target) -> None:
    graph = Graph()
    x, first = graph.tensor(1, 6, 8, 8), graph.tensor(8, 6, 3, 3)
    patches, scale, weight, last = (
        graph.tensor(16, 8, 2, 2),
        graph.tensor(16, 1, 1),
        graph.tensor(16, 16, 1, 1),
        graph.tensor(4, 16, 1, 1),
    )

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.conv2d(emit(relax.op.nn.conv2d(x, first, padding=1)), patches, strides=2))
        y = emit(relax.op.add(y, emit(relax.op.nn.conv2d(_norm_of_channels(emit, y, scale), weight))))
        return emit(relax.op.mean(emit(relax.op.nn.conv2d(_norm_of_channels(emit, y, scale), last)), [2, 3]))

    prepared = check(graph, make, target=target)
    assert _has_no_copies(prepared)
    assert [name for name in kernels(prepared) if "add" in name and "conv" in name] == ["conv2d_add"]


@KINDS
def test_a_stream_that_begins_with_a_pixel_shuffle_lies_as_its_convolutions_do(target: Target) -> None:
    graph = Graph()
    x, first = graph.tensor(1, 6, 4, 4), graph.tensor(32, 6, 3, 3)
    scale, weight, last = graph.tensor(8, 1, 1), graph.tensor(8, 8, 3, 3), graph.tensor(4, 8, 1, 1)

    def make(emit: Emit) -> Any:
        y = _shuffled(emit, emit(relax.op.nn.conv2d(x, first, padding=1)))
        y = emit(relax.op.add(y, emit(relax.op.nn.conv2d(_norm_of_channels(emit, y, scale), weight, padding=1))))
        return emit(relax.op.mean(emit(relax.op.nn.conv2d(_norm_of_channels(emit, y, scale), last)), [2, 3]))

    names = kernels(check(graph, make, target=target))
    assert [name for name in names if "transpose" in name] in (["transpose"], ["reshape_transpose"])  # the shuffle


@KINDS
@pytest.mark.parametrize("axis", [1, -3])
def test_operators_along_an_axis_follow_it(target: Target, axis: int) -> None:
    graph = Graph()
    x, patches, last = graph.tensor(1, 6, 8, 12), graph.tensor(8, 6, 2, 2), graph.tensor(3, 12, 1, 1)

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.conv2d(x, patches, strides=2))
        y = emit(relax.op.add(y, relax.const(np.arange(24, dtype="float32").reshape(1, 1, 4, 6))))
        part = emit(relax.op.strided_slice(y, [1], [2], [6]))
        most = emit(relax.op.max(y, [2, axis], keepdims=True))
        chosen = emit(relax.op.where(emit(relax.op.less(y, most)), y, relax.const(0.5, "float32")))
        both = emit(relax.op.concat([emit(relax.op.nn.softmax(chosen, axis)), part], axis))
        return emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(both, last))))

    names = kernels(check(graph, make, target=target))
    assert [name for name in names if "transpose" in name] == ["transpose"]  # of the result


def test_a_region_whose_turn_saves_nothing_stays() -> None:
    graph = Graph()
    x, y = graph.tensor(1, 4, 6, 8), graph.tensor(1, 8, 4, 6)

    def make(emit: Emit) -> Any:
        turned = emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        total = emit(relax.op.add(turned, y))
        return [emit(relax.op.exp(total)), emit(relax.op.nn.softmax(total, 1))]

    module = graph.module(make, 2)
    assert tvm_ffi.structural_equal(turn_regions(module), module)
    check(graph, make, 2, target=GPU)


def test_neighbours_are_turned_one_after_the_other() -> None:
    """Both would save the transpose between them, which is there once."""
    graph = Graph()
    x, y, z = graph.tensor(4, 6, 8), graph.tensor(6, 8, 4), graph.tensor(4, 6, 8)

    def make(emit: Emit) -> Any:
        first = emit(relax.op.nn.relu(emit(relax.op.add(x, z))))
        second = emit(relax.op.multiply(emit(relax.op.permute_dims(first, [1, 2, 0])), y))
        return emit(relax.op.permute_dims(emit(relax.op.exp(second)), [2, 0, 1]))

    names = kernels(check(graph, make, 3, target=GPU))
    assert len(names) <= 2, names


def test_a_reshape_of_a_reshape_is_a_view() -> None:
    graph = Graph()
    x, weight, patches = graph.tensor(1, 8, 8, 8), graph.tensor(8, 8, 3, 3), graph.tensor(16, 8, 2, 2)

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.conv2d(x, weight, padding=1))
        y = emit(relax.op.nn.relu(emit(relax.op.add(y, emit(relax.op.nn.conv2d(y, weight, padding=1))))))
        return emit(relax.op.mean(emit(relax.op.nn.conv2d(y, patches, strides=2)), [2, 3]))

    assert _has_no_copies(check(graph, make, target=GPU))


OPERATORS: dict[str, Callable[[Any], Any]] = {
    "padding of one side": lambda x: relax.op.nn.pad(x, [1, 0, 0, 2, 0, 0], "constant", -1.5),
    "padding by reflection": lambda x: relax.op.nn.pad(x, [0, 0, 2, 1, 0, 0], "reflect"),
    "every other element": lambda x: relax.op.strided_slice(x, [0, 2], [1, 0], [4, 6], [2, 3]),
    "backwards": lambda x: relax.op.strided_slice(x, [1], [4], [0], [-1]),
    "variance": lambda x: relax.op.variance(x, [-3, 1], keepdims=True),
    "least": lambda x: relax.op.min(x, [0], keepdims=True),
    "logarithm of softmax": lambda x: relax.op.nn.log_softmax(x, 0),
    "what has fewer dimensions": lambda x: relax.op.multiply(x, relax.const(np.arange(6, dtype="float32"))),
    "a number": lambda x: relax.op.power(x, relax.const(2.0, "float32")),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_between_transposes_is_computed_as_its_operand_lies(name: str) -> None:
    graph = Graph()
    x = graph.tensor(6, 4, 5)

    def make(emit: Emit) -> Any:
        y = emit(OPERATORS[name](emit(relax.op.permute_dims(x, [1, 2, 0]))))
        return emit(relax.op.exp(emit(relax.op.permute_dims(y, [2, 0, 1]))))

    turned = turn_regions(graph.module(make, 1))
    assert "relax.permute_dims" not in {op_name(call) for call in DefUse(turned["main"]).values.values()}
    check(graph, make)
