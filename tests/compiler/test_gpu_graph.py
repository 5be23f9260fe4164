"""Graph preparation for a GPU: few calls, none that only moves, and results as before. All of it runs on this processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.graphs import GPU, Graph, check, kernels, linear, run_here
from tuner.graph.prepare import call_counts, prepare
from tuner.tasks import split
from tuner.tvm_compat import relax, tirx, tvm, tvm_ffi

Emit = Callable[[Any], Any]


def stages(function: Any) -> list[Any]:
    """The blocks of a tensor function in order, without its root."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, found.append))
    return sorted(
        (each for each in found if each.iter_vars), key=lambda each: int(each.name_hint.removeprefix("stage"))
    )


def reduces(stage: Any) -> bool:
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in stage.iter_vars)


def form(prepared: Any, name: str = "attention") -> str:
    """The stages of the one function of that name: P a product, R another reduction, E element-wise."""
    (function,) = (prepared[each] for each in call_counts(prepared) if name in each)
    return "".join("E" if not reduces(each) else "R" if len(each.reads) == 1 else "P" for each in stages(function))


ATTENTION = "PERERE" + "P"
"""Product, scale and mask, maximum, exponential, sum, division, product."""


def by_head(emit: Emit, x: Any, batch: int, heads: int, size: int) -> Any:
    return emit(relax.op.permute_dims(emit(relax.op.reshape(x, [batch, -1, heads, size])), [0, 2, 1, 3]))


def read(emit: Emit, scores: Any, value: Any, shape: list[int]) -> Any:
    mixed = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), value))
    return emit(relax.op.reshape(emit(relax.op.permute_dims(mixed, [0, 2, 1, 3])), shape))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mask", ["none", "added", "chosen", "causal", "causal, chosen"])
def test_self_attention_is_one_projection_one_function_and_one_product(batch: int, mask: str) -> None:
    rows, heads, size = 8, 2, 16
    width = heads * size
    graph = Graph()
    x, padding = graph.tensor(batch, rows, width), graph.tensor(batch, 1, 1, rows)
    weights = [(graph.tensor(width, width), graph.tensor(width)) for _ in range(4)]
    low = np.finfo(np.float32).min

    def make(emit: Emit) -> Any:
        q, k, v = (by_head(emit, linear(emit, x, *pair), batch, heads, size) for pair in weights[:3])
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        scores = emit(relax.op.divide(scores, relax.const(4.0, "float32")))
        lower = np.tri(rows, dtype=bool)[None, None]
        if mask == "added":
            scores = emit(relax.op.add(scores, padding))
        elif mask == "chosen":
            hidden = emit(relax.op.greater(padding, relax.const(0.3, "float32")))
            scores = emit(relax.op.where(hidden, relax.const(-1e9, "float32"), scores))
        elif mask == "causal":
            scores = emit(relax.op.add(scores, relax.const(np.where(lower, 0, low).astype(np.float32))))
        elif mask == "causal, chosen":
            scores = emit(relax.op.where(relax.const(lower), scores, relax.const(-np.inf, "float32")))
        y = read(emit, scores, v, [batch, rows, width])
        return emit(relax.op.add(linear(emit, y, *weights[3]), x))

    prepared = check(graph, make, inputs=2, target=GPU)
    names = kernels(prepared)
    assert sum("attention" in name for name in names) == 1
    assert len(names) == 3 + (mask == "chosen")  # the comparison with the inputs is made once for all layers
    assert form(prepared) == ATTENTION
    (function,) = (prepared[name] for name in call_counts(prepared) if "attention" in name)
    assert len(function.params) == 4 + (mask in ("added", "chosen"))  # a causal mask is not read


