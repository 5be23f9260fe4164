"""Default schedules of what moves elements on a GPU: transposes, joined tensors, look-ups. Right, and in whole words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.compiler.gpu_cases import Spec, check, functions, one_function
from tests.compiler.gpu_programs import HOPPER
from tuner.tvm_compat import relax, te, tirx

op = relax.op
F, H, B = "float32", "float16", "bfloat16"


def source_of(mod: Any) -> str:
    """CUDA C++ of the one kernel of a module's default schedule, whose result was compared with the host's."""
    lowered = check(mod, HOPPER).lowered
    assert len(lowered.calls) == 1
    return str(lowered.source[lowered.source.rindex("__device__") :])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("order", "shape", "dtype", "words"),
    [
        ((1, 0), (128, 192), H, True),
        ((1, 0), (200, 300), F, False),
        ((1, 0), (99, 197), H, False),
        ((0, 2, 1), (3, 197, 99), B, False),
        ((0, 3, 1, 2), (8, 56, 56, 64), H, True),
        ((0, 3, 1, 2), (64, 28, 28, 96), H, True),
        ((0, 3, 1, 2), (2, 7, 7, 40), F, False),
        ((0, 2, 3, 1), (64, 96, 28, 28), H, True),
        ((0, 2, 3, 1), (2, 64, 4, 64), B, True),
        ((0, 2, 3, 1), (3, 40, 7, 7), F, False),
        ((1, 0), (256, 128), "int8", True),
        ((2, 1, 0), (64, 6, 32), H, True),
        ((1, 0), (64, 72), "int64", False),
        ((1, 0), (8, 1000), F, False),
    ],
)
def test_a_transposition_reads_and_writes_words(
    order: Sequence[int], shape: tuple[int, ...], dtype: str, words: bool
) -> None:
    (mod,) = functions(lambda b, x: op.permute_dims(x, list(order)), (shape, dtype))
    source = source_of(mod)
    pairs = [word for word in ("*(half2*)", "*(nv_bfloat162*)", "*(char4*)", "*(int*)") if word in source]
    assert bool(pairs) is words


def test_a_transposition_takes_other_operands_along() -> None:
    def make(b: Any, x: Any, y: Any, bias: Any) -> Any:
        turned = b.emit(op.permute_dims(x, [0, 2, 1]))
        return op.nn.relu(b.emit(op.add(b.emit(op.add(turned, y)), bias)))

    (mod,) = functions(make, ((2, 64, 96), H), ((2, 96, 64), H), ((64,), H))
    assert "__shared__" in source_of(mod)


def joined(b: Any, *parts: Any) -> Any:
    return op.concat(list(parts), axis=-1)


def activated(b: Any, *parts: Any) -> Any:
    return op.nn.relu(b.emit(op.concat(list(parts), axis=-1)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "specs", "vector"),
    [
        (joined, (((2, 9, 64), H), ((2, 9, 128), H)), "uint4"),
        (joined, (((2, 9, 60), H), ((2, 9, 44), H)), "half4"),
        (joined, (((2, 9, 33), H), ((2, 9, 31), H)), None),
        (joined, (((9, 12), F), ((9, 4), F), ((9, 8), F)), "float4"),
        (joined, (((9, 3), F), ((9, 4), F)), None),
        (activated, (((2, 9, 64), H), ((2, 9, 128), H)), None),
    ],
)
def test_joined_channels_are_copied_in_vectors_that_the_border_does_not_cut(
    make: Callable[..., Any], specs: tuple[Spec, ...], vector: str | None
) -> None:
    (mod,) = functions(make, *specs)
    source = source_of(mod)
    if vector is not None:
        assert f"*({vector}*)" in source
        assert "for (" not in source


def looked_up(table: Any, at: Any) -> list[Any]:
    """Rows of a table, counted from its end where an index is negative, as PyTorch counts."""
    rows = table.shape[0]
    place = te.compute(at.shape, lambda i: tirx.Select(at[i] < 0, at[i] + rows, at[i]))
    clamped = te.compute(at.shape, lambda i: tirx.min(tirx.max(place[i], tirx.const(0, "int64")), rows - 1))
    return [te.compute((at.shape[0], table.shape[1]), lambda i, j: table[clamped[i], j])]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("width", "dtype", "vector"), [(96, H, "uint4"), (40, F, "float4"), (33, B, None), (1, F, None)]
)
def test_rows_of_a_table_are_copied_in_vectors(width: int, dtype: str, vector: str | None) -> None:
    source = source_of(one_function(looked_up, ((100, width), dtype), ((70,), "int64")))
    assert vector is None or f"*({vector}*)" in source
    assert "__shared__" not in source


@pytest.mark.filterwarnings("ignore")
def test_an_odd_number_of_rows_makes_no_blocks_of_one_warp() -> None:
    def made(rows: int) -> Any:
        return functions(activated, ((rows, 3, 41), H), ((rows, 3, 44), H))[0]

    many, few = made(32 * 9), made(32)
    assert "__launch_bounds__(256)" in source_of(many)
    assert "__launch_bounds__(32)" in source_of(few)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("count", "rows"), [(2, True), (1, False)])
def test_threads_go_along_what_is_looked_up_where_more_is_loaded_than_stored(count: int, rows: bool) -> None:
    """Sums of rows of a table, written as columns: [48, 100] of places [100, count] in a table [300, 48]."""

    def make(table: Any, at: Any) -> list[Any]:
        def element(c: Any, n: Any) -> Any:
            return sum((table[at[n, k], c] for k in range(count)), tirx.const(0, F))

        return [te.compute((48, 100), element, name="sum")]

    source = source_of(one_function(make, ((300, 48), F), ((100, count), "int64")))
    (stored,) = (line for line in source.splitlines() if "sum_ptr[" in line and " = " in line)
    assert ("* 100)" in stored.partition(" = ")[0]) is rows, "neighbouring threads store what is a row apart"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [F, H])
@pytest.mark.parametrize(("taps", "columns"), [((9, 9, 32), 3), ((3, 3, 32), 9), ((3, 1, 40), 2)])
def test_a_convolution_of_few_channels_has_tiles(taps: tuple[int, ...], columns: int, dtype: str) -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO", out_dtype=F))
        return op.astype(y, dtype)

    height, width, channels = taps
    (mod,) = functions(make, ((1, 10 + height, 10 + width, channels), dtype), ((*taps, columns), dtype))
    assert "shared" in check(mod, HOPPER).lowered.source, "threads share what several of them read"


@pytest.mark.filterwarnings("ignore")
def test_many_rows_side_by_side_have_a_thread_each() -> None:
    """28 columns are no 32 threads: blocks that divide them had eight."""
    (mod,) = functions(lambda b, x: op.sum(x, [2]), ((8, 16, 49, 28, 28), F))
    (call,) = check(mod, HOPPER).lowered.calls
    assert call.block[0] * call.block[1] >= 32


@pytest.mark.filterwarnings("ignore")
def test_parts_of_a_sum_with_an_odd_number_of_columns_are_added() -> None:
    def make(b: Any, x: Any, w: Any, bias: Any) -> Any:
        return op.add(b.emit(op.matmul(x, w)), bias)

    (mod,) = functions(make, ((64, 429), F), ((429, 429), F), ((429,), F))
    calls = check(mod, HOPPER).lowered.calls
    assert len(calls) == 2
    assert all(call.grid[0] * call.block[0] * call.block[1] >= 429 * 16 for call in calls), "the tiles are not given up"
