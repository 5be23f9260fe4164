"""Whose schedules are tried first, and how a decision is taken over."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.wire.ids import sha256
from pitchpipe.wire.task import Signature, TensorShape
from tuner.search.transfer import Known, nearest, nearest_choice, refit_tile

EXTENTS = (64, 128, 256)


def signature(
    *extents: int, operators: str = "matmul_add", anchor: str = "SSR products", dtype: str = "float32"
) -> Signature:
    output = TensorShape(shape=extents[:2], dtype=dtype)
    return Signature(operators=operators, anchor=anchor, extents=extents, arguments=(output,), flops=1.0)


def known(*extents: int, share: float | None = None, **of: str) -> Known:
    name = sha256(repr((extents, share, of)).encode())
    return Known(workload=name, signature=signature(*extents, **of), trace="[[],[]]", bound_share=share)


def test_the_nearest_shape_comes_first_and_another_anchor_or_type_never() -> None:
    twice, far = known(64, 128, 512), known(64, 1024, 256)
    other_epilogue = known(*EXTENTS, operators="matmul_add_relu")
    same_shape_of_another_kind = known(*EXTENTS, anchor="SSR reduction")
    of_another_type = known(*EXTENTS, dtype="float16")
    given_ = [far, same_shape_of_another_kind, twice, of_another_type, other_epilogue]
    assert nearest(signature(*EXTENTS), given_, 4) == [other_epilogue, twice, far]
    assert nearest(signature(*EXTENTS), given_[::-1], 2) == [other_epilogue, twice]


def test_of_equally_near_ones_the_nearest_to_its_bound_comes_first() -> None:
    slow, unknown, fast = (known(64, 128, 512, share=share) for share in (0.3, None, 0.9))
    assert nearest(signature(*EXTENTS), [slow, unknown, fast], 3) == [fast, unknown, slow]


def test_a_tile_keeps_its_inner_factors_and_its_outermost_takes_the_rest() -> None:
    assert refit_tile([4, 1, 2, 16], 256, 64) == [8, 1, 2, 16]
    assert refit_tile([4, 1, 2, 16], 96, 64) == [3, 1, 2, 16]
    assert refit_tile([4, 1, 2, 16], 49, 64) == [7, 1, 1, 7], "7 and 49 divide; 7 is nearer to 16 than 49"
    assert refit_tile([1, 1, 1, 64], 512, 16) == [32, 1, 1, 16], "a target allows no wider vector"
    assert refit_tile([2, 8], 1, 64) == [1, 1]


@given(st.lists(st.integers(1, 64), min_size=1, max_size=5), st.integers(1, 4096), st.sampled_from([0, 1, 16, 64]))
def test_every_refitted_tile_is_perfect(factors: list[int], extent: int, innermost: int) -> None:
    found = refit_tile(factors, extent, innermost)
    assert math.prod(found) == extent
    assert len(found) == len(factors)
    if len(found) > 1 and innermost:
        assert found[-1] <= innermost


def test_a_choice_keeps_its_value_or_takes_the_nearest() -> None:
    assert nearest_choice(64, [0, 16, 64, 512]) == 2
    assert nearest_choice(12, [1, 4, 16]) == 2
    assert nearest_choice(0, [4, 0]) == 1