def test_grouped_queries_read_the_keys_that_they_share() -> None:
    rows, columns, heads, shared, size = 4, 6, 4, 2, 8
    graph = Graph()
    q = graph.tensor(1, rows, heads * size)
    k, v = (graph.tensor(1, columns, shared * size) for _ in range(2))

    def make(emit: Emit) -> Any:
        def repeated(x: Any) -> Any:
            wide = emit(relax.op.expand_dims(by_head(emit, x, 1, shared, size), 2))
            wide = emit(relax.op.broadcast_to(wide, [1, shared, heads // shared, columns, size]))
            return emit(relax.op.reshape(wide, [1, heads, columns, size]))

        scores = emit(
            relax.op.matmul(by_head(emit, q, 1, heads, size), emit(relax.op.permute_dims(repeated(k), [0, 1, 3, 2])))
        )
        return read(emit, scores, repeated(v), [1, rows, heads * size])

    prepared = check(graph, make, inputs=3, target=GPU)
    assert kernels(prepared) == ["attention"]
    assert form(prepared) == "PRERE" + "P"


def test_a_scale_of_the_queries_is_one_of_the_scores() -> None:
    rows, heads, size = 6, 2, 8
    width = heads * size
    graph = Graph()
    x = graph.tensor(1, rows, width)
    weights = [(graph.tensor(width, width), graph.tensor(width)) for _ in range(3)]

    def make(emit: Emit) -> Any:
        q, k, v = (linear(emit, x, *pair) for pair in weights)
        q = emit(relax.op.multiply(q, relax.const(0.25, "float32")))
        q, k, v = (by_head(emit, each, 1, heads, size) for each in (q, k, v))
        return read(emit, emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2])))), v, [1, rows, width])

    prepared = check(graph, make, target=GPU)
    assert sum("matmul" in name for name in kernels(prepared)) == 1
    assert len(kernels(prepared)) == 2
    assert form(prepared) == ATTENTION


def test_attention_whose_probabilities_are_an_output_stays_as_it_is() -> None:
    graph = Graph()
    q, k, v = (graph.tensor(2, 5, 8) for _ in range(3))

    def make(emit: Emit) -> list[Any]:
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 2, 1]))))
        probabilities = emit(relax.op.nn.softmax(scores))
        return [probabilities, emit(relax.op.matmul(probabilities, v))]

    assert kernels(check(graph, make, inputs=3, target=GPU)) == ["einsum", "matmul", "softmax"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_in_half_precision_sums_in_float32(dtype: str) -> None:
    rows, size = 8, 512
    graph = Graph()
    q, k, v = (graph.tensor(1, 1, rows, size, dtype=dtype) for _ in range(3))

    def make(emit: Emit) -> Any:
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        return emit(
            relax.op.matmul(emit(relax.op.nn.softmax(emit(relax.op.multiply(scores, relax.const(0.05, dtype))))), v)
        )

    prepared = prepare(graph.module(make, 3), GPU)
    assert kernels(prepared) == ["attention"]
    (found,) = run_here(prepared, graph.values, [])
    a, b, c = (value.astype(np.float64)[0, 0] for value in graph.values)
    scores = np.exp((scores := a @ b.T * 0.05) - scores.max(-1, keepdims=True))
    expected = scores / scores.sum(-1, keepdims=True) @ c
    step = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(found[0, 0].astype(np.float64), expected, rtol=0, atol=6 * step)
    function = prepared[next(iter(call_counts(prepared)))]
    assert all(
        str(write.source.ty.dtype) == "float32" for each in stages(function) if reduces(each) for write in each.writes
    )


def test_keys_that_are_joined_to_a_cache_are_read_where_they_lie() -> None:
    heads, cached, size = 2, 6, 16
    graph = Graph()
    q, k, v = (graph.tensor(1, heads, 1, size) for _ in range(3))
    caches = [graph.tensor(3, 1, heads, cached, size) for _ in range(2)]

    def make(emit: Emit) -> Any:
        def joined(cache: Any, new: Any) -> Any:
            layer = emit(relax.op.take(cache, relax.const(1, "int64"), axis=0, mode="clip"))
            return emit(relax.op.concat([layer, new], axis=2))

        keys, values = joined(caches[0], k), joined(caches[1], v)
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(keys, [0, 1, 3, 2]))))
        return read(emit, scores, values, [1, 1, heads * size])

    prepared = check(graph, make, inputs=5, target=GPU)
    assert kernels(prepared) == ["attention"]
    assert form(prepared) == "PRERE" + "P"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_norm_that_is_spelled_out_is_one_function(dtype: str) -> None:
    graph = Graph()
    x, weight = graph.tensor(3, 5, 16, dtype=dtype), graph.tensor(16, dtype=dtype)

    def make(emit: Emit) -> Any:
        wide = emit(relax.op.astype(x, "float32")) if dtype != "float32" else x
        mean = emit(relax.op.mean(emit(relax.op.power(wide, relax.const(2.0, "float32"))), -1, keepdims=True))
        root = emit(relax.op.rsqrt(emit(relax.op.add(mean, relax.const(1e-6, "float32")))))
        scaled = emit(relax.op.multiply(wide, root))
        if dtype != "float32":
            scaled = emit(relax.op.astype(scaled, dtype))
        return emit(relax.op.multiply(weight, scaled))

    prepared = prepare(graph.module(make, 1), GPU)
    assert len(kernels(prepared)) == 1
    (found,) = run_here(prepared, graph.values[:1], graph.values[1:])
    a, b = (value.astype(np.float64) for value in graph.values)
    expected = a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-6) * b
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=1e-5 if dtype == "float32" else 2e-3)


