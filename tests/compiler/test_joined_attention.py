"""Attention of tensors that are joined or cast on the way to it: one kernel on tensor cores, which reads what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.compiler.attention import close, softmax
from tests.compiler.gpu_cases import arguments_of, check, on_the_host
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.graphs import GPU, Graph, kernels, run_here
from tests.triton_interpreter import run
from tuner.graph.prepare import call_counts, prepare, workload_module
from tuner.ingest import parse_container
from tuner.ingest.torch_export import from_torch
from tuner.templates.kernels import source_of
from tuner.templates.text import ROWS
from tuner.templates.text import checked as chosen
from tuner.tvm_compat import load_ir, relax

op = relax.op
Emit = Callable[[Any], Any]
HEADS = 2


def one_kernel(graph: Graph, make: Emit, wanted: np.ndarray) -> Any:
    """The attention's workload, the only one of a graph of inputs alone, after it computed `wanted` here and, by its default
    schedule, as one kernel on tensor cores, what it computes here."""
    prepared = prepare(graph.module(make, len(graph.values)), GPU)
    (name,) = call_counts(prepared)
    assert kernels(prepared) == ["attention"]
    (found,) = run_here(prepared, graph.values, [])
    close(found.astype(np.float64), wanted, "float16")
    mod = workload_module(prepared[name])
    default = check(mod, HOPPER)
    assert len(default.lowered.calls) == 1
    assert "wmma_sync" in default.trace
    return mod


def read(emit: Emit, q: Any, k: Any, v: Any) -> Any:
    scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
    dtype = str(scores.ty.dtype)
    shares = emit(op.nn.softmax(emit(op.multiply(scores, relax.const(0.25, dtype)))))
    return emit(op.matmul(shares if dtype == "float16" else emit(op.astype(shares, "float16")), v))


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    return softmax(q @ k.swapaxes(-1, -2) * 0.25) @ v


JOINED = {
    # name: (axis, extents of the parts of queries, of keys, of values, of which any but `axis` is the first one's)
    "a prefix of queries and keys": (2, (1, 36), (1, 36), (37,)),
    "a rotated half of queries and keys": (3, (16, 16), (16, 16), (32,)),
    "parts whose border no vector has": (3, (4, 7, 21), (4, 7, 21), (32,)),
    "keys and values behind a cache": (2, (20,), (30, 20), (30, 20)),
}


def sizes_of(parts: tuple[int, ...], axis: int, rows: int) -> list[tuple[int, ...]]:
    return [(1, HEADS, part, 32) if axis == 2 else (1, HEADS, rows, part) for part in parts]


def joined(name: str) -> tuple[Graph, Emit, np.ndarray]:
    """A graph, what it is made of, and what it computes."""
    axis, *extents = JOINED[name]
    graph = Graph()
    parts = [[graph.tensor(*shape, dtype="float16") for shape in sizes_of(each, axis, rows=24)] for each in extents]

    def make(emit: Emit) -> Any:
        return read(emit, *(emit(op.concat(each, axis)) if len(each) > 1 else each[0] for each in parts))

    given = iter(graph.values)
    q, k, v = (np.concatenate([next(given) for _ in each], axis) for each in parts)
    return graph, make, reference(q, k, v)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_for_an_attention_is_joined_where_it_is_copied(name: str) -> None:
    one_kernel(*joined(name))


@pytest.mark.parametrize("keys", [0, 32])
@pytest.mark.parametrize("name", JOINED)
def test_a_template_reads_what_is_joined(name: str, keys: int) -> None:
    graph, make, _ = joined(name)
    prepared = prepare(graph.module(make, len(graph.values)), GPU)
    mod = workload_module(prepared[next(iter(call_counts(prepared)))])
    values = arguments_of(mod)
    run(source_of(mod, chosen(ROWS, {"rows": 16, "warps": 4, "early": 0, "keys": keys, "depth": 2})), values)
    close(values[-1].astype(np.float64), on_the_host(mod, arguments_of(mod))[-1], "float16")


@pytest.mark.filterwarnings("ignore")
def test_keys_that_are_joined_and_shared_by_heads_are_copied_in_vectors() -> None:
    graph = Graph()
    q, v = (graph.tensor(1, 2 * HEADS, 33, 32, dtype="float16") for _ in range(2))
    cache, new = (graph.tensor(1, rows, HEADS, 32, dtype="float16") for rows in (8, 25))

    def make(emit: Emit) -> Any:
        keys = emit(op.permute_dims(emit(op.concat([cache, new], 1)), [0, 2, 1, 3]))
        keys = emit(op.broadcast_to(emit(op.expand_dims(keys, 2)), [1, HEADS, 2, 33, 32]))
        return read(emit, q, emit(op.reshape(keys, [1, 2 * HEADS, 33, 32])), v)

    queries, values, *joined = graph.values
    keys = np.repeat(np.concatenate(joined, 1).swapaxes(1, 2), 2, axis=1)
    mod = one_kernel(graph, make, reference(queries, keys, values))
    source = check(mod, HOPPER).lowered.source
    assert sum(f"*(uint4*)(a{at}_ptr" in source for at in range(4)) == 4


def wide(emit: Emit, x: Any, times: float = 1) -> Any:
    single = emit(op.astype(x, "float32"))
    return single if times == 1 else emit(op.multiply(single, relax.const(times, "float32")))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_queries_and_keys_that_are_cast_to_single_precision_are_read_in_half(times: int) -> None:
    graph = Graph()
    q, k, v = (graph.tensor(1, HEADS, 33, 32, dtype="float16") for _ in range(3))
    queries, keys, values = graph.values
    wanted = reference(queries * times, keys * times, values)
    mod = one_kernel(graph, lambda emit: read(emit, wide(emit, q, times), wide(emit, k, times), v), wanted)
    assert {str(param.ty.dtype) for param in mod["main"].params} == {"float16"}


@pytest.mark.filterwarnings("ignore")
def test_what_is_cast_and_then_joined_is_read_in_half_unless_a_part_of_it_is_scaled() -> None:
    graph = Graph()
    parts = [graph.tensor(1, HEADS, rows, 32, dtype="float16") for rows in (9, 24)]
    v = graph.tensor(1, HEADS, 33, 32, dtype="float16")
    *pair, values = graph.values

    def make(emit: Emit, times: float) -> Any:
        q, k = (emit(op.concat([wide(emit, parts[0], times), wide(emit, parts[1])], 2)) for _ in range(2))
        return read(emit, q, k, v)

    both = np.concatenate(pair, 2)
    one_kernel(graph, lambda emit: make(emit, 1), reference(both, both, values))
    prepared = prepare(graph.module(lambda emit: make(emit, 2), 3), GPU)
    (found,) = run_here(prepared, graph.values, [])
    both = np.concatenate([pair[0] * 2, pair[1]], 2)
    close(found.astype(np.float64), reference(both, both, values), "float16")


def test_queries_of_single_precision_are_no_others_beside_keys_that_are_cast_to_it() -> None:
    graph = Graph()
    q, k, v = (graph.tensor(1, HEADS, 33, 32, dtype=dtype) for dtype in ("float32", "float16", "float16"))

    def make(emit: Emit) -> Any:
        return read(emit, q, emit(op.astype(k, "float32")), v)

    prepared = prepare(graph.module(make, 3), GPU)
    (name,) = [each for each in call_counts(prepared) if "attention" in each]
    assert [str(param.ty.dtype) for param in prepared[name].params[:2]] == ["float32", "float32"]
    (found,) = run_here(prepared, graph.values, [])
    close(found.astype(np.float64), reference(*graph.values), "float16")


def module_of(name: str) -> Any:
    """Attention of queries, keys and values as models spell it out in PyTorch."""
    torch = pytest.importorskip("torch")

    def turned(x: Any) -> Any:
        one, other = x.chunk(2, -1)
        return x * 0.5 + torch.cat([-other, one], -1) * 0.25

    def behind_a_prefix(x: Any) -> Any:
        return torch.cat([x[:, :, :5], turned(x[:, :, 5:])], 2)

    def a_half(x: Any) -> Any:
        return torch.cat([turned(x[..., :16]), x[..., 16:]], -1)

    def cast(q: Any, k: Any, v: Any) -> Any:
        scores = q.float() @ k.float().transpose(-1, -2) * 0.17 - torch.arange(k.shape[-2]) * 0.3
        return scores.softmax(-1).half() @ v

    def rotated(rotate: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(rotate(q), rotate(k), v)

    functions = {"cast": cast, "behind a prefix": rotated(behind_a_prefix), "a half": rotated(a_half)}

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return functions[name](q, k, v)

    return Module().eval()


@pytest.mark.parametrize("scale", [1.0, -30.0], ids=["alike", "of one key nearly"])
@pytest.mark.parametrize(("rows", "keys"), [(24, 40), (6, 6), (6, 40)])
@pytest.mark.parametrize("name", ["cast", "behind a prefix", "a half"])
def test_what_is_prepared_for_a_gpu_computes_what_pytorch_does(name: str, rows: int, keys: int, scale: float) -> None:
    """In half precision, joined or cast, with scores so large that a softmax is of one key nearly."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module, inputs = module_of(name), tuple((torch.randn(1, 3, n, 32) * scale).half() for n in (rows, keys, keys))
    data, _ = from_torch(module, inputs)
    (found,) = run_here(prepare(load_ir(parse_container(data).ir), GPU), [one.numpy() for one in inputs], [])
    close(found.astype(np.float64), module(*inputs).double().numpy(), "float16")
