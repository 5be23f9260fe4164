"""What JAX exports becomes a model that computes what JAX computes; its weights stay with the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidModel, PitchpipeError, UnsupportedOperator, UnsupportedShape
from pitchpipe.sdk import local_model
from pitchpipe.wire.job import ModelFormat
from tests.compiler.programs import TARGET
from tests.compiler.test_graph import run
from tuner.graph import finish, prepare
from tuner.ingest import IngestedModel, IngestLimits, convert, ingest, parse_container
from tuner.tvm_compat import load_ir

jax = pytest.importorskip("jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn

from tuner.ingest.isolation import join_weights, split_weights  # noqa: E402
from tuner.ingest.stablehlo_reader import read_stablehlo  # noqa: E402  # needs jaxlib

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


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_jax_computes(name: str) -> None:
    function, inputs = NETWORKS[name]
    function = jax.jit(function)
    model = local_model(jax.export.export(function)(*inputs) if name == "images" else function, inputs)
    ingested = ingest(model.data, ModelFormat.RELAX)  # as the service reads it
    arrays = [np.asarray(value) for value in inputs]
    found = run(finish(prepare(load_ir(ingested.ir), TARGET)), ingested, model.weights, arrays)
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
        (lambda x: (x.prod(0), x.max(), jnp.log1p(jnp.abs(x)), jnp.clip(x, -1, 1) ** 2), (3, 4), "float32"),
    ],
)  # fmt: skip
def test_an_operator_means_what_it_means_to_jax(function: Any, shape: tuple[int, ...], dtype: str) -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(0, 2, shape)).astype(dtype)
    program = exported(function, x)
    data, raw = read_stablehlo(program.mlir_module_serialized, IngestLimits())
    ingested, weights = split(data, raw)
    found = run(finish(prepare(load_ir(ingested.ir), TARGET)), ingested, weights, [np.asarray(x)])
    expected = program.call(x)
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-5
    for ours, theirs in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        np.testing.assert_allclose(
            ours.astype("float64"), np.asarray(theirs, "float64"), rtol=tolerance, atol=tolerance
        )


def split(data: bytes, raw: bytes) -> tuple[IngestedModel, dict[str, np.ndarray]]:
    return parse_container(data), split_weights(join_weights(data, raw))[1]


REFUSED: dict[str, tuple[Any, type[PitchpipeError], str]] = {
    "a loop": (
        lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x),
        UnsupportedOperator,
        "stablehlo.while",
    ),
    "a branch": (lambda x: lax.cond(x.sum() > 0, lambda v: v, lambda v: -v, x), UnsupportedOperator, "stablehlo.case"),
    "a sort": (lambda x: jnp.sort(x), UnsupportedOperator, "stablehlo.sort"),
    "several results": (lambda x: jnp.argmax(x, -1), UnsupportedOperator, "stablehlo.reduce with 2 results"),
    "a call out": (lambda x: jnp.linalg.cholesky(x), UnsupportedOperator, "custom_call of 'lapack_spotrf"),
    "a scattered gather": (lambda x: x[jnp.arange(4), jnp.arange(4)], UnsupportedOperator, "stablehlo.gather"),
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
