"""Plans of scratch memory: nothing that lives at the same time overlaps, and little is wasted."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.gpu.program import ALIGNMENT
from tuner.deploy.memory_plan import Lifetime, plan

lifetimes = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size_bytes=size, first=first, last=first + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=30,
)


@given(lifetimes)
def test_buffers_that_live_at_the_same_time_do_not_overlap(found: list[Lifetime]) -> None:
    planned = plan(found)
    spans = [(offset, offset + one.size_bytes) for offset, one in zip(planned.offsets, found, strict=True)]
    for (one, (start, end)), (other, (begin, stop)) in combinations(zip(found, spans, strict=True), 2):
        if one.overlaps(other):
            assert end <= begin or stop <= start
    assert all(start >= 0 and end <= planned.size_bytes for start, end in spans)
    assert all(offset % ALIGNMENT == 0 for offset in planned.offsets)


@given(lifetimes)
def test_a_plan_needs_no_more_than_all_buffers_and_no_less_than_those_of_one_launch(found: list[Lifetime]) -> None:
    sizes = [-(-one.size_bytes // ALIGNMENT) * ALIGNMENT for one in found]
    together = [
        sum(size for one, size in zip(found, sizes, strict=True) if one.first <= step <= one.last) for step in range(30)
    ]
    assert max(together) <= plan(found).size_bytes <= sum(sizes)


def test_a_chain_of_layers_needs_two_buffers() -> None:
    chain = [Lifetime(size_bytes=1000, first=at, last=at + 1) for at in range(50)]
    assert plan(chain).size_bytes == 2 * 1024


def test_a_small_buffer_goes_where_the_least_is_left_over() -> None:
    around = [
        Lifetime(size_bytes=2048, first=0, last=2),
        Lifetime(size_bytes=1024, first=1, last=2),
        Lifetime(size_bytes=2048, first=2, last=3),
    ]
    # While the third lives alone after the second has ended, a small one fits into what the others left.
    found = plan([*around, Lifetime(size_bytes=256, first=3, last=3)])
    assert found.size_bytes == plan(around).size_bytes
