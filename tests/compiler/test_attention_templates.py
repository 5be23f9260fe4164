"""Attention that takes some keys at a time computes what NumPy does, whatever is masked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidTrace
from tests.compiler.attention import attention, close, softmax
from tests.compiler.gpu_cases import arguments_of, functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tests.triton_interpreter import run
from tuner.schedule.trace import apply_trace
from tuner.templates import compiler
from tuner.templates.attention import find_attention
from tuner.templates.contraction import NotRecognised
from tuner.templates.kernels import compile_function, source_of
from tuner.templates.row_space import attention_bytes, row_space
from tuner.templates.rows import find_rows
from tuner.templates.text import ROWS, Chosen, checked, parse
from tuner.tvm_compat import load_ir, relax, te

op = relax.op
H, F = "float16", "float32"


def chosen(rows: int, keys: int, warps: int = 4, depth: int = 2, early: int = 0) -> Chosen:
    return checked(ROWS, {"rows": rows, "warps": warps, "early": early, "keys": keys, "depth": depth})


def test_keys_that_are_masked_count_for_nothing_wherever_they_are() -> None:
    batch, keys, head = 4, 96, 16
    mod = load_ir(attention(batch, 2, 16, keys, head, dtype=H, mask=True).ir)
    values = arguments_of(mod)
    bias = values[3]
    assert bias.shape == (batch, 1, 1, keys)
    for at, masked in enumerate((slice(32), slice(64, None), slice(32, 64), slice(None))):
        bias[at, ..., masked] = -np.inf
    run(source_of(mod, chosen(16, 32)), values)
    q, k, v, bias, found = (value.astype(np.float64) for value in values)
    with np.errstate(invalid="ignore"):
        wanted = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(head) + bias) @ v
    assert np.isnan(wanted[3]).all()
    close(found, wanted, H)


def test_attention_sees_no_later_keys_where_it_is_causal() -> None:
    rows, head = 70, 16
    mod = load_ir(attention(1, 2, rows, rows, head, dtype=H, causal=True).ir)
    values = arguments_of(mod)
    run(source_of(mod, chosen(32, 32)), values)
    q, k, v, found = (value.astype(np.float64) for value in values)
    scores = np.where(np.tri(rows) > 0, q @ k.swapaxes(-1, -2) / math.sqrt(head), -np.inf)
    close(found, softmax(scores) @ v, H)


def test_a_number_that_is_none_is_in_every_row_that_reads_it() -> None:
    mod = load_ir(attention(1, 1, 16, 96, 16, dtype=H).ir)
    values = arguments_of(mod)
    values[0][..., 5, 3] = np.nan
    run(source_of(mod, chosen(16, 32)), values)
    assert np.isnan(values[-1][..., 5, :]).all()
    assert np.isfinite(np.delete(values[-1].reshape(16, 16), 5, axis=0)).all()


def test_heads_in_one_tensor_a_bias_for_each_and_what_follows() -> None:
    images, heads, rows, keys, head = 2, 3, 20, 70, 16

    def make(qk: Any, v: Any, bias: Any, other: Any) -> list[Any]:
        axes = [te.reduce_axis((0, n), name=name) for name, n in (("d", head), ("m", keys), ("e", keys), ("j", keys))]
        d, m, e, j = axes
        shape = (images * heads, rows, keys)

        def product(s: Any, i: Any, c: Any) -> Any:
            query, key = (qk[s // heads, at, side, s % heads, d].astype(F) for at, side in ((i, 0), (c, 1)))
            return te.sum(query * key, axis=d)

        dot = te.compute(shape, product, name="dot")
        scores = te.compute(shape, lambda s, i, c: dot[s, i, c] * 0.25 + bias[s % heads, i, c].astype(F), name="scores")
        top = te.compute(shape[:2], lambda s, i: te.max(scores[s, i, m], axis=m), name="top")
        powers = te.compute(shape, lambda s, i, c: te.exp(scores[s, i, c] - top[s, i]), name="powers")
        total = te.compute(shape[:2], lambda s, i: te.sum(powers[s, i, e], axis=e), name="total")
        shares = te.compute(shape, lambda s, i, c: (powers[s, i, c] / total[s, i]).astype(H), name="shares")
        result = (images * heads, rows, head)
        out = te.compute(
            result, lambda s, i, c: te.sum(shares[s, i, j].astype(F) * v[s, j, c].astype(F), axis=j), "out"
        )
        return [te.compute(result, lambda *at: te.abs(out(*at)).astype(H) + other(*at), name="result")]

    count = images * heads
    shapes = [(images, keys, 2, heads, head), (count, keys, head), (heads, rows, keys), (count, rows, head)]
    mod = one_function(make, *((shape, H) for shape in shapes))
    values = arguments_of(mod)
    run(source_of(mod, chosen(16, 32)), values)
    qk, v, bias, other, found = (value.astype(np.float64) for value in values)
    q, k = (qk[:, :, side].swapaxes(1, 2).reshape(count, keys, head) for side in (0, 1))
    scores = q[:, :rows] @ k.swapaxes(-1, -2) / 4 + np.tile(bias, (images, 1, 1))
    close(found, np.abs(softmax(scores) @ v) + other, H)


def test_only_attention_takes_some_keys_at_a_time() -> None:
    (softmaxes,) = functions(lambda b, x: op.nn.softmax(x), ((9, 70), F))
    with pytest.raises(NotRecognised, match="attention"):
        source_of(softmaxes, chosen(16, 32))
    with pytest.raises(InvalidTrace, match="rows at least"):
        source_of(load_ir(attention(1, 1, 32, 64, 16).ir), chosen(8, 32))


def test_long_rows_have_points_that_take_some_keys_at_a_time_and_no_others() -> None:
    chain = find_rows(load_ir(attention(1, 8, 4096, 8192, 64).ir))
    points = [parse(one.text).arguments for one in row_space(chain, HOPPER)]
    assert points
    assert all(one["keys"] for one in points)
    found = find_attention(chain)
    assert all(attention_bytes(found, one) <= (HOPPER.max_shared_memory_per_block or 0) for one in points)
    middle = row_space(find_rows(load_ir(attention(1, 8, 512, 512, 64).ir)), HOPPER)
    assert [bool(parse(one.text).arguments["keys"]) for one in middle[:4]] == [False, True, False, True]
    short = find_rows(load_ir(attention(1, 8, 32, 32, 64).ir))
    assert not any(parse(one.text).arguments["keys"] for one in row_space(short, HOPPER))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_attention_compiles_for_every_architecture(arch: str, warps: int) -> None:
    mod = load_ir(attention(1, 2, 256, 256, 64).ir)
    text = chosen(16 * warps, 64, warps, early=int(arch != "sm_80")).text
    found = compile_function(apply_trace(mod, text).mod["main"], arch)
    assert [launch.kernel for launch in found.launches] == ["rows"]
    shared = attention_bytes(find_attention(find_rows(mod)), parse(text).arguments)
    assert found.launches[0].shared_bytes <= shared


def test_copies_of_keys_and_values_are_on_their_way_while_others_are_multiplied() -> None:
    source = source_of(load_ir(attention(1, 2, 256, 256, 64).ir), chosen(64, 64)).kernels[0]
    ptx = compiler.to_ptx(source, "sm_90a").ptx
    assert "wgmma" in ptx
    assert "cp.async" in ptx
