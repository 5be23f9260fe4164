"""Small buffers lie on the stack: where LLVM can turn them into registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.target_kind import kind_of
from tests.compiler.programs import TARGET
from tuner.graph.prepare import MAIN
from tuner.lowering.stack import MOST_BYTES, PIPELINE
from tuner.measure.build import build
from tuner.tvm_compat import IRModule, generate_unchecked, relax, te, to_tvm_target, tvm

TAKEN = "TVMBackendAllocWorkspace"


def doubled(extent: int) -> Any:
    """b = 2 a + 1 of `extent` floats, with 2 a in a buffer."""
    a = te.placeholder((extent,), name="a")
    twice = te.compute((extent,), lambda i: a[i] * 2.0, name="twice")
    b = te.compute((extent,), lambda i: twice[i] + 1.0, name="b")
    return IRModule({"main": te.create_prim_func([a, b])})


@pytest.mark.parametrize(("extent", "pipeline", "taken"), [
    (MOST_BYTES // 4, PIPELINE, False),
    (MOST_BYTES // 4, "s_tir", True),
    (MOST_BYTES // 4 + 1, PIPELINE, True),
])  # fmt: skip
def test_a_small_buffer_is_not_taken_from_the_runtime(extent: int, pipeline: str, taken: bool) -> None:
    _, library = generate_unchecked(doubled(extent), to_tvm_target(TARGET), pipeline)
    assert (TAKEN in str(library.inspect_source("asm"))) == taken


def test_a_deployed_function_has_its_small_buffers_on_the_stack_too() -> None:
    kernel = doubled(MOST_BYTES // 4)[MAIN].with_attr("global_symbol", "doubled")
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((MOST_BYTES // 4,), "float32"))
    with builder.function(MAIN, [x], attrs={"num_input": 1}):
        called = relax.call_tir(builder.add_func(kernel, "doubled"), x, relax.TensorType((MOST_BYTES // 4,), "float32"))
        builder.emit_func_output(builder.emit(called))
    built = kind_of(TARGET).compile(builder.get(), TARGET)
    (library,) = built.mod.imports
    code = str(library.inspect_source("asm"))
    assert "doubled" in code
    assert TAKEN not in code


def test_what_lies_on_the_stack_computes_the_same() -> None:
    extent = MOST_BYTES // 4
    program = build(doubled(extent), to_tvm_target(TARGET))
    a = np.arange(extent, dtype=np.float32)
    b = tvm.runtime.empty((extent,), "float32")
    program.main(tvm.runtime.tensor(a), b)
    np.testing.assert_array_equal(b.numpy(), 2 * a + 1)
