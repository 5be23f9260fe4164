"""What JAX exports becomes a model that computes what JAX computes; its weights stay with the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidModel, PitchpipeError, UnsupportedOperator, UnsupportedShape
from pitchpipe.model.comparison import difference
from pitchpipe.model.local import local_model
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.deploy.finish import finish
from tuner.graph.prepare import prepare
from tuner.ingest import IngestedModel, IngestLimits, convert, ingest, parse_container
from tuner.tvm_compat import load_ir

jax = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn

from tuner.ingest.isolation import join_weights, split_weights  # noqa: E402
from tuner.ingest.stablehlo_reader import MAX_STEPS, read_stablehlo  # noqa: E402  # needs jaxlib

RNG = np.random.default_rng(0)


def values(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(0, 0.3, shape).astype(np.float32))


def exported(function: Any, *inputs: Any) -> Any:
    return jax.export.export(jax.jit(function))(*inputs)


STEM, DEEP, HEAD = values(3, 3, 3, 16), values(3, 3, 1, 16), values(16, 10)


def image_network(x: Any) -> Any:
    """Strided and depthwise convolutions, batch norm written out, both kinds of pooling, a head."""

    def conv(x: Any, kernel: Any, stride: int, groups: int = 1) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    a = nn.relu6(conv(x, STEM, 2) + values(16))
    b = (conv(a, DEEP, 1, 16) - values(16)) * lax.rsqrt(jnp.abs(values(16)) + 1e-3)
    c = lax.reduce_window(a + nn.silu(b), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    d = lax.reduce_window(c, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4
    return nn.softmax(d.mean((1, 2)) @ HEAD), c


TABLE, POSITIONS = values(20, 32), values(6, 32)
QKV, OUT, UP, DOWN = values(3, 4, 8, 32), values(4, 8, 32), values(32, 64), values(64, 32)


def text_network(ids: Any, mask: Any) -> Any:
    """A block of a transformer: gathers, heads by einsum, a masked softmax, layer norms, erf and its kin."""

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    x = norm(TABLE[ids] + POSITIONS)
    q, k, v = jnp.einsum("bsd,thed->tbhse", x, QKV)
    scores = jnp.where(mask[:, None, None, :] > 0, jnp.einsum("bhse,bhte->bhst", q, k) / 8**0.5, -1e9)
    mixed = jnp.einsum("bhst,bhte->bshe", nn.softmax(scores), v)
    x = norm(x + jnp.einsum("bshe,hed->bsd", mixed, OUT))
    x = x + nn.gelu(x @ UP, approximate=False) @ DOWN
    return jnp.concatenate([x[:, ::2], jnp.pad(nn.elu(x), ((0, 0), (1, 2), (0, 0)))], 1)


NETWORKS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "images": (image_network, (values(2, 12, 12, 3),)),
    "text": (text_network, (jnp.asarray(RNG.integers(0, 20, (2, 6)), jnp.int32), jnp.ones((2, 6), jnp.float32))),
}


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_jax_computes(name: str) -> None:
    function, inputs = NETWORKS[name]
    function = jax.jit(function)
    model = local_model(jax.export.export(function)(*inputs) if name == "images" else function, inputs)
    ingested = ingest(model.data, ModelFormat.RELAX)  # as the service reads it
    arrays = [np.asarray(value) for value in inputs]
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, model.weights, arrays)
    expected = function(*inputs)
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_text_is_read_as_well_as_bytecode_and_without_its_weights() -> None:
    def network(head: Any) -> Any:
        return exported(lambda x: nn.relu(x @ head), values(2, 16))

    first, second = network(HEAD), network(HEAD + 1)
    data, weights = convert(first.mlir_module().encode(), ModelFormat.STABLEHLO)
    assert data == convert(second.mlir_module_serialized, ModelFormat.STABLEHLO)[0]
    np.testing.assert_array_equal(*weights.values(), HEAD)


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (lambda x: lax.dot_general(x, x, (((1, 3), (1, 3)), ((2,), (2,)))), (2, 3, 4, 5), "float32"),
        (lambda x: lax.broadcast_in_dim(x, (5, 4, 5), (0, 2))[:, 1] * x, (5, 5), "float32"),
        (lambda x: jnp.where(~(x > 1) | (x == 0), x * 3, -x), (4, 3), "int32"),
        (lambda x: nn.softmax(x) @ x.T, (8, 8), "bfloat16"),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), (1, 2, 4, 4), "float32"),
        (
            lambda x: lax.conv_general_dilated(x, STEM[:, :, :2], (1, 1), [(0, 1), (2, 0)], rhs_dilation=(1, 2),
                                               dimension_numbers=("NCHW", "HWIO", "NCHW")),
            (1, 2, 6, 6),
            "float32",
        ),
        (lambda x: tuple(jnp.where(is_so(x > 0, x.T > 0), x, -x) for is_so in (lax.lt, lax.le, lax.gt, lax.ge)), (4, 4), "float32"),
        (lambda x: (x.prod(0), x.max(), jnp.log1p(jnp.abs(x)), jnp.clip(x, -1, 1) ** 2), (3, 4), "float32"),
    ],
)  # fmt: skip
def test_an_operator_means_what_it_means_to_jax(function: Any, shape: tuple[int, ...], dtype: str) -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(0, 2, shape)).astype(dtype)
    program = exported(function, x)
    data, raw = read_stablehlo(program.mlir_module_serialized, IngestLimits())
    ingested, weights = split(data, raw)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [np.asarray(x)])
    expected = program.call(x)
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-5
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(
            ours.astype("float64"), np.asarray(theirs, "float64"), rtol=tolerance, atol=tolerance
        )


def step(carry: Any, row: Any) -> tuple[Any, Any]:
    return jnp.tanh(carry + row), carry


FAMILIES: dict[str, Any] = {
    "indices beyond the ends": lambda x, i, at, s: (
        *(jnp.take(x, i, axis=1, mode=mode) for mode in ("clip", "fill", "wrap")),
        x[i],
        x[:, -1],
    ),
    "several indices": lambda x, i, at, s: (
        x[at, at + 1],
        x[at, :, at],
        jnp.take_along_axis(x, jnp.broadcast_to(at[:1, :, None], (3, 2, 5)), axis=1),
        jax.vmap(lambda row, first: lax.dynamic_slice(row, (first, 0), (2, 5)))(x, i[:3]),
    ),
    "slices at computed places": lambda x, i, at, s: (
        lax.dynamic_slice(x, (s - 6, s, 0), (2, 3, 5)),
        lax.dynamic_slice(x, (0, -s, s), (3, 2, 2)),
        lax.dynamic_index_in_dim(x, s - 9, 0, keepdims=False),
    ),
    "updates at computed places": lambda x, i, at, s: (
        lax.dynamic_update_slice(x, x[:2, :2] * 2, (s, s - 6, 0)),
        lax.dynamic_update_slice(x, x[:2] * 2, (5, 0, 0)),
        lax.dynamic_update_slice_in_dim(x, x[:, :1] * 2, s - 5, 1),
    ),
    "whole numbers": lambda x, i, at, s: (
        i // 4,
        i % 4,
        lax.div(i, jnp.int32(4)),
        lax.rem(i, jnp.int32(4)),
        (i > 0) != (i > 2),
    ),
    "paddings": lambda x, i, at, s: (lax.pad(x, 0.5, ((0, 1, 1), (-1, 2, 0), (2, -3, 2))), x[::-1, :, ::-2]),
    "loops": lambda x, i, at, s: (
        lax.scan(step, x[0], x),
        lax.scan(step, x[0], x, reverse=True),
        lax.fori_loop(0, 3, lambda k, v: v * 0.5 + x[k], x[0]),
    ),
    "sequences": lambda x, i, at, s: (
        lax.conv_general_dilated(x, WIDE[0, :, :5], (2,), [(1, 2)], dimension_numbers=("NWC", "WIO", "NWC")),
        lax.conv_general_dilated(
            x, WIDE[0, :, :4], (1,), "SAME", rhs_dilation=(2,), dimension_numbers=("NCW", "WIO", "NCW")
        ),
    ),
    "transposed convolutions": lambda x, i, at, s: (
        lax.conv_transpose(x[None], WIDE[:, :2, :5], (2, 3), "VALID"),
        lax.conv_transpose(x[None], WIDE[:2, :, :, :5], (2, 1), "SAME", transpose_kernel=True),
    ),
    "along an axis": lambda x, i, at, s: (
        jnp.cumsum(x, 1),
        lax.cumsum(x, 2, reverse=True),
        jnp.argmax(x, -1),
        jnp.argmin(x, 1),
        jnp.any(x > 3, axis=1),
        jnp.all(x > -5, axis=(0, 2)),
    ),
}
WIDE = values(3, 3, 6, 6)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_operators_that_index_and_repeat_mean_what_they_mean_to_jax(name: str) -> None:
    inputs = (
        jnp.asarray(np.random.default_rng(1).normal(0, 2, (3, 4, 5)), jnp.float32),
        jnp.asarray([-7, -1, 0, 2, 3, 9], jnp.int32),
        jnp.asarray([[0, 1], [2, -1]], jnp.int32),
        jnp.int32(7),
    )
    program = jax.export.export(jax.jit(FAMILIES[name], keep_unused=True))(*inputs)
    data, raw = read_stablehlo(program.mlir_module_serialized, IngestLimits())
    ingested, weights = split(data, raw)
    found = run(
        finish(prepare(load_ir(ingested.ir), TARGET), TARGET), ingested, weights, [np.asarray(one) for one in inputs]
    )
    assert difference(found, [np.asarray(leaf) for leaf in jax.tree.leaves(program.call(*inputs))]) is None


def split(data: bytes, raw: bytes) -> tuple[IngestedModel, dict[str, np.ndarray]]:
    return parse_container(data), split_weights(join_weights(data, raw))[1]


REFUSED: dict[str, tuple[Any, type[PitchpipeError], str]] = {
    "a loop": (
        lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x),
        UnsupportedOperator,
        "stablehlo.while of a number of steps that data decide",
    ),
    "a long loop": (
        lambda x: lax.scan(lambda v, _: (v + 1, None), x, None, length=MAX_STEPS + 1)[0],
        UnsupportedOperator,
        f"stablehlo.while of more than {MAX_STEPS} steps",
    ),
    "a scatter": (lambda x: x.at[1].set(0.0), UnsupportedOperator, "stablehlo.scatter"),
    "a quotient": (
        lambda x: lax.div(x.astype(int), x.astype(int)),
        UnsupportedOperator,
        "stablehlo.divide of integers",
    ),
    "a branch": (lambda x: lax.cond(x.sum() > 0, lambda v: v, lambda v: -v, x), UnsupportedOperator, "stablehlo.case"),
    "a sort": (lambda x: jnp.sort(x), UnsupportedOperator, "stablehlo.sort"),
    "several results": (
        lambda x: lax.reduce((x, x), (0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)),
        UnsupportedOperator,
        "stablehlo.reduce with 2 results",
    ),
    "a call out": (lambda x: jnp.linalg.cholesky(x), UnsupportedOperator, "custom_call of 'lapack_spotrf"),
    "complex numbers": (lambda x: jnp.abs(x + 1j), UnsupportedOperator, "complex"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_tuned_is_refused_by_name(case: str) -> None:
    function, kind, message = REFUSED[case]
    program = exported(function, jnp.ones((4, 4)))
    with pytest.raises(kind, match=message):
        read_stablehlo(program.mlir_module_serialized, IngestLimits())


MAIN = "func.func public @main(%arg0: tensor<{0}>) -> tensor<{0}> {{ {1} return %0 : tensor<{0}> }}"
HOSTILE: dict[str, tuple[bytes, type[PitchpipeError], str]] = {
    "not one": (b"PK and more", InvalidModel, "is not StableHLO"),
    "cut off": (b"ML\xefR and more", InvalidModel, "is not StableHLO"),
    "no main": (b"module {}", InvalidModel, "no function main"),
    "a function that calls itself": (
        MAIN.format("2xf32", "%0 = call @main(%arg0) : (tensor<2xf32>) -> tensor<2xf32>").encode(),
        InvalidModel,
        "call each other",
    ),
    "a dynamic shape": (MAIN.format("?xf32", "%0 = stablehlo.abs %arg0 : tensor<?xf32>").encode(), UnsupportedShape, "arg0"),
    "a bomb": (
        MAIN.format("2xf32", "%0 = stablehlo.abs %arg0 : tensor<2xf32> "
        "%1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<2xf32>) -> tensor<99999999999x2xf32>").encode(),
        UnsupportedShape,
        "99999999999",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case: str) -> None:
    data, kind, message = HOSTILE[case]
    with pytest.raises(kind, match=message):
        read_stablehlo(data, IngestLimits())
