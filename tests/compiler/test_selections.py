"""Choices between values become selections, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.programs import TARGET
from tuner.lowering.selections import select_values
from tuner.measure.build import compile_module
from tuner.tvm_compat import IRModule, ir, structural_walk, te, tirx, to_tvm_target, tvm, tvm_ffi

torch = pytest.importorskip("torch")

from benchmarks.torch_operator_cases import through_load  # noqa: E402  # needs torch
from tests.compiler.test_torch_operators import Of  # noqa: E402

ZERO = tirx.const(0.0, "float32")


def chosen(body: Callable[..., Any], *dtypes: str) -> Any:
    """y[i, j] = body(i, j, operands) for operands of 8 x 16."""
    given = [te.placeholder((8, 16), dtype, name=f"x{at}") for at, dtype in enumerate(dtypes)]
    result = te.compute((8, 16), lambda i, j: body(i, j, *given), name="y")
    return te.create_prim_func([*given, result]).with_attr("global_symbol", "main")


def branches(function: Any) -> int:
    calls: list[str] = []
    structural_walk(function.body, (ir.Call, lambda call: calls.append(str(getattr(call.op, "name", "")))))
    return calls.count("prim.if_then_else")


VALUES: dict[str, tuple[Callable[..., Any], int]] = {
    "a leaky slope": (lambda i, j, x: tirx.if_then_else(x[i, j] > ZERO, x[i, j], x[i, j] * 0.5), 1),
    "one of another operand": (lambda i, j, x, w: tirx.if_then_else(x[i, j] > ZERO, x[i, j], w[7 - i, j]), 2),
    "one in another": (
        lambda i, j, x: tirx.if_then_else(
            x[i, j] > ZERO, tirx.if_then_else(x[i, j] < 1.0, tirx.exp(x[i, j]), ZERO), x[i, j] / 3.0
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_choice_by_values_is_a_selection(name: str) -> None:
    body, count = VALUES[name]
    function = chosen(body, *["float32"] * count)
    changed = select_values(function)
    assert branches(function) > branches(changed) == 0
    inputs = np.random.default_rng(0).normal(size=(count, 8, 16)).astype(np.float32)
    inputs[0, 0, :3] = np.nan, np.inf, -np.inf
    results = []
    for each in (function, changed):
        found = tvm.runtime.tensor(np.zeros((8, 16), np.float32))
        compiled = compile_module(IRModule({"main": each}), to_tvm_target(TARGET))
        compiled.get_function("main", query_imports=True)(*map(tvm.runtime.tensor, inputs), found)
        results.append(found.numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("body", "dtypes"),
    [
        (lambda i, j, x: tirx.if_then_else(j > 2, x[i, j], ZERO), ["float32"]),
        (lambda i, j, x: tirx.if_then_else(x[i, j] > ZERO, x[i, j - 1], ZERO), ["float32"]),
        (lambda i, j, x: tirx.if_then_else(x[i, j] > ZERO, x[i + 1, j], ZERO), ["float32"]),
        (lambda i, j, x, k: tirx.if_then_else(x[i, j] > ZERO, x[i, k[i, j]], ZERO), ["float32", "int32"]),
        (lambda i, j, a, b: tirx.if_then_else(b[i, j] > 0, tirx.floordiv(a[i, j], b[i, j]), 0), ["int32", "int32"]),
        (
            lambda i, j, x: tirx.if_then_else(x[i, j] > ZERO, tirx.call_extern("float32", "f", x[i, j]), ZERO),
            ["float32"],
        ),
    ],
    ids=[
        "by places",
        "before the first",
        "beyond the last",
        "where a number says",
        "a division",
        "of another's function",
    ],
)
def test_a_choice_that_may_guard_something_stays(body: Callable[..., Any], dtypes: list[str]) -> None:
    function = chosen(body, *dtypes)
    assert tvm_ffi.structural_equal(select_values(function), function)


def test_what_is_read_where_a_bound_number_says_stays_behind_its_binding() -> None:
    """The place is within the buffer, whatever the number is."""

    def body(i: Any, j: Any, x: Any, k: Any) -> Any:
        place = tirx.Var("place", "int32")
        chosen = tirx.if_then_else(x[i, j] > ZERO, x[i, tirx.max(tirx.min(place, 15), 0)], ZERO)
        return tirx.Let(place, k[i, j] + 1, chosen)

    function = chosen(body, "float32", "int32")
    assert tvm_ffi.structural_equal(select_values(function), function)


@pytest.mark.parametrize("name", ["elu", "selu", "celu", "softplus", "mish", "leaky_relu", "logsigmoid", "hardshrink"])
def test_activations_behind_a_product_are_what_pytorch_gives(name: str) -> None:
    functional = torch.nn.functional
    x = torch.randn(37, 24, generator=torch.Generator().manual_seed(0)) * 4
    w = torch.randn(48, 24, generator=torch.Generator().manual_seed(1))
    module = Of(lambda x: getattr(functional, name)(functional.linear(x, w)), x)
    (found,) = through_load(module.eval(), TARGET)
    np.testing.assert_allclose(found, module(x).numpy(), rtol=2e-5, atol=2e-5)
