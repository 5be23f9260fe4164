"""The tolerance behind a function that bounds sums: what is rounding passes, what is wrong does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.task import Workload
from tests.compiler import half_workloads
from tests.compiler.gpu_cases import one_function
from tests.compiler.programs import TARGET, conv, dense, dense_add, workload
from tuner.measure.candidate import Bench
from tuner.measure.check import SETS, ReferenceOutputs, root_mean_square
from tuner.measure.properties import inspect
from tuner.tvm_compat import load_ir, relax, save_ir, te, tirx
from tuner.workload.digest import workload_digest

ROWS, REDUCTION, COLUMNS = 64, 576, 64


def dense_tanh(builder: Any, x: Any, w: Any, b: Any) -> Any:
    return builder.emit(relax.op.tanh(dense_add(builder, x, w, b)))


def dense_clamped(builder: Any, x: Any, w: Any, b: Any) -> Any:
    return builder.emit(relax.op.clip(dense_add(builder, x, w, b), 0, 6))


BOUNDS = {dense_tanh: np.tanh, dense_clamped: lambda x: np.clip(x, 0, 6)}


def bounded(function: Any = dense_tanh) -> Workload:
    return workload(function, (ROWS, REDUCTION), (REDUCTION, COLUMNS), (COLUMNS,))


def summed(bench: Bench, name: str, order: np.ndarray[Any, Any], function: Any = dense_tanh) -> np.ndarray[Any, Any]:
    """The bounded product on the set, its terms of `order` summed one after another."""
    x, w, b = (tensor.numpy() for tensor in bench.inputs[name])
    total = np.zeros((ROWS, COLUMNS), np.float32)
    for k in order:
        total += x[:, k, None] * w[None, k, :]
    return np.asarray(BOUNDS[function](total + b))


def opened(found: Workload) -> tuple[Bench, Any]:
    bench = Bench(found.ir, TARGET, seed=0)
    for name in SETS:
        bench.fill(name)
    return bench, bench.reference_program()


@pytest.mark.parametrize("function", BOUNDS)
def test_another_order_of_summation_passes_before_a_bound_too(function: Any) -> None:
    bench, reference = opened(bounded(function))
    order = np.random.default_rng(1).permutation(REDUCTION)
    for name in SETS:
        outputs, changes = bench.run_reference(reference, name)
        found = [summed(bench, name, order, function)]
        assert ReferenceOutputs(bench.properties, name, outputs, changes).compare(found)[0], name
        if name == "edges":
            assert not ReferenceOutputs(bench.properties, name, outputs).compare(found)[0], "what it is there for"


@pytest.mark.parametrize("function", BOUNDS)
@pytest.mark.parametrize("name", SETS)
def test_a_missing_term_before_a_bound_is_found_on_every_set(name: str, function: Any) -> None:
    bench, reference = opened(bounded(function))
    expected = ReferenceOutputs(bench.properties, name, *bench.run_reference(reference, name))
    assert not expected.compare([summed(bench, name, np.arange(REDUCTION - 1), function)])[0]


def test_inputs_are_afterwards_as_they_were() -> None:
    bench, reference = opened(bounded())
    before = [tensor.numpy().copy() for tensor in bench.inputs["edges"]]
    _, changes = bench.run_reference(reference, "edges")
    assert changes[0].max() > 0
    for tensor, array in zip(bench.inputs["edges"], before, strict=True):
        assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_added_behind_a_sum_alone(name: str) -> None:
    bench, reference = opened(dense())
    assert bench.run_reference(reference, name)[1] == []


def clamped(builder: Any, x: Any, w: Any) -> Any:
    return relax.op.clip(builder.emit(relax.op.matmul(x, w)), 0, 6)


def rectified(builder: Any, x: Any, w: Any) -> Any:
    return relax.op.nn.relu(builder.emit(relax.op.matmul(x, w)))


def variance(builder: Any, x: Any, _w: Any) -> Any:
    return relax.op.variance(x, [1])


def above(builder: Any, x: Any, w: Any) -> Any:
    return relax.op.greater(builder.emit(relax.op.matmul(x, w)), relax.const(0.5))


def chosen(builder: Any, x: Any, w: Any) -> Any:
    product = builder.emit(relax.op.matmul(x, w))
    return relax.op.where(builder.emit(relax.op.greater(product, relax.const(0.0))), relax.const(1.0), product)


def cut(builder: Any, x: Any, w: Any) -> Any:
    return relax.op.astype(builder.emit(relax.op.matmul(x, w)), "int32")


@pytest.mark.parametrize(
    ("function", "shrinks"),
    [
        (rectified, False),
        *((each, True) for each in (clamped, variance, above, chosen, cut)),
    ],
)
def test_only_what_may_be_small_beside_its_sums_is_looked_at(function: Any, shrinks: bool) -> None:
    assert inspect(load_ir(workload(function, (32, 64), (64, 32)).ir)).shrinks == shrinks


def test_a_padded_convolution_chooses_by_places_alone() -> None:
    assert not inspect(load_ir(conv().ir)).shrinks


def test_a_product_in_half_precision_is_a_sum_alone_whatever_its_size() -> None:
    """On the edges its outputs are as small as what a function has bounded: its numbers are."""
    bench, reference = opened(half_workloads.dense(32, 64, 48))
    outputs, changes = bench.run_reference(reference, "edges")
    assert changes == []
    assert root_mean_square(outputs[0].astype(np.float32)) < 1024


def activated(function: Any, before: bool) -> Workload:
    """A product of half precision that is summed in float32 and rounded, and a function of it, or of its first operand."""

    def make(x: Any, w: Any) -> list[Any]:
        def applied(y: Any) -> Any:
            return te.compute(y.shape, lambda *at: function(y[at].astype("float32")).astype("float16"))

        k, a = te.reduce_axis((0, REDUCTION), name="k"), applied(x) if before else x
        total = te.compute(
            (ROWS, COLUMNS), lambda i, j: te.sum(a[i, k].astype("float32") * w[k, j].astype("float32"), axis=k)
        )
        rounded = te.compute(total.shape, lambda *at: total[at].astype("float16"))
        return [rounded if before else applied(rounded)]

    mod = one_function(make, ((ROWS, REDUCTION), "float16"), ((REDUCTION, COLUMNS), "float16"))
    return Workload(digest=workload_digest(mod), ir=save_ir(mod))


def silu(y: Any) -> Any:
    return y * te.sigmoid(y)


def is_large(y: Any) -> Any:
    return tirx.Select(y > tirx.const(0.5, "float32"), tirx.const(1, "float32"), tirx.const(0, "float32"))


@pytest.mark.parametrize(
    ("function", "before", "is_exact"),
    [(silu, False, True), (te.tanh, False, True), (is_large, False, False), (silu, True, False)],
)
def test_sums_of_half_precision_are_exact_on_the_edges(function: Any, before: bool, is_exact: bool) -> None:
    bench, reference = opened(activated(function, before))
    assert bench.properties.exact_on_edges == is_exact
    outputs, changes = bench.run_reference(reference, "edges")
    assert changes == [] or not is_exact
    x, w = (tensor.numpy().astype(np.float32) for tensor in bench.inputs["edges"])
    if is_exact:
        total = np.zeros((ROWS, COLUMNS), np.float32)
        for k in np.random.default_rng(1).permutation(REDUCTION):
            total += x[:, k, None] * w[None, k, :]
        assert np.array_equal(total, x.astype(np.float64) @ w.astype(np.float64))
        expected = ReferenceOutputs(bench.properties, "edges", outputs, changes)
        numbers = np.tanh if function is te.tanh else lambda y: y * (1 + np.tanh(y / 2)) / 2
        assert expected.compare([numbers(total).astype(np.float16)])[0]
        assert not expected.compare([numbers(total - x[:, :1] * w[:1]).astype(np.float16)])[0]


def root_of_mean(builder: Any, y: Any, x: Any, _z: Any) -> Any:
    """As in an RMS norm, whose squares are another workload's."""
    mean = builder.emit(relax.op.mean(y, [1], keepdims=True))
    return relax.op.multiply(x, builder.emit(relax.op.rsqrt(relax.op.add(mean, relax.const(1e-6)))))


