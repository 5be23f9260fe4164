"""The least time of a task: what no schedule can pass, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitchpipe.wire.roofline import MemoryLevel, Peak, Roofline
from pitchpipe.wire.task import Task
from tuner.tuning.testing import fake_task
from tuner.workload.bound import bound_secs

LEVELS = (
    MemoryLevel(name="L2", inside_bytes=1000, bytes_per_sec=100.0),
    MemoryLevel(name="memory", inside_bytes=9000, bytes_per_sec=10.0),
)
DEVICE = Roofline(threads=2, flops_per_sec=1e3, levels=LEVELS)


def task(*, least_flops: float = 0.0, bytes_: float = 0.0) -> Task:
    return fake_task("a").model_copy(update={"least_flops": least_flops, "bytes": bytes_})


@pytest.mark.parametrize(
    ("flops", "bytes_", "secs"),
    [
        (500.0, 0.0, 0.5),
        (500.0, 1040.0, 0.5),
        (0.0, 2000.0, 10.0),
        (0.0, 9500.0, 85.0),
        (0.0, 9900.0, 90.0),
        (500.0, 9900.0, 90.0),
        (0.0, 1000.0, None),
    ],
)
def test_the_highest_roof_over_a_task_bounds_it(flops: float, bytes_: float, secs: float | None) -> None:
    assert bound_secs(task(least_flops=flops, bytes_=bytes_), [DEVICE]) == secs


def test_of_several_devices_the_fastest_bounds_and_one_unknown_device_leaves_nothing_known() -> None:
    fast = DEVICE.model_copy(update={"flops_per_sec": 4e3})
    single = DEVICE.model_copy(update={"threads": 1})
    work = task(least_flops=1e3)
    assert bound_secs(work, [DEVICE, fast]) == 0.25
    assert [bound_secs(work, devices) for devices in ([], [None], [DEVICE, None], [DEVICE, single])] == [None] * 4


def test_factors_of_another_type_have_the_peak_of_their_unit_or_none() -> None:
    half = task(least_flops=1e3).model_copy(update={"flops_type": "float16"})
    assert bound_secs(half, [DEVICE]) is None
    tensor_cores = DEVICE.model_copy(update={"peaks": (Peak(type="float16", flops_per_sec=1e4),)})
    assert bound_secs(half, [tensor_cores]) == 0.1


def test_no_program_ends_before_it_has_started() -> None:
    gpu = DEVICE.model_copy(update={"launch_secs": 0.25})
    assert [bound_secs(task(least_flops=flops), [gpu]) for flops in (0.0, 100.0, 500.0)] == [0.25, 0.25, 0.5]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_more_work_never_takes_less(flops: float, more_flops: float, bytes_: float, more_bytes: float) -> None:
    less = bound_secs(task(least_flops=flops, bytes_=bytes_), [DEVICE]) or 0.0
    more = bound_secs(task(least_flops=flops + more_flops, bytes_=bytes_ + more_bytes), [DEVICE]) or 0.0
    assert more >= less
