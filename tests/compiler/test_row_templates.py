"""Templates of chains: softmax, norms, pools and attention compute what NumPy does, in one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pitchpipe.errors import InvalidTrace
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.task import Workload
from tests.compiler.attention import attention, close, softmax
from tests.compiler.gpu_cases import arguments_of, functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.triton_interpreter import run
from tuner.schedule.trace import apply_trace
from tuner.templates import compiler
from tuner.templates.contraction import NotRecognised
from tuner.templates.kernels import compile_function, source_of
from tuner.templates.row_space import row_space, shared_bytes
from tuner.templates.rows import find_rows
from tuner.templates.text import ROWS, Chosen, checked, parse
from tuner.tvm_compat import load_ir, relax, save_ir, te, tirx
from tuner.workload.digest import workload_digest

op = relax.op
H, F, B = "float16", "float32", "bfloat16"
SLOW = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def chosen(rows: int, warps: int = 4, early: int = 0, keys: int = 0) -> Chosen:
    return checked(ROWS, {"rows": rows, "warps": warps, "early": early, "keys": keys})


def computed(mod: Any, rows: int, keys: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Drawn arguments in double precision, and what the template makes of them."""
    values = arguments_of(mod)
    values[-1].view(np.uint8)[...] = 0xFF
    run(source_of(mod, chosen(rows, keys=keys)), values)
    *given_, result = (value.astype(np.float64) for value in values)
    return given_, result


def layer_norm(x: np.ndarray, g: np.ndarray, s: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * g + s)


@SLOW
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    dtype=st.sampled_from((H, F, B)),
    block=st.sampled_from((1, 4, 16)),
)
def test_a_softmax_between_casts(rows: int, columns: int, dtype: str, block: int) -> None:
    assume(rows * columns > 1)

    def make(b: Any, x: Any) -> Any:
        wide = x if dtype == F else b.emit(op.astype(x, F))
        found = b.emit(op.nn.softmax(wide))
        return op.nn.relu(found) if dtype == F else op.astype(found, dtype)

    assume(columns > 1)
    mods = functions(make, ((2, rows, columns), dtype))
    assume(len(mods) == 1)
    (x,), found = computed(mods[0], block)
    close(found, softmax(x), dtype)


@SLOW
@given(rows=st.integers(1, 40), columns=st.integers(2, 300), block=st.sampled_from((1, 2, 8)))
def test_a_layer_norm(rows: int, columns: int, block: int) -> None:
    (mod,) = functions(
        lambda b, x, g, s: op.nn.layer_norm(x, g, s, axes=[-1]), ((rows, columns), F), ((columns,), F), ((columns,), F)
    )
    assume(rows > 1)
    (x, g, s), found = computed(mod, block)
    close(found, layer_norm(x, g, s), F)


@SLOW
@given(
    size=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    rows=st.integers(2, 40),
    keys=st.integers(2, 150),
    head=st.sampled_from((8, 16, 24, 64)),
    dtype=st.sampled_from((H, B)),
    mask=st.booleans(),
    block=st.sampled_from((16, 32)),
    at_once=st.sampled_from((0, 32, 64)),
)
def test_attention(
    size: tuple[int, int], rows: int, keys: int, head: int, dtype: str, mask: bool, block: int, at_once: int
) -> None:  # fmt: skip
    mod = load_ir(attention(*size, rows, keys, head, dtype=dtype, mask=mask).ir)
    (q, k, v, *bias), found = computed(mod, block, at_once)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(head) + (bias[0] if bias else 0)
    close(found, softmax(scores) @ v, dtype)


def test_attention_sees_no_later_keys_where_it_is_causal() -> None:
    heads, rows, head = 3, 21, 16

    def make(q: Any, k: Any, v: Any) -> list[Any]:
        axes = [te.reduce_axis((0, n), name=name) for name, n in (("d", head), ("m", rows), ("e", rows), ("j", rows))]
        d, m, e, j = axes
        shape = (heads, rows, rows)
        dot = te.compute(shape, lambda h, i, c: te.sum(q[h, i, d].astype(F) * k[h, c, d].astype(F), axis=d), name="dot")
        low = tirx.const(-1e30, F)
        scores = te.compute(shape, lambda h, i, c: tirx.Select(c <= i, dot[h, i, c], low), name="scores")
        top = te.compute((heads, rows), lambda h, i: te.max(scores[h, i, m], axis=m), name="top")
        powers = te.compute(shape, lambda h, i, c: te.exp(scores[h, i, c] - top[h, i]), name="powers")
        total = te.compute((heads, rows), lambda h, i: te.sum(powers[h, i, e], axis=e), name="total")
        share = te.compute(shape, lambda h, i, c: (powers[h, i, c] / total[h, i]).astype(H), name="share")
        out = te.compute(
            (rows, heads, head), lambda i, h, c: te.sum(share[h, i, j].astype(F) * v[h, j, c].astype(F), axis=j)
        )
        return [te.compute((rows, heads, head), lambda *at: out(*at).astype(H), name="result")]

    mod = one_function(make, *[((heads, rows, head), H)] * 3)
    (q, k, v), found = computed(mod, 16)
    scores = np.where(np.tri(rows) > 0, q @ k.swapaxes(-1, -2), -np.inf)
    close(found, (softmax(scores) @ v).swapaxes(0, 1), H)