def test_the_sum_before_a_norm_belongs_to_the_product_if_it_follows_one() -> None:
    graph = Graph()
    x, other = graph.tensor(6, 32), graph.tensor(6, 16)
    weight, bias, gamma, beta = graph.tensor(16, 32), graph.tensor(16), graph.tensor(16), graph.tensor(16)

    def make(emit: Emit) -> list[Any]:
        of_product = emit(relax.op.add(linear(emit, x, weight, bias), other))
        alone = emit(relax.op.add(emit(relax.op.nn.gelu(other)), beta))
        return [emit(relax.op.nn.layer_norm(each, gamma, beta, axes=[-1])) for each in (of_product, alone)]

    names = kernels(check(graph, make, inputs=2, target=GPU))
    assert names == ["gelu_add_layer_norm", "layer_norm", "matmul_add_add"]


def test_a_group_ends_where_a_value_is_read_elsewhere_too() -> None:
    graph = Graph()
    x, gamma, beta = graph.tensor(4, 8), graph.tensor(8), graph.tensor(8)

    def make(emit: Emit) -> list[Any]:
        total = emit(relax.op.add(x, gamma))
        normed = emit(relax.op.nn.layer_norm(total, gamma, beta, axes=[-1]))
        centred = emit(relax.op.subtract(x, emit(relax.op.mean(x, -1, keepdims=True))))
        square = emit(relax.op.mean(emit(relax.op.multiply(centred, centred)), -1, keepdims=True))
        return [total, normed, emit(relax.op.divide(centred, emit(relax.op.sqrt(square))))]

    names = kernels(check(graph, make, target=GPU))
    assert names == ["add", "layer_norm", "mean_subtract_multiply_mean_sqrt_divide"]


@pytest.mark.parametrize("order", ["parts first", "heads first", "heads first, turned"])
def test_parts_of_a_projection_are_not_copied(order: str) -> None:
    rows, heads, size = 6, 2, 16
    width = heads * size
    graph = Graph()
    x, weight, bias = graph.tensor(1, rows, width), graph.tensor(3 * width, width), graph.tensor(3 * width)

    def make(emit: Emit) -> Any:
        y = linear(emit, x, weight, bias)
        if order == "parts first":
            parts = emit(relax.op.split(y, 3, axis=-1))
            q, k, v = (by_head(emit, emit(relax.TupleGetItem(parts, part)), 1, heads, size) for part in range(3))
        elif order == "heads first":
            y = emit(relax.op.reshape(y, [1, rows, heads, 3, size]))
            parts = [emit(relax.op.strided_slice(y, [3], [part], [part + 1])) for part in range(3)]
            q, k, v = (by_head(emit, part, 1, heads, size) for part in parts)
        else:
            parts = emit(relax.op.split(by_head(emit, y, 1, heads, 3 * size), 3, axis=-1))
            q, k, v = (emit(relax.TupleGetItem(parts, part)) for part in range(3))
        return read(emit, emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2])))), v, [1, rows, width])

    prepared = check(graph, make, target=GPU)
    assert kernels(prepared) == ["attention", "matmul_add"]
    (function,) = (prepared[name] for name in call_counts(prepared) if "attention" in name)
    assert [list(map(int, each.ty.shape)) for each in function.params[:3]] == [[heads, rows, size]] * 3


def test_a_product_of_scores_reads_two_tensors() -> None:
    graph = Graph()
    x, v = graph.tensor(2, 6, 3, 16), graph.tensor(2, 3, 6, 16)

    def make(emit: Emit) -> Any:
        turned = emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
        scores = emit(relax.op.matmul(turned, emit(relax.op.permute_dims(turned, [0, 1, 3, 2]))))
        return read(emit, scores, v, [2, 6, 48])

    prepared = check(graph, make, inputs=2, target=GPU)
    assert kernels(prepared) == ["attention"]
    (function,) = (prepared[name] for name in call_counts(prepared) if "attention" in name)
    assert len(stages(function)[0].reads) == 2


