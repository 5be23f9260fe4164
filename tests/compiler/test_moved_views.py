"""Reshapes beside permutations: views, where nothing is fused with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.compiler.graphs import GPU, Graph, check, kernels
from tuner.graph.prepare import call_counts
from tuner.space.gpu.transposition import find_transposition
from tuner.tvm_compat import Schedule, relax

Emit = Callable[[Any], Any]


def test_a_convolutions_result_is_transposed_as_the_matrix_that_it_is() -> None:
    graph = Graph()
    x, kernel, last = graph.tensor(1, 8, 32, 32), graph.tensor(16, 8, 3, 3), graph.tensor(1024, 3)

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, kernel, padding=1))))
        return emit(relax.op.matmul(emit(relax.op.reshape(y, [16, 1024])), last))

    prepared = check(graph, make, target=GPU)
    assert kernels(prepared) == ["conv2d_relu", "matmul", "transpose"]
    (name,) = (each for each in call_counts(prepared) if "transpose" in each)
    function = prepared[name]
    assert [list(map(int, each.ty.shape)) for each in function.params] == [[1024, 16], [16, 1024]]
    schedule = Schedule(function.with_attr("global_symbol", "main"))
    definition = schedule.get(schedule.get_child_blocks(schedule.get_sblock("root"))[0])
    assert find_transposition(definition, list(definition.iter_vars)) is not None


def test_what_is_reshaped_for_element_wise_work_is_fused_with_it() -> None:
    graph = Graph()
    x, y = graph.tensor(6, 8), graph.tensor(4, 12)

    def make(emit: Emit) -> Any:
        turned = emit(relax.op.permute_dims(emit(relax.op.exp(x)), [1, 0]))
        return emit(relax.op.add(emit(relax.op.reshape(turned, [4, 12])), y))

    assert len(kernels(check(graph, make, 2, target=GPU))) == 1


def test_a_reshaped_result_of_the_function_is_written_as_it_is() -> None:
    graph = Graph()
    x, kernel = graph.tensor(1, 8, 6, 6), graph.tensor(16, 8, 3, 3)

    def make(emit: Emit) -> list[Any]:
        y = emit(relax.op.nn.conv2d(x, kernel, padding=1))
        rows = emit(relax.op.reshape(y, [16, 36]))
        return [rows, emit(relax.op.permute_dims(rows, [1, 0]))]

    check(graph, make, target=GPU)


def test_the_first_elements_of_a_tensor_are_no_view_of_all() -> None:
    """TVM says of such a slice that it is a reshape."""
    graph = Graph()
    x, kernel, last = graph.tensor(1, 8, 6, 6), graph.tensor(16, 8, 3, 3), graph.tensor(36, 5)

    def make(emit: Emit) -> Any:
        rows = emit(relax.op.reshape(emit(relax.op.nn.conv2d(x, kernel, padding=1)), [16, 36]))
        return emit(relax.op.matmul(emit(relax.op.strided_slice(rows, [0], [0], [4])), last))

    check(graph, make, target=GPU)