def test_a_masked_softmax_whose_heads_are_an_axis_of_its_own() -> None:
    size, heads, rows, keys, head = 2, 3, 21, 40, 16

    def make(q: Any, k: Any, v: Any, mask: Any) -> list[Any]:
        axes = [te.reduce_axis((0, n), name=name) for name, n in (("d", head), ("m", keys), ("e", keys), ("j", keys))]
        d, m, e, j = axes
        whole, apart = (size * heads, rows, keys), (size, heads, rows, keys)
        dot = te.compute(whole, lambda s, i, c: te.sum(q[s, i, d].astype(F) * k[s, c, d].astype(F), axis=d), name="dot")
        scores = te.compute(
            apart, lambda b, h, i, c: dot[b * heads + h, i, c] * 0.25 + mask[b, h, i, c].astype(F), name="scores"
        )
        top = te.compute(apart[:3], lambda b, h, i: te.max(scores[b, h, i, m], axis=m), name="top")
        powers = te.compute(apart, lambda b, h, i, c: te.exp(scores[b, h, i, c] - top[b, h, i]), name="powers")
        total = te.compute(apart[:3], lambda b, h, i: te.sum(powers[b, h, i, e], axis=e), name="total")

        def share(s: Any, i: Any, c: Any) -> Any:
            b, h = s // heads, s % heads
            return (powers[b, h, i, c] / total[b, h, i]).astype(H)

        shares = te.compute(whole, share, name="shares")
        out = te.compute(
            (size * heads, rows, head),
            lambda s, i, c: te.sum(shares[s, i, j].astype(F) * v[s, j, c].astype(F), axis=j),
            name="out",
        )
        return [te.compute((size * heads, rows, head), lambda *at: out(*at).astype(H), name="result")]

    shapes = [(size * heads, extent, head) for extent in (rows, keys, keys)]
    mod = one_function(make, *((shape, H) for shape in shapes), ((size, heads, rows, keys), H))
    (q, k, v, mask), found = computed(mod, 16)
    scores = q @ k.swapaxes(-1, -2) / 4 + mask.reshape(size * heads, rows, keys)
    close(found, softmax(scores) @ v, H)


@pytest.mark.parametrize(
    ("make", "shapes", "numpy"),
    [
        (lambda b, x: op.max(x, axis=[1]), [(9, 70)], lambda x: x.max(axis=1)),
        (lambda b, x: op.min(x, axis=[0]), [(9, 70)], lambda x: x.min(axis=0)),
        (lambda b, x: op.sum(x, axis=[1, 3]), [(3, 5, 4, 6)], lambda x: x.sum(axis=(1, 3))),
        (lambda b, x: op.nn.max_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"), [(1, 6, 6, 5)],
         lambda x: x.reshape(1, 3, 2, 3, 2, 5).max(axis=(2, 4))),
    ],
    ids=["maximum", "minimum", "sum of two axes", "pool"],
)  # fmt: skip
def test_single_reductions(make: Any, shapes: list[tuple[int, ...]], numpy: Callable[..., np.ndarray]) -> None:
    (mod,) = functions(make, *((shape, F) for shape in shapes))
    values, found = computed(mod, 4)
    close(found, numpy(*values), F)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda b, x: op.nn.relu(x), [(8, 16)]),
        (lambda b, x: op.prod(x, axis=[1]), [(8, 16)]),
        (lambda b, x: op.sum(x, axis=[1]), [(8, 1 << 15)]),
    ],
    ids=["element-wise", "product of a row", "too long"],
)
def test_what_is_no_chain_is_refused(make: Any, shapes: list[tuple[int, ...]]) -> None:
    (mod,) = functions(make, *((shape, F) for shape in shapes))
    with pytest.raises(NotRecognised):
        find_rows(mod)


def test_attention_takes_sixteen_rows_at_least() -> None:
    with pytest.raises(InvalidTrace, match="16 rows"):
        source_of(load_ir(attention(1, 1, 32, 32, 16).ir), chosen(8))


def test_a_task_gets_the_template_that_is_for_it_within_the_limits_of_the_device() -> None:
    mod = load_ir(attention(1, 12, 128, 128, 64).ir)
    found = find_rows(mod)
    points = row_space(found, HOPPER)
    assert points
    for point in points[:4]:
        one = parse(point.text)
        compiled = compiler.to_ptx(source_of(mod, one).kernels[0], "sm_90a")
        assert compiled.shared_bytes <= shared_bytes(found, one.arguments["rows"])
    workload = Workload(digest=workload_digest(mod), ir=save_ir(mod))
    assert list(kind_of(HOPPER).templates(workload, HOPPER)) == points
    long = find_rows(load_ir(attention(1, 1, 16, 8192, 64).ir))
    assert all(parse(point.text).arguments["keys"] for point in row_space(long, HOPPER)), "no block has room for all"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_chain_compiles_for_every_architecture(arch: str) -> None:
    mod = apply_trace(load_ir(attention(1, 2, 32, 32, 16).ir), chosen(16, early=int(arch != "sm_80")).text).mod
    (launch,) = compile_function(mod["main"], arch).launches
    assert launch.grid == (2, 1, 2)
