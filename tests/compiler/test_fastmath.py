"""Elementary functions: their stated errors hold in compiled vector code, and no call of the C library is left."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.models import attention, model, node
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import expected, ingest_here, inputs_of
from tuner.deploy.build import compile_scheduled, schedule_model
from tuner.graph.prepare import MAIN, TRANSFORM
from tuner.lowering.fastmath import POWERS, expand_intrinsics
from tuner.lowering.stack import PIPELINE
from tuner.measure.build import compile_module
from tuner.tvm_compat import IRModule, Schedule, relax, te, tirx, to_tvm_target, topi, tvm, tvm_ffi

LENGTH = 1 << 16
BASIC_X86 = {"kind": "llvm", "mcpu": "x86-64"}
"""No fused multiply-add and four lanes: the other way to round, on every x86 machine."""
TARGETS = [to_tvm_target(TARGET)]
if platform.machine() in ("x86_64", "AMD64"):
    TARGETS.append(tvm.target.Target(BASIC_X86))
OTHER_TARGETS = (
    {"kind": "llvm", "mcpu": "haswell"},
    {"kind": "llvm", "mcpu": "skylake-avx512"},
    {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"},
)

erf = np.vectorize(math.erf, otypes=[np.float64])


def spaced(low: float, high: float, count: int) -> np.ndarray:
    """Positive float32 numbers, equally many of every binade."""
    first, last = np.array([low, high], np.float32).view(np.int32).astype(np.int64)
    return np.linspace(first, last, count).astype(np.int32).view(np.float32)


def of_both_signs(count: int) -> np.ndarray:
    """Numbers of all magnitudes up to 100, and more of those where functions bend."""
    x = spaced(1e-7, 100, count)
    return np.concatenate([x, -x, np.linspace(-10, 10, 2 * count, dtype=np.float32)])


def power(exponent: float) -> Callable[[Any], Any]:
    return lambda x: tirx.call_intrin("float32", "tirx.pow", x, tirx.const(exponent, "float32"))


def with_one(function: Callable[..., Any], *, below: float) -> Callable[[Any], Any]:
    """A function of two arguments, of which the second is given."""
    return lambda x: function(x, tirx.const(below, "float32"))


WITHIN_ONE = np.concatenate(
    [np.linspace(-1, 1, LENGTH, dtype=np.float32), spaced(1e-30, 1, LENGTH), 1 - spaced(1e-7, 1e-2, LENGTH)]
)
EVERYWHERE, POSITIVE = of_both_signs(LENGTH), spaced(1e-35, 1e35, 2 * LENGTH)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray], np.ndarray, float]] = {
    "exp": (tirx.exp, np.exp, EVERYWHERE, 1.25),
    "sigmoid": (tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x)), EVERYWHERE, 2.5),
    "tanh": (tirx.tanh, np.tanh, EVERYWHERE, 7.5),
    "erf": (tirx.erf, erf, of_both_signs(LENGTH // 4), 9.0),
    "log": (tirx.log, np.log, np.concatenate([spaced(1e-45, 3e38, 2 * LENGTH), spaced(0.5, 2, LENGTH)]), 1.0),
    "sin": (tirx.sin, np.sin, EVERYWHERE, 1.6),
    "cos": (tirx.cos, np.cos, EVERYWHERE, 1.6),
    "tan": (tirx.tan, np.tan, EVERYWHERE, 4.0),
    "exp2": (tirx.exp2, np.exp2, EVERYWHERE, 1.25),
    "atan": (tirx.atan, np.arctan, EVERYWHERE, 3.0),
    "atan2 before": (with_one(tirx.atan2, below=-2.5), lambda x: np.arctan2(x, -2.5), EVERYWHERE, 3.0),
    "atan2 beside": (
        with_one(tirx.atan2, below=1e-3),
        lambda x: np.arctan2(x, np.float32(1e-3).astype(np.float64)),
        EVERYWHERE,
        3.0,
    ),
    "asin": (tirx.asin, np.arcsin, WITHIN_ONE, 3.5),
    "acos": (tirx.acos, np.arccos, WITHIN_ONE, 4.0),
    "rsqrt": (tirx.rsqrt, lambda x: 1 / np.sqrt(x), POSITIVE, 1.5),
    "square root": (power(0.5), np.sqrt, POSITIVE, 0.5),
    "inverse": (power(-1.0), lambda x: 1 / x, POSITIVE, 0.5),
    "inverse root": (power(-0.5), lambda x: 1 / np.sqrt(x), POSITIVE, 1.5),
    "cube": (power(3.0), lambda x: x**3, np.linspace(-10, 10, LENGTH, dtype=np.float32), 2.0),
    "fourth": (power(4.0), lambda x: x**4, np.linspace(-10, 10, LENGTH, dtype=np.float32), 3.0),
}
ABSOLUTE = {"tanh": 4.5e-7, "erf": 5.5e-7}


def kernel(
    function: Callable[[Any], Any], *, length: int = LENGTH, dtype: str = "float32", vectorised: bool = True
) -> Any:
    """function of every element."""
    x = te.placeholder((length,), dtype, name="x")
    schedule = Schedule(IRModule({"main": te.create_prim_func([x, te.compute((length,), lambda i: function(x[i]))])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("compute"))
    if vectorised:
        schedule.vectorize(schedule.split(loop, [None, 16])[1])
    return schedule.mod


def compiled(function: Callable[[Any], Any], target: Any) -> Callable[[np.ndarray], np.ndarray]:
    module = compile_module(kernel(function), target)
    main = module.get_function("main", query_imports=True)

    def run(x: np.ndarray) -> np.ndarray:
        padded = np.resize(x, -(-x.size // LENGTH) * LENGTH)
        found = tvm.runtime.empty((LENGTH,), "float32")
        parts = []
        for start in range(0, padded.size, LENGTH):
            main(tvm.runtime.tensor(padded[start : start + LENGTH]), found)
            parts.append(found.numpy())
        return np.concatenate(parts)[: x.size]

    return run


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.attrs["mcpu"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_is_within_its_bound(name: str, target: Any) -> None:
    function, reference, x, bound = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    # Below: see test_small_results_of_exp_are_zero. Above float32's range an error in ulps is not defined.
    counted = (np.abs(exact) > 1.71e-38) & (np.abs(exact) < 3.4028234e38)
    found = compiled(function, target)(x)[counted].astype(np.float64)
    ulp = np.spacing(np.abs(exact[counted]).astype(np.float32)).astype(np.float64)
    difference = np.abs(found - exact[counted])
    assert (difference / ulp).max() <= bound
    assert difference.max() <= ABSOLUTE.get(name, math.inf)


INF, NAN = math.inf, math.nan
LIMITS = {
    "exp": {-INF: 0, -1000: 0, -87: 0, 0: 1, 88.73: INF, 1000: INF, INF: INF, 1e-45: 1},
    "sigmoid": {-INF: 0, -1000: 0, 0: 0.5, 1000: 1, INF: 1},
    "tanh": {-INF: -1, -3e38: -1, -9.02: -1, 0: 0, 9.02: 1, 3e38: 1, INF: 1},
    "exp2": {-INF: 0, -1000: 0, -127: 0, -3: 0.125, 0: 1, 10: 1024, 127: 2.0**127, 128: INF, INF: INF},
    "atan": {-INF: -math.pi / 2, INF: math.pi / 2, 0: 0, -1e-45: -1e-45},
    "atan2 before": {-INF: -math.pi / 2, INF: math.pi / 2, 0: math.pi, -1e-45: -math.pi, 2.5: 3 * math.pi / 4},
    "asin": {-1: -math.pi / 2, 0: 0, 1: math.pi / 2, 1.5: NAN, -INF: NAN},
    "acos": {-1: math.pi, 0: math.pi / 2, 1: 0, -1.5: NAN, INF: NAN},
    "erf": {-INF: -1, -3e38: -1, -3.93: -1, 0: 0, 3.93: 1, 3e38: 1, INF: 1},
    "log": {0: -INF, -1: NAN, -INF: NAN, -1e-45: NAN, 1: 0, INF: INF},
    "rsqrt": {0: INF, INF: 0, -1: NAN},
    "sin": {-INF: NAN, INF: NAN, 1e-45: 1e-45, -1e-45: -1e-45, 1e-20: 1e-20, 0: 0},
    "cos": {-INF: NAN, INF: NAN, 1e-45: 1, -1e-20: 1, 0: 1},
    "tan": {-INF: NAN, INF: NAN, 1e-45: 1e-45, -1e-45: -1e-45, 1e-20: 1e-20, 0: 0},
    "square root": {0: 0, INF: INF, -1: NAN},
    "cube": {-INF: -INF, INF: INF},
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.attrs["mcpu"])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_exact_and_nan_stays_nan(name: str, target: Any) -> None:
    quiet_with_payload = np.array([0x7FC00155], np.uint32).view(np.float32)[0]
    x = np.array([*LIMITS[name], NAN, quiet_with_payload], np.float32)
    found = compiled(FUNCTIONS[name][0], target)(x)
    np.testing.assert_array_equal(found, np.array([*LIMITS[name].values(), NAN, NAN], np.float32))


def test_small_results_of_exp_are_zero() -> None:
    x = np.linspace(-110, -86, 10_000, dtype=np.float32)
    found = compiled(tirx.exp, TARGETS[0])(x)
    assert ((found == 0) | (found > 2.0**-125.51)).all()
    assert (found[x > -86.98] > 0).all()


def called(mod: Any, target: Any, pipeline: str = "default") -> set[str]:
    """Functions of the C library that the code for a target names."""
    text = str(tvm.tirx.build(mod, target=target, pipeline=pipeline).inspect_source("asm"))
    names = "exp|exp2|erf|tanh|log|pow|sin|cos|tan|sincos|atan|atan2|asin|acos"
    return set(re.findall(rf"\b(?:{names})f?\b", text))


@pytest.mark.parametrize("attributes", [*OTHER_TARGETS, BASIC_X86], ids=lambda attributes: attributes["mcpu"])
def test_no_call_of_the_library_is_left_in_a_vectorised_loop(attributes: dict[str, Any]) -> None:
    def everything(x: Any) -> Any:
        return sum((FUNCTIONS[name][0](x) for name in FUNCTIONS), power(2.0)(x))

    mod, target = kernel(everything, length=64), tvm.target.Target(attributes)
    calls = called(mod, target)
    assert calls >= {"expf", "erff", "logf", "powf"}
    assert calls & {"sinf", "sincosf"}
    assert not called(expand_intrinsics(mod), target, PIPELINE)


def test_what_has_no_formula_stays() -> None:
    other = kernel(lambda x: tirx.sinh(x) + power(2.5)(x), length=64)
    assert tvm_ffi.structural_equal(expand_intrinsics(other), other)
    double = kernel(tirx.exp, length=64, dtype="float64")
    assert tvm_ffi.structural_equal(expand_intrinsics(double), double)
    assert 2.5 not in POWERS


@pytest.mark.parametrize("name", ["exp", "log", "tanh"])
def test_a_whole_number_may_be_made_of_what_a_function_gives(name: str) -> None:
    """As buckets of distances are of logarithms, in 64 bits, which TVM then narrows where it can."""
    function, reference, *_ = FUNCTIONS[name]
    module = compile_module(kernel(lambda x: tirx.Cast("int64", function(x) * 3.0), length=64), TARGETS[0])
    x, found = np.linspace(0.3, 2, 64).astype(np.float32), tvm.runtime.empty((64,), "int64")
    module.get_function("main", query_imports=True)(tvm.runtime.tensor(x), found)
    np.testing.assert_array_equal(found.numpy(), (reference(x) * 3).astype(np.int64))


@pytest.mark.parametrize(("function", "reference"), [(tirx.erf, erf), (tirx.sin, np.sin), (tirx.tan, np.tan)])
def test_half_precision_goes_by_way_of_single(
    function: Callable[[Any], Any], reference: Callable[..., np.ndarray]
) -> None:
    module = compile_module(kernel(function, length=64, dtype="float16"), TARGETS[0])
    x = np.linspace(-3, 3, 64).astype(np.float16)
    found = tvm.runtime.empty((64,), "float16")
    module.get_function("main", query_imports=True)(tvm.runtime.tensor(x), found)
    np.testing.assert_allclose(found.numpy(), reference(x.astype(np.float64)), rtol=2**-11, atol=2**-24)


def test_functions_of_functions_unroll_and_fuse() -> None:
    """Bindings are copied by inlining and unrolling: x tanh(log(1 + e^x)), its parts inlined, four vectors unrolled."""
    x = te.placeholder((8, 64), name="x")
    e = te.compute((8, 64), lambda i, j: tirx.exp(x[i, j]), name="e")
    y = te.compute((8, 64), lambda i, j: x[i, j] * tirx.tanh(tirx.log(e[i, j] + tirx.const(1.0, "float32"))), name="y")
    z = te.compute((8, 64), lambda i, j: y[i, j] + e[i, 63 - j], name="z")
    schedule = Schedule(IRModule({"main": te.create_prim_func([x, z])}))
    for name in ("e", "y"):
        schedule.compute_inline(schedule.get_sblock(name))
    row, column = schedule.get_loops(schedule.get_sblock("z"))
    schedule.unroll(schedule.split(row, [None, 2])[1])
    outer, lanes = schedule.split(column, [None, 16])
    schedule.unroll(outer)
    schedule.vectorize(lanes)
    main = compile_module(schedule.mod, TARGETS[0]).get_function("main", query_imports=True)
    values = np.random.default_rng(0).normal(0, 2, (8, 64)).astype(np.float32)
    found = tvm.runtime.empty((8, 64), "float32")
    main(tvm.runtime.tensor(values), found)
    exact = values.astype(np.float64)
    exact = exact * np.tanh(np.log1p(np.exp(exact))) + np.exp(exact[:, ::-1])
    np.testing.assert_allclose(found.numpy(), exact, rtol=2e-6, atol=2e-6)


def activations() -> Any:
    """gelu as exporters write it, a cube, tanh, sigmoid and softmax."""
    constants = {"half": 0.5, "one": 1.0, "root": math.sqrt(0.5), "three": 3.0}
    nodes = [
        node("Mul", ["a", "root"], ["a1"]),
        node("Erf", ["a1"], ["a2"]),
        node("Add", ["a2", "one"], ["a3"]),
        node("Mul", ["a", "a3"], ["a4"]),
        node("Mul", ["a4", "half"], ["gelu"]),
        node("Pow", ["gelu", "three"], ["cubed"]),
        node("Tanh", ["cubed"], ["t"]),
        node("Sigmoid", ["t"], ["s"]),
        node("Softmax", ["s"], ["out"], axis=-1),
    ]
    weights = {name: np.array(value, np.float32) for name, value in constants.items()}
    return model(nodes, {"a": [16, 48]}, ["out", "gelu"], weights)


@pytest.mark.parametrize("make", [attention, activations])
def test_a_deployed_model_computes_what_onnx_runtime_computes(make: Callable[[], Any]) -> None:
    proto = make()
    ingested, weights = ingest_here(proto)
    scheduled = schedule_model(ingested, TARGET, {})
    machine = relax.VirtualMachine(compile_scheduled(scheduled), tvm.cpu())
    bound = machine[TRANSFORM]([tvm.runtime.tensor(weights[spec.name]) for spec in ingested.params])
    inputs = inputs_of(ingested)
    outputs = machine[MAIN](*map(tvm.runtime.tensor, inputs), *bound)
    for ours, theirs in zip(outputs, expected(proto, inputs), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=2e-6)


def _reduced(function: Callable[..., Any], shape: tuple[int, int], axis: int) -> Any:
    """A schedule of a reduction of float32[shape] over an axis; the other is vectorised."""
    x = te.placeholder(shape, "float32", name="x")
    k = te.reduce_axis((0, shape[axis]), "k")
    y = te.compute((shape[1 - axis],), lambda i: function(x[(k, i) if axis == 0 else (i, k)], axis=k), name="y")
    schedule = Schedule(IRModule({"main": te.create_prim_func([x, y])}))
    loop, _ = schedule.get_loops("y")
    outer, inner = schedule.split(loop, [None, 8])
    reduction = schedule.get_loops("y")[-1]
    schedule.reorder(outer, reduction, inner)
    schedule.vectorize(inner)
    return schedule.mod


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("function", "expected"), [(te.max, np.max), (te.min, np.min)])
def test_extrema_keep_what_is_no_number_and_begin_with_an_infinity(
    target: Any, function: Callable[..., Any], expected: Callable[..., np.ndarray]
) -> None:
    x = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    x[0, 1], x[3, 2], x[4, 3] = np.nan, np.nan, np.nan
    x[2, 4], x[2, 5] = np.inf, -np.inf
    x[:, 6], x[:, 7] = np.inf, -np.inf
    x[1:4, 8] = np.nan
    run = compile_module(_reduced(function, (5, 16), 0), target)["main"]
    y = tvm.runtime.tensor(np.zeros(16, np.float32))
    run(tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), expected(x, axis=0))


def test_the_maximum_of_a_softmax_is_not_asked_for_numbers() -> None:
    def mapped(build: Callable[[Any], Any]) -> str:
        x = te.placeholder((4, 8), "float32", name="x")
        return str(expand_intrinsics(IRModule({"main": te.create_prim_func([x, build(x)])})).script())

    def largest(x: Any) -> Any:
        k = te.reduce_axis((0, 8), "k")
        return te.compute((4,), lambda i: te.max(x[i, k], axis=k), name="largest")

    def shifted(x: Any) -> Any:
        m = largest(x)
        return te.compute((4, 8), lambda i, j: x[i, j] - m[i], name="y")

    asked = 'T.reinterpret("uint32"'
    assert asked not in mapped(topi.nn.softmax)
    assert asked not in mapped(topi.nn.log_softmax)
    assert asked in mapped(largest)
    assert asked in mapped(shifted)


def test_code_of_a_chain_of_maxima_of_padded_elements_grows_with_its_length() -> None:
    def calls(length: int) -> int:
        x = te.placeholder((64,), "float32", name="x")

        def element(i: Any) -> Any:
            found = x[i]
            for k in range(length):
                padded = tirx.if_then_else(i >= k, x[te.max(i - k, 0)], tirx.const(-1.0, "float32"))
                found = te.max(found, padded)
            return found

        y = te.compute((64,), element, name="y")
        return str(expand_intrinsics(IRModule({"main": te.create_prim_func([x, y])})).script()).count("T.max(")

    assert calls(9) - calls(8) == calls(3) - calls(2)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.attrs["mcpu"])
def test_angles_of_corners_are_those_of_c(target: Any) -> None:
    """Signed zeros, infinities and numbers that are none, each with each."""
    corners = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, INF, -INF, NAN], np.float32)
    y, x = (np.ascontiguousarray(each.ravel()) for each in np.meshgrid(corners, corners))
    a, b = (te.placeholder((y.size,), "float32", name=name) for name in "ab")
    angle = te.compute((y.size,), lambda i: tirx.atan2(a[i], b[i]))
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b, angle])}))
    (loop,) = schedule.get_loops(schedule.get_sblock("compute"))
    schedule.vectorize(schedule.split(loop, [None, 20])[1])
    found = tvm.runtime.empty((y.size,), "float32")
    compile_module(schedule.mod, target).get_function("main", query_imports=True)(
        tvm.runtime.tensor(y), tvm.runtime.tensor(x), found
    )
    with np.errstate(all="ignore"):
        wanted = np.arctan2(y, x)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=3e-7, atol=0)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found.numpy())[numbers], np.signbit(wanted)[numbers])