def test_embeddings_are_one_function_from_the_tokens_on() -> None:
    graph = Graph()
    tokens = relax.Var("tokens", relax.TensorType((1, 6), "int64"))
    graph.variables.append(tokens)
    graph.values.append(np.array([[0, 3, 19, 7, 7, 1]]))
    table, places = graph.tensor(20, 16), graph.tensor(6, 16)

    def make(emit: Emit) -> Any:
        found = emit(relax.op.take(table, emit(relax.op.reshape(tokens, [6])), axis=0, mode="clip"))
        return emit(relax.op.multiply(emit(relax.op.add(found, places)), relax.const(4.0, "float32")))

    assert len(kernels(check(graph, make, target=GPU))) == 1


def test_weights_that_are_repeated_for_every_image_are_read_once() -> None:
    graph = Graph()
    x, weight, bias = graph.tensor(6, 1, 16), graph.tensor(32, 16), graph.tensor(32)

    def make(emit: Emit) -> Any:
        repeated = emit(relax.op.broadcast_to(emit(relax.op.permute_dims(weight, [1, 0])), [6, 16, 32]))
        return emit(relax.op.add(emit(relax.op.matmul(x, repeated)), bias))

    prepared = check(graph, make, target=GPU)
    (function,) = (prepared[name] for name in call_counts(prepared))
    assert [list(map(int, each.ty.shape)) for each in function.params] == [[6, 16], [16, 32], [32], [6, 32]]


def test_projections_are_merged_if_some_have_no_bias() -> None:
    graph = Graph()
    x, weights, bias = graph.tensor(8, 32), [graph.tensor(16, 32) for _ in range(3)], graph.tensor(16)

    def make(emit: Emit) -> list[Any]:
        plain = emit(relax.op.matmul(x, emit(relax.op.permute_dims(weights[2], [1, 0]))))
        return [*(linear(emit, x, weight, bias) for weight in weights[:2]), plain]

    names = kernels(check(graph, make, target=GPU))
    assert [name for name in names if "add" in name] == ["matmul_add"]


def test_an_activation_behind_a_reshape_follows_its_convolution() -> None:
    graph = Graph()
    x, weight = graph.tensor(1, 8, 6, 6), graph.tensor(8, 1, 3, 3)

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.conv2d(x, weight, padding=1, groups=8))
        tokens = emit(relax.op.permute_dims(emit(relax.op.reshape(y, [1, 8, 36])), [0, 2, 1]))
        return emit(relax.op.nn.gelu(tokens))

    assert kernels(check(graph, make, target=GPU)) == ["conv2d_gelu", "transpose"]


def test_tokens_are_added_to_an_image_where_both_lie() -> None:
    graph = Graph()
    x, kernel = graph.tensor(1, 8, 4, 6), graph.tensor(16, 8, 3, 3)
    weight, bias, last = graph.tensor(16, 16), graph.tensor(16), graph.tensor(16, 16, 1, 1)

    def make(emit: Emit) -> Any:
        image = emit(relax.op.nn.conv2d(x, kernel, padding=1))
        tokens = emit(relax.op.permute_dims(emit(relax.op.reshape(image, [16, 24])), [1, 0]))
        tokens = emit(relax.op.permute_dims(linear(emit, tokens, weight, bias), [1, 0]))
        total = emit(relax.op.add(image, emit(relax.op.reshape(tokens, [1, 16, 4, 6]))))
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(total, last))))
        return emit(relax.op.mean(y, [2, 3]))

    names = kernels(check(graph, make, target=GPU))
    assert names == ["conv2d", "conv2d_relu", "matmul_add_add", "mean"]


@pytest.mark.parametrize("operator", ["cumsum", "cumprod"])
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans_are_reductions(operator: str, axis: int | None, exclusive: bool) -> None:
    graph = Graph()
    x = graph.tensor(4, 5)
    make = getattr(relax.op, operator)
    check(graph, lambda emit: emit(make(x, axis, exclusive=exclusive)), target=GPU)


