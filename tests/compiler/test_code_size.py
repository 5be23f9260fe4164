"""What is refused because its code would be large and slow."""

from __future__ import annotations

import pytest

from tests.compiler import programs
from tuner.space.code_size import is_unrolled_for_nothing
from tuner.tvm_compat import Schedule, load_ir


@pytest.mark.parametrize(
    ("steps", "vector", "refused"),
    [(512, 4, True), (512, None, True), (512, 16, False), (64, 4, False), (0, None, False)],
)
def test_code_unrolled_hundreds_of_times_must_fill_its_vectors(steps: int, vector: int | None, refused: bool) -> None:
    schedule = Schedule(load_ir(programs.dense().ir))
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    outer, columns, _ = schedule.get_loops(block)
    if steps:
        schedule.annotate(outer, "pragma_auto_unroll_max_step", steps)
    if vector is not None:
        schedule.vectorize(schedule.split(columns, [None, vector])[1])
    assert is_unrolled_for_nothing(schedule.mod["main"], lanes=16) is refused
