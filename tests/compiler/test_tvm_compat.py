"""What importing tuner/tvm_compat.py changes in TVM changes no result."""

from __future__ import annotations

import pytest

from tests.compiler.programs import dense
from tuner.tvm_compat import Schedule, load_ir, tvm_ffi


def test_methods_of_schedules_check_no_annotations() -> None:
    """In Python; what is wrong is still refused."""
    assert not [name for name, method in vars(Schedule).items() if hasattr(method, "__wrapped__")]
    schedule = Schedule(load_ir(dense().ir), error_render_level="none")
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    loops = schedule.get_loops(block)
    assert [int(schedule.get(each).extent) for each in schedule.split(loops[0], factors=[None, 2])][1] == 2
    with pytest.raises(TypeError, match=r"Expected `s_tir\.LoopRV` but got `s_tir\.SBlockRV`"):
        schedule.parallel(block)


@pytest.mark.parametrize("elements", [[], [3], [1.5, "text", None, [1, 2]]])
def test_an_array_gives_its_elements_in_order_as_often_as_asked(elements: list[object]) -> None:
    array = tvm_ffi.Array(elements)
    for _ in range(2):
        assert [each if not isinstance(each, tvm_ffi.Array) else list(each) for each in array] == elements
    assert list(array) == [array[at] for at in range(len(array))]


def test_an_iterator_keeps_its_array() -> None:
    elements = iter(tvm_ffi.Array([[1, 2]]))
    assert list(next(elements)) == [1, 2]
    assert list(elements) == []