@pytest.mark.parametrize("operator", ["cumsum", "cumprod"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
@pytest.mark.parametrize(("shape", "axis"), [((300, 2), 0), ((2, 5000), 1), ((20_000,), 0)], ids=str)
def test_long_scans_are_scans_of_parts(
    shape: tuple[int, ...], axis: int, dtype: str, exclusive: bool, operator: str
) -> None:
    graph = Graph()
    x = graph.tensor(*shape, dtype=dtype)
    drawn = np.random.default_rng(0).uniform(-1, 1, shape)
    drawn = np.round(drawn * 3) if dtype == "int64" else 1 + drawn / 100 if operator == "cumprod" else drawn
    graph.values[0] = drawn.astype(dtype)
    make = getattr(relax.op, operator)
    prepared = prepare(graph.module(lambda emit: emit(make(x, axis, exclusive=exclusive)), 1), GPU)
    (found,) = run_here(prepared, graph.values, [])
    expected = getattr(np, operator)(graph.values[0].astype("float64"), axis)
    if exclusive:
        expected = np.roll(expected, 1, axis)
        np.moveaxis(expected, axis, 0)[0] = operator == "cumprod"
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=np.abs(expected).max() * (1e-3 if dtype == "float16" else 1e-5)
    )
    assert len(call_counts(prepared)) == (5 if shape == (20_000,) else 3), "each part is summed, and what is before it"


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_sorts_are_reductions_that_keep_the_order_of_equal_elements(descending: bool, axis: int) -> None:
    graph = Graph()
    x, y = graph.tensor(4, 6), graph.tensor(4, 6)
    graph.values[0] = np.round(graph.values[0] * 2)

    def make(emit: Emit) -> list[Any]:
        places = emit(relax.op.argsort(x, axis, descending, "int64"))
        best = emit(relax.op.topk(y, 3, axis=axis, ret_type="both", largest=descending, dtype="int32"))
        return [
            places,
            emit(relax.op.sort(x, axis, descending)),
            *(emit(relax.TupleGetItem(best, n)) for n in range(2)),
        ]

    prepared = check(graph, make, inputs=2, target=GPU)
    assert len(split(prepared, GPU)) == 4  # each has a schedule for a GPU


def test_what_is_no_number_is_sorted_behind_all_others() -> None:
    graph = Graph()
    x = graph.tensor(5)
    graph.values[0] = np.array([np.nan, 1, np.inf, np.nan, -1], np.float32)
    prepared = prepare(graph.module(lambda emit: emit(relax.op.argsort(x, 0, False, "int64")), 1), GPU)
    np.testing.assert_array_equal(run_here(prepared, graph.values, [])[0], [4, 1, 2, 0, 3])


def test_a_group_norm_between_casts_is_one_function_with_its_activation() -> None:
    graph = Graph()
    x, weight = graph.tensor(2, 8, 4, 4, dtype="float16"), graph.tensor(8, 8, 1, 1, dtype="float16")
    gamma, beta = graph.tensor(8), graph.tensor(8)

    def make(emit: Emit) -> Any:
        y = emit(relax.op.nn.conv2d(x, weight))
        wide = emit(relax.op.astype(y, "float32"))
        normed = emit(relax.op.nn.group_norm(wide, gamma, beta, num_groups=2, channel_axis=1, axes=[2, 3]))
        return emit(relax.op.nn.silu(emit(relax.op.astype(normed, "float16"))))

    prepared = prepare(graph.module(make, 1), GPU)
    names = kernels(prepared)
    assert sum("group_norm" in name for name in names) == 1
    assert any("group_norm_astype_silu" in name for name in names)
    assert not {"astype", "cast", "silu"} & set(names)
    (found,) = run_here(prepared, graph.values[:1], graph.values[1:])
    values = [value.astype(np.float64) for value in graph.values]
    y = np.einsum("nchw,oc->nohw", values[0], values[1][:, :, 0, 0])
    parts = y.reshape(2, 2, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    y = parts.reshape(2, 8, 4, 4) * values[2][:, None, None] + values[3][:, None, None]
    np.testing.assert_allclose(found.astype(np.float64), y / (1 + np.exp(-y)), atol=5e-3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("axis", [1, None])
def test_whole_numbers_that_threads_cannot_exchange_are_reduced_in_32_bits(
    name: str, dtype: str, axis: int | None
) -> None:
    """Negative ones too, to sums and products that wrap around, and to a scalar."""
    graph = Graph()
    x = graph.tensor(3, 7)
    given = np.array([[-3, 5, 3, -5, 7, 9, -7], [100, 90, 80, 70, 60, 50, 41], [-1, -128, -9, -11, -90, -77, -3]])
    graph.values[0] = (given if dtype.startswith("int") else abs(given)).astype(np.float32)

    def make(emit: Emit) -> Any:
        narrow = emit(relax.op.astype(x, dtype))
        return emit(getattr(relax.op, name)(narrow, axis=axis))

    prepared = prepare(graph.module(make, 1), GPU)
    assert ("uint32" if name in ("sum", "prod") else "int32") in prepared.script()
    (found,) = run_here(prepared, graph.values, [])
    expected = getattr(np, name)(graph.values[0].astype(np.int64), axis=axis).astype(dtype)
    np.testing.assert_array_equal(found, expected)
