"""Digests know a program by what it computes, in every process, whatever its names are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pitchpipe.errors import InvalidModel
from tuner.tvm_compat import IRModule, load_ir, save_ir, te, tvm
from tuner.workload.digest import IR_SCHEMA_VERSION, primfunc_digest, workload_digest

GOLDEN = Path(__file__).parents[1] / "golden" / "digests.json"

Names = tuple[str, str, str]


def product(
    rows: int = 4, dtype: str = "float32", scale: float = 2.0, names: Names = ("A", "B", "C"), symbol: str = "main"
) -> Any:
    """C = scale * (A @ B), with A of [rows, 8] and B of [8, 16]."""
    a = te.placeholder((rows, 8), dtype, name=names[0])
    b = te.placeholder((8, 16), dtype, name=names[1])
    k = te.reduce_axis((0, 8), name=f"k_{names[2]}")
    c = te.compute((rows, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name=names[2])
    d = te.compute((rows, 16), lambda i, j: c[i, j] * tvm.tirx.const(scale, dtype), name=f"{names[2]}_scaled")
    return te.create_prim_func([a, b, d]).with_attr("global_symbol", symbol)


def softmax() -> Any:
    x = te.placeholder((3, 5), "float32", name="x")
    return te.create_prim_func([x, tvm.topi.nn.softmax(x, axis=1)])


def test_names_of_variables_blocks_and_functions_do_not_matter() -> None:
    assert primfunc_digest(product()) == primfunc_digest(product(names=("x", "weight", "y"), symbol="fused_7"))
    first, second = IRModule({"main": product()}), IRModule({"other": product(symbol="other")})
    assert workload_digest(first) == workload_digest(second)


DIFFERENT: dict[str, Callable[[], Any]] = {
    "shape": lambda: product(rows=5),
    "element type": lambda: product(dtype="float16"),
    "constant": lambda: product(scale=3.0),
    "attribute": lambda: product().with_attr("layout_free_buffers", [1]),
    "another attribute value": lambda: product().with_attr("layout_free_buffers", [0]),
    "program": softmax,
}


def test_shapes_types_constants_attributes_and_programs_matter() -> None:
    digests = {name: primfunc_digest(make()) for name, make in DIFFERENT.items()} | {"": primfunc_digest(product())}
    assert len(set(digests.values())) == len(digests)


def test_which_variable_stands_where_matters() -> None:
    a = te.placeholder((4,), name="a")
    b = te.placeholder((4,), name="b")
    one = te.create_prim_func([a, b, te.compute((4,), lambda i: a[i] - b[i])])
    other = te.create_prim_func([a, b, te.compute((4,), lambda i: b[i] - a[i])])
    assert primfunc_digest(one) != primfunc_digest(other)


def test_a_program_read_back_from_json_has_the_same_digest() -> None:
    module = IRModule({"main": product()})
    assert workload_digest(load_ir(save_ir(module))) == workload_digest(module)


def test_digests_equal_the_golden_ones() -> None:
    # A difference here means that TVM's objects changed: every stored digest is void, so raise IR_SCHEMA_VERSION.
    golden = json.loads(GOLDEN.read_text())
    assert golden["ir_schema_version"] == IR_SCHEMA_VERSION
    assert golden["digests"] == {"product": primfunc_digest(product()), "softmax": primfunc_digest(softmax())}


def test_digests_are_equal_in_two_processes_with_other_hash_seeds() -> None:
    script = "from tests.compiler.test_digest import *; print(primfunc_digest(product()), primfunc_digest(softmax()))"
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        found.append(run.stdout.split())
    assert found[0] == found[1] == [primfunc_digest(product()), primfunc_digest(softmax())]


def test_only_a_module_of_one_tensor_function_is_a_workload() -> None:
    with pytest.raises(InvalidModel, match="exactly one tensor function"):
        workload_digest(IRModule({"a": product(symbol="a"), "b": softmax().with_attr("global_symbol", "b")}))
    with pytest.raises(InvalidModel, match="exactly one tensor function"):
        workload_digest(IRModule({}))


def test_a_program_with_many_nested_operands_has_a_digest() -> None:
    x = te.placeholder((8,), name="x")

    def nested(i: Any) -> Any:
        value = x[i]
        for step in range(200):
            value = tvm.tirx.max(value, x[(i + step) % 8])
        return value

    assert len(primfunc_digest(te.create_prim_func([x, te.compute((8,), nested)]))) == 64
