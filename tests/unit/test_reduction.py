"""Cutting a failing sequence down, without a compiler: who is to blame decides what fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.minify.reduction import DROPPED_ONE_BY_ONE, reduce


@given(st.integers(1, 300), st.data())
def test_one_element_that_fails_alone_is_found(count: int, data: st.DataObject) -> None:
    guilty = data.draw(st.integers(0, count - 1))
    asked = 0

    def fails(items: list[int]) -> bool:
        nonlocal asked
        asked += 1
        return guilty in items

    assert reduce(range(count), fails) == [guilty]
    assert asked <= count.bit_length() + 2


@given(st.integers(2, 200), st.data())
def test_elements_that_fail_only_together_are_all_that_is_left(count: int, data: st.DataObject) -> None:
    guilty = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4)))
    kept = reduce(range(count), lambda items: set(guilty) <= set(items))
    assert kept[-1] == guilty[-1]
    assert set(guilty) <= set(kept)
    if guilty[-1] - guilty[0] < DROPPED_ONE_BY_ONE:
        assert kept == guilty


@given(st.integers(1, 200), st.sets(st.integers(0, 199)))
def test_where_failing_comes_and_goes_a_failing_place_is_found_all_the_same(count: int, places: set[int]) -> None:
    def fails(items: list[int]) -> bool:
        return len(items) == count or len(items) in places

    assert fails(reduce(range(count), fails))


def test_the_end_of_the_first_failing_prefix_is_kept() -> None:
    assert reduce("abcdef", lambda items: "c" in items and "b" in items) == ["b", "c"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_sequences_are_reduced_too(count: int) -> None:
    assert reduce(range(count), lambda items: True) == [0]