def between_extremes(_builder: Any, low: Any, x: Any, high: Any) -> Any:
    one = relax.const(1.0)
    return relax.op.divide(one, relax.op.add(relax.op.divide(x - low, high - low), relax.const(0.1)))


@pytest.mark.parametrize("function", [root_of_mean, between_extremes])
def test_what_a_steep_function_magnifies_passes_and_what_is_wrong_does_not(function: Any) -> None:
    """Inputs changed by rounding errors are another order of summation, or a product that is added unrounded."""
    shapes = ((80, 64), (80, 64), (1, 1)) if function is root_of_mean else ((64, 1), (64, 96), (64, 1))
    bench, reference = opened(workload(function, *shapes, inputs=2))
    expected = bench.run_reference(reference, "random")
    changed = bench.inputs["random"][0]
    before = changed.numpy().copy()
    signs = np.random.default_rng(1).choice(np.array([-1, 1], np.float32), before.shape)
    for error, right in ((bench.properties.relative_error, True), (1e-2, False)):
        changed.copyfrom(before * (1 + np.float32(error) * signs))
        found, _ = bench.run_reference(reference, "random")
        assert ReferenceOutputs(bench.properties, "random", *expected).compare(found)[0] == right
        assert not ReferenceOutputs(bench.properties, "random", expected[0]).compare(found)[0], "what it is there for"


def test_changes_travel_with_the_outputs_of_a_fork() -> None:
    bench, reference = opened(bounded())
    buffer = memoryview(bytearray(bench.reference_bytes()))
    assert bench.compute_reference_outputs(reference, "edges", buffer)
    bench.set_reference_outputs("edges", buffer)
    order = np.random.default_rng(1).permutation(REDUCTION)
    assert bench.reference_outputs["edges"].compare([summed(bench, "edges", order)])[0]
