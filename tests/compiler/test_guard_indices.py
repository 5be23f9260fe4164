"""Indices count from the end where they are negative, as in the model's source, and never leave a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.models import model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import expected, ingest_here, run
from tuner.deploy.finish import finish
from tuner.graph.prepare import call_counts, prepare
from tuner.ingest import IngestedModel, TensorSpec
from tuner.tvm_compat import load_ir, relax

EXTENT = 5
X = np.arange(EXTENT * 4, dtype=np.float32).reshape(EXTENT, 4)
FAR = np.iinfo(np.int32).max


def program(gather: Any, indices: np.ndarray, *, constant: bool, shape: tuple[int, ...] = (EXTENT, 4)) -> Any:
    """A module of one gathering operator, its indices an input or a constant."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    given = relax.Var("i", relax.TensorType(indices.shape, str(indices.dtype)))
    params = [x] if constant else [x, given]
    with builder.function("main", params, attrs={"num_input": len(params)}):
        with builder.dataflow():
            y = builder.emit_output(gather(x, relax.const(indices, str(indices.dtype)) if constant else given))
        builder.emit_func_output(y)
    return builder.get()


def result(mod: Any, *inputs: np.ndarray) -> Any:
    specs = tuple(TensorSpec(name=f"x{at}", shape=each.shape, dtype=str(each.dtype)) for at, each in enumerate(inputs))
    (found,) = run(
        finish(prepare(mod, TARGET), TARGET), IngestedModel(ir=b"", inputs=specs, params=()), {}, list(inputs)
    )
    return found


GATHERS: dict[str, tuple[Any, Any, tuple[int, ...], int]] = {
    "take": (lambda x, i: relax.op.take(x, i, axis=0), lambda x, i: x[i], (3,), EXTENT),
    "take of another axis": (lambda x, i: relax.op.take(x, i, axis=-1), lambda x, i: x[:, i], (3,), 4),
    "take of no axis": (
        lambda x, i: relax.op.take(relax.op.reshape(x, (20,)), i),
        lambda x, i: x.reshape(-1)[i],
        (3,),
        20,
    ),
    "gather_elements": (
        lambda x, i: relax.op.gather_elements(x, i, axis=0),
        lambda x, i: np.take_along_axis(x, i, 0),
        (3, 4),
        EXTENT,
    ),
    "index_tensor": (lambda x, i: relax.op.index_tensor(x, [i]), lambda x, i: x[i], (3,), EXTENT),
}
"""Name -> the operator, what it means, the indices' shape, the extent they count along."""


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given when it runs"])
@pytest.mark.parametrize("name", GATHERS)
def test_negative_indices_count_from_the_end(name: str, constant: bool) -> None:
    gather, source, shape, extent = GATHERS[name]
    indices = np.resize(np.array([-1, 0, -extent, extent - 1, -2]), shape)
    mod = program(gather, indices, constant=constant)
    inputs = (X,) if constant else (X, indices)
    np.testing.assert_array_equal(result(mod, *inputs), source(X, indices))


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given when it runs"])
@pytest.mark.parametrize("name", GATHERS)
def test_indices_out_of_bounds_read_the_first_or_the_last_element(name: str, constant: bool) -> None:
    gather, source, shape, extent = GATHERS[name]
    indices = np.resize(np.array([-FAR, FAR, 10**12]), shape)
    mod = program(gather, indices, constant=constant)
    inputs = (X,) if constant else (X, indices)
    np.testing.assert_array_equal(result(mod, *inputs), source(X, np.where(indices < 0, 0, extent - 1)))


def test_narrow_indices_of_a_long_tensor_do_not_overflow() -> None:
    x = np.arange(300, dtype=np.float32)
    indices = np.array([-1, -128, 127, 0], np.int8)
    mod = program(lambda x, i: relax.op.take(x, i, axis=0), indices, constant=False, shape=(300,))
    np.testing.assert_array_equal(result(mod, x, indices), x[indices.astype(np.int64)])


def test_unsigned_indices_are_read_as_they_are() -> None:
    indices = np.array([0, 4, 255], np.uint8)
    mod = program(lambda x, i: relax.op.take(x, i, axis=0), indices, constant=False)
    np.testing.assert_array_equal(result(mod, X, indices), X[[0, 4, 4]])


def test_indices_that_the_source_says_are_not_negative_cost_nothing() -> None:
    indices = np.array([0, 4], np.int64)
    mod = program(lambda x, i: relax.op.take(x, i, axis=0, mode="clip"), indices, constant=False)
    (kernel,) = call_counts(prepare(mod, TARGET))
    assert kernel.startswith("take")


@pytest.mark.parametrize("operator", ["Gather", "GatherElements", "GatherND"])
def test_an_onnx_model_is_given_negative_indices(operator: str) -> None:
    shapes = {"Gather": (2, 2), "GatherElements": (2, 4), "GatherND": (3, 2)}
    attributes = {} if operator == "GatherND" else {"axis": 0}
    proto = model(
        [node(operator, ["x", "i"], ["y"], **attributes)],
        {"x": [4, 4], "i": shapes[operator]},
        ["y"],
        types={"i": 7},
    )
    ingested, weights = ingest_here(proto)
    indices = np.resize(np.array([-4, 3, -1, 0]), shapes[operator])
    inputs = [np.arange(16, dtype=np.float32).reshape(4, 4), indices]
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, inputs)
    np.testing.assert_array_equal(found[0], expected(proto, inputs)[0])
