"""What is refused because its code would be large and slow."""

from __future__ import annotations

import pytest

from tests.compiler import programs
from tuner.space.code_size import is_unrolled_too_far
from tuner.tvm_compat import Schedule, load_ir


@pytest.mark.parametrize(
    ("steps", "vector", "lanes", "refused"),
    [
        (512, None, 16, False),  # sum and its start, 64 times: the 32 columns around them would be too many steps
        (4096, None, 16, True),
        (1024, 32, 16, False),  # a vector in two registers: 256
        (1024, 32, 2, True),  # in sixteen: 2048
        (0, None, 16, False),
    ],
)
def test_statements_are_counted_as_they_are_unrolled(steps: int, vector: int | None, lanes: int, refused: bool) -> None:
    schedule = Schedule(load_ir(programs.dense(16, 64, 32).ir))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    outer, columns, reduction = schedule.get_loops(block)
    if steps:
        schedule.annotate(outer, "pragma_auto_unroll_max_step", steps)
    if vector is not None:
        columns, lane = schedule.split(columns, [None, vector])
        schedule.reorder(columns, reduction, lane)
        schedule.vectorize(lane)
    assert is_unrolled_too_far(schedule.mod["main"], lanes) is refused


@pytest.mark.parametrize(("along_rows", "count", "refused"), [(False, 33, False), (True, 33, True), (True, 32, False)])
def test_an_uneven_vector_of_elements_that_lie_apart_counts_element_by_element(
    along_rows: bool, count: int, refused: bool
) -> None:
    schedule = Schedule(load_ir(programs.dense(count, 64, 33).ir))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    rows, columns, reduction = schedule.get_loops(block)
    lanes, other = (rows, columns) if along_rows else (columns, rows)
    schedule.reorder(other, reduction, lanes)
    schedule.annotate(other, "pragma_auto_unroll_max_step", 512)
    schedule.vectorize(lanes)
    assert is_unrolled_too_far(schedule.mod["main"], 16) is refused
