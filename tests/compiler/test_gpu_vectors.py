"""Vectors of which CUDA C++ has no code: they are taken apart, every type compiles for every architecture and is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pitchpipe.wire.target import Target
from tests.compiler.attention import attention
from tests.compiler.gpu_cases import check, functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.test_gpu_default import compilers
from tests.gpu_interpreter import _Kernel, _Memory
from tuner.lowering.lane_by_lane import LANE_BY_LANE
from tuner.measure.gpu_code import lower
from tuner.schedule.trace import apply_trace
from tuner.tvm_compat import IRModule, PrimFunc, load_ir, relax, structural_walk, tirx, to_tvm_target, topi

op = relax.op
Shape = tuple[int, ...]


def constant(x: Any, value: float) -> Any:
    return relax.const(value, str(x.ty.dtype))


def larger(b: Any, x: Any, y: Any) -> Any:
    return op.where(b.emit(op.greater(x, y)), b.emit(op.multiply(x, y)), b.emit(op.subtract(x, y)))


def between(b: Any, x: Any, y: Any) -> Any:
    """Two conditions, of which one is turned around."""
    above = b.emit(op.logical_not(b.emit(op.less(x, y))))
    return op.where(b.emit(op.logical_and(above, b.emit(op.not_equal(x, constant(x, 0.5))))), x, constant(x, 0.25))


def zeros_in_equal_rows(b: Any, x: Any, y: Any) -> Any:
    equal = b.emit(op.min(b.emit(op.astype(b.emit(op.equal(x, y)), "int32")), axis=[-1], keepdims=True))
    return op.where(b.emit(op.astype(equal, "bool")), constant(x, 0.0), x)


def masked_softmax(b: Any, x: Any, y: Any) -> Any:
    """With zeros for rows that are masked as a whole, as PyTorch traces attention with a mask."""
    mask = b.emit(op.where(b.emit(op.greater(y, constant(y, 0.0))), constant(y, 0.0), constant(y, -np.inf)))
    scores = b.emit(op.add(b.emit(op.astype(x, "float32")), b.emit(op.astype(mask, "float32"))))
    shares = b.emit(op.astype(b.emit(op.nn.softmax(scores)), str(x.ty.dtype)))
    out = b.emit(
        op.min(b.emit(op.astype(b.emit(op.equal(mask, constant(y, -np.inf))), "int32")), axis=[-1], keepdims=True)
    )
    return op.where(b.emit(op.astype(out, "bool")), constant(x, 0.0), shares)


def sums_of_choices(b: Any, x: Any, y: Any) -> Any:
    """Conditions and values that are used twice, so that they are variables."""
    wide, other = (b.emit(op.astype(each, "float32")) for each in (x, y))
    above, both = b.emit(op.greater(wide, other)), b.emit(op.multiply(wide, b.emit(op.exp(other))))
    first = b.emit(op.where(above, both, b.emit(op.add(both, other))))
    second = b.emit(op.where(above, b.emit(op.subtract(both, wide)), both))
    return op.sum(b.emit(op.multiply(first, second)), axis=[-1])


def gates(b: Any, x: Any, y: Any) -> Any:
    """What a cell of an LSTM computes of its gates: slices of which no block of threads takes a whole number of vectors."""
    width = int(x.ty.shape[1]) // 4
    parts = [b.emit(op.strided_slice(x, [1], [at * width], [(at + 1) * width])) for at in range(4)]
    shares = [b.emit(op.sigmoid(part)) for part in (parts[0], parts[1], parts[3])]
    kept = b.emit(op.multiply(shares[1], y))
    state = b.emit(op.add(kept, b.emit(op.multiply(shares[0], b.emit(op.tanh(parts[2]))))))
    return op.multiply(shares[2], b.emit(op.tanh(state)))


def infinite_border(b: Any, x: Any) -> Any:
    return op.nn.pad(x, (0, 0, 8, 8), pad_value=-np.inf)


def larger_side_by_side(b: Any, x: Any, y: Any) -> Any:
    """Booleans, half of them computed and half of them moved."""
    return op.concat([b.emit(op.greater(x, y)), b.emit(op.less(x, y))], axis=1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "a choice by two tensors": (larger, ((16, 96), (16, 96))),
    "a choice by two tensors of odd width": (larger, ((5, 28), (5, 28))),
    "a choice by several conditions": (between, ((16, 96), (96,))),
    "zeros in rows that are equal": (zeros_in_equal_rows, ((5, 64), (5, 64))),
    "a softmax with a mask": (masked_softmax, ((24, 64), (24, 64))),
    "sums of choices": (sums_of_choices, ((24, 256), (24, 256))),
    "the gates of a cell": (gates, ((4, 128), (4, 32))),
    "a border of infinities": (infinite_border, ((4, 64),)),
    "booleans side by side": (larger_side_by_side, ((8, 64), (8, 64))),
}


def is_right_and_compiles(mod: Any) -> None:
    trace = check(mod, HOPPER).trace
    for arch, compiler in compilers().items():
        target = Target.parse({**HOPPER.attributes(), "arch": arch})
        source = lower(apply_trace(mod, trace).mod, to_tvm_target(target)).source
        assert compiler.compile(source)[:4] == b"\x7fELF"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_what_has_no_vectors_is_computed_lane_by_lane_and_compiles(name: str, dtype: str) -> None:
    make, shapes = CASES[name]
    for mod in functions(make, *((shape, dtype) for shape in shapes)):
        is_right_and_compiles(mod)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda b, x, y: op.concat([x, y], axis=1),
        lambda b, x, y: op.logical_xor(x, b.emit(op.logical_not(y))),
        lambda b, x, y: op.where(
            b.emit(op.logical_and(x, y)), relax.const(2.0, "float16"), relax.const(3.0, "float16")
        ),
    ],
)
def test_booleans_have_one_byte_each(make: Callable[..., Any]) -> None:
    """TVM reads and writes a vector of four as eight bytes."""
    for mod in functions(make, ((16, 64), "bool"), ((16, 64), "bool")):
        is_right_and_compiles(mod)
        assert "ushort" not in check(mod, HOPPER).lowered.source.split('extern "C"')[-1]


@pytest.mark.filterwarnings("ignore")
def test_a_choice_of_what_is_reshaped_is_stored_in_vectors() -> None:
    """TVM does not move a read whose index is written in two ways: it stays in the statement."""
    source = check(reshaped_choice(), HOPPER).lowered.source
    assert "*(uint4*)(" in source


def reshaped_choice() -> Any:
    def make(x: Any) -> list[Any]:
        y = topi.reshape(x, (1, 32, 48))
        return [topi.where(topi.greater(y, tirx.const(0.3, "float16")), y, topi.multiply(y, y))]

    return one_function(make, ((32, 48), "float16"))


FOUR = tirx.Ramp(tirx.const(0, "int32"), 1, 4)


def bound_before(condition: Any, chosen: Callable[[Any], Any], out: Any) -> Any:
    variable = tirx.Var("above", condition.ty)
    return tirx.SeqStmt([tirx.Bind(variable, condition), tirx.BufferStore(out, chosen(variable), [FOUR])])


def bound_within(condition: Any, chosen: Callable[[Any], Any], out: Any) -> Any:
    variable = tirx.Var("above", condition.ty)
    return tirx.BufferStore(out, tirx.Let(variable, condition, chosen(variable)), [FOUR])


@pytest.mark.parametrize("bound", [bound_before, bound_within])
def test_conditions_that_are_variables_become_one_for_each_lane(bound: Callable[..., Any]) -> None:
    x, y, out = (tirx.decl_buffer((4,), "float32", name=name) for name in ("x", "y", "out"))
    a, b = (tirx.BufferLoad(buffer, [FOUR]) for buffer in (x, y))
    body = bound(tirx.GT(a, b), lambda above: tirx.Select(above, a - b, tirx.Select(tirx.Not(above), b, a)), out)
    function = LANE_BY_LANE(IRModule({"main": PrimFunc([x, y, out], body)}))["main"]
    vectors: list[Any] = []
    structural_walk(function.body, ((tirx.GT, tirx.Select, tirx.Not), vectors.append))
    assert {str(each.ty.dtype) for each in vectors} == {"bool", "float32"}
    given = {x: np.float32([1, 5, 2, 0]), y: np.float32([3, 4, 2, -1]), out: np.zeros(4, np.float32)}
    kernel = _Kernel((1, 1, 1), (1, 1, 1), {})
    kernel.memory |= {buffer: _Memory(values, "global") for buffer, values in given.items()}
    kernel.run(function.body)
    np.testing.assert_array_equal(given[out], [3, 1, 2, 1])


@pytest.mark.parametrize("channels", [24, 40, 48, 72])
def test_channels_that_no_step_divides_are_copied_in_vectors(channels: int) -> None:
    """Steps of 32 and more begin and end amid the channels of a place."""

    def make(b: Any, x: Any, weight: Any) -> Any:
        wide = op.nn.conv2d(x, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO", out_dtype="float32")
        return op.astype(b.emit(wide), "float16")

    (mod,) = functions(make, ((1, 9, 7, channels), "float16"), ((3, 3, channels, 32), "float16"))
    source = check(mod, HOPPER).lowered.source
    kernel = source[source.index("main_kernel_body") :]
    assert "cp_async" in kernel or kernel.count("uint4") > 1
    assert not re.search(r"_s < [248]; \+\+", kernel)  # a vector that TVM took apart


@pytest.mark.parametrize("size", [48, 80, 196])
def test_an_attentions_queries_are_copied_in_vectors_where_no_number_of_threads_divides_them(size: int) -> None:
    source = check(load_ir(attention(1, 1, 16, 48, size).ir), HOPPER).lowered.source
    kernel = source[source.index("main_kernel_body") :]
    queries = re.findall(r"\S+ = [^;\n]*\bq_ptr\b[^;\n]*;", kernel)
    assert queries
    assert all("*(uint" in each or "*(half4" in each for each in queries), queries
