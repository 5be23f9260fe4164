"""GPUs as their driver describes them, with a driver that is a fake: no GPU and no driver are needed."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from pitchpipe.errors import MeasurementFailed
from pitchpipe.target_kind import describe, fit
from tuner.target_kinds.cuda import device, driver_query
from tuner.target_kinds.cuda.device import Driver, Gpu

H200 = {
    1: 1024,
    8: 49152,
    10: 32,
    12: 65536,
    13: 1980000,
    16: 132,
    38: 62914560,
    75: 9,
    76: 0,
    97: 232448,
    120: 1,
}
"""Number of an attribute -> what the driver of an H200 answers."""


class FakeDriver:
    """Answers the driver's calls that driver_query makes, for `count` GPUs."""

    def __init__(self, count: int, attributes: dict[int, int], failing: str = "") -> None:
        self._count, self._attributes, self._failing = count, attributes, failing

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 100 if name == self._failing else (getattr(self, f"_{name}")(*arguments) or 0)

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = self._count

    def _cuDeviceGet(self, found: Any, ordinal: int) -> None:
        found._obj.value = ordinal

    def _cuDeviceGetName(self, text: Any, size: int, _: Any) -> None:
        assert size == len(text)
        text.value = b"NVIDIA H200"

    def _cuDeviceGetUuid_v2(self, uuid: Any, found: ctypes.c_int) -> None:
        uuid[15] = found.value + 1

    def _cuDeviceTotalMem_v2(self, memory: Any, _: Any) -> None:
        memory._obj.value = 150 << 30

    def _cuDeviceGetAttribute(self, value: Any, number: int, _: Any) -> None:
        value._obj.value = self._attributes[number]


def gpus(count: int = 1, **changed: int) -> tuple[Gpu, ...]:
    numbers = {driver_query.ATTRIBUTES[name]: value for name, value in changed.items()}
    found = driver_query.devices(FakeDriver(count, H200 | numbers))
    return tuple(Gpu.model_validate(each) for each in found)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: Driver(driver="580.1", devices=gpus(2)))


def test_the_target_has_the_architectures_own_features_and_the_real_limits() -> None:
    assert device.target_of(gpus()[0]).attributes() == {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 232448,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
        "l2_cache_size_bytes": 62914560,
    }


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((10, 0), "sm_100a"), ((12, 1), "sm_121a")]
)
def test_every_architecture_from_ampere_on_has_a_target(capability: tuple[int, int], arch: str) -> None:
    (found,) = gpus(capability_major=capability[0], capability_minor=capability[1])
    assert device.target_of(found).arch == arch


def test_an_older_one_is_refused_by_name() -> None:
    (found,) = gpus(capability_major=7, capability_minor=5)
    with pytest.raises(MeasurementFailed, match=r"H200 has compute capability 7\.5; 8\.0 or later"):
        device.target_of(found)


def test_a_failing_call_of_the_driver_is_named() -> None:
    with pytest.raises(driver_query.DriverError, match="cuDeviceGetCount: error 100"):
        driver_query.devices(FakeDriver(1, H200, failing="cuDeviceGetCount"))


def test_records_for_the_plain_architecture_are_answers_for_this_one_and_not_the_other_way_round() -> None:
    ours = device.target_of(gpus()[0])
    plain = ours.model_copy(update={"arch": "sm_90", "max_shared_memory_per_block": 49152})
    assert fit(ours, plain).fits
    assert not fit(plain, ours).fits


@pytest.mark.usefixtures("two")
def test_each_gpu_is_detected_by_its_number() -> None:
    assert device.detect(0) == device.detect(1) is not None
    assert device.detect(2) is None


@pytest.mark.usefixtures("two")
def test_a_gpu_that_is_held_is_the_only_one_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    device.hold(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-00000000-0000-0000-0000-000000000002"
    with pytest.raises(MeasurementFailed, match="no GPU 2: the driver shows 2"):
        device.hold(2)


@pytest.mark.usefixtures("two")
def test_the_device_class_tells_gpus_apart_by_what_decides_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = device.fingerprint()
    assert (first.model, first.cores, first.driver, first.clock_hz) == ("NVIDIA H200", 132, "580.1", 1.98e9)
    monkeypatch.setattr(device, "driver", lambda: Driver(driver="580.1", devices=gpus(multiprocessors=114)))
    assert device.fingerprint().device_class != first.device_class


def test_where_no_driver_answers_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.sys, "executable", "/nonexistent/python")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a value that was never asked for")
    assert device.detect() is None
    told = device.visible()
    assert isinstance(told, str)
    assert "no NVIDIA driver answers" in told


def test_a_doctor_reads_one_line_a_gpu() -> None:
    (found,) = gpus()
    assert device.describe(found) == (
        "NVIDIA H200, sm_90a, 132 multiprocessors, 150 GiB, L2 60 MiB, 227 KiB of shared memory a block"
    )
    assert describe(device.target_of(found)) == "sm_90a"
