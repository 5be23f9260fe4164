"""How long a candidate takes inside a graph among stand-ins, on a GPU whose time and cache are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pitchpipe.gpu.driver import PreparedLaunch
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program
from pitchpipe.gpu.testing import FakeDriver
from tests.compiler.gpu_programs import TARGET
from tuner.measure import gpu
from tuner.measure.candidate import Bench
from tuner.measure.cuda_driver import Cuda
from tuner.measure.gpu import DeviceProgram, GpuDevice
from tuner.measure.guards import GUARD_BYTES
from tuner.schedule.tensor_type import TensorType

LAUNCH_SECS, STAND_IN_SECS, COLD_SECS, WARM_SECS = 40e-6, 3e-6, 5e-6, 1e-6
ACTIVATION, WEIGHT, OUTPUT = (TensorType(dtype="float32", shape=shape) for shape in ((4, 64), (64, 8), (4, 8)))


class TimedDriver(FakeDriver):
    """Kernels take their seconds: a candidate's depend on whether its weights were read since the cache was overwritten."""

    def __init__(self) -> None:
        kernels = {"heartbeat": self._heartbeat, "stand_in": self._stand_in, "main_kernel": self._candidate}
        super().__init__(kernels)
        self.secs, self.cached, self.touched = 0.0, set[int](), list[tuple[int, int]]()
        self.weights: list[int] = []
        self._events: dict[int, float] = {}

    def _heartbeat(self, memory: FakeDriver, launch: PreparedLaunch, out: int) -> None:
        self.secs += 1e-4

    def _stand_in(self, memory: FakeDriver, launch: PreparedLaunch, data: int, count: bytes) -> None:
        self.touched.append((data, int.from_bytes(count, "little")))
        self.secs += STAND_IN_SECS

    def _candidate(self, memory: FakeDriver, launch: PreparedLaunch, activation: int, weight: int, output: int) -> None:
        self.weights.append(weight)
        self.secs += WARM_SECS if weight in self.cached else COLD_SECS
        self.cached.add(weight)
        product = np.frombuffer(self.view(activation, 1024), "f4").reshape(4, 64) @ self._array(weight)
        self.view(output, 128)[:] = product.astype("f4").tobytes()

    def _array(self, weight: int) -> Any:
        return np.frombuffer(self.view(weight, 2048), "f4").reshape(64, 8)

    def call(self, name: str, *arguments: Any) -> None:
        """Filling memory, which overwrites the cache where it is the large piece."""
        assert name.startswith("cuMemset")
        address, pattern, count, _ = (argument.value for argument in arguments)
        width = {"8": 1, "1": 2, "3": 4}[name.removeprefix("cuMemsetD")[0]]
        self.view(address, count * width)[:] = pattern.to_bytes(width, "little") * count
        if count * width >= 1 << 20:
            self.cached.clear()

    def launch_graph(self, instance: int, stream: int) -> None:
        self.secs += LAUNCH_SECS
        super().launch_graph(instance, stream)

    def record(self, event: int, stream: int) -> None:
        self._events[event] = self.secs

    def elapsed_secs(self, start: int, end: int) -> float:
        return self._events[end] - self._events[start]

    def attribute(self, ordinal: int, number: int) -> int:
        return 1 << 20

    def uuid(self, ordinal: int) -> str:
        return "0" * 32

    def spin(self, ordinal: int) -> None: ...


@pytest.fixture
def driver() -> TimedDriver:
    return TimedDriver()


@pytest.fixture
def device(driver: TimedDriver, monkeypatch: pytest.MonkeyPatch) -> GpuDevice:
    monkeypatch.setattr(gpu, "_LEAST_FLUSH_BYTES", 1 << 20)
    arrays = [np.random.default_rng(0).normal(size=found.shape).astype("f4") for found in (ACTIVATION, WEIGHT)]
    tensors = [SimpleNamespace(numpy=lambda array=array: array) for array in arrays]
    bench = SimpleNamespace(
        properties=SimpleNamespace(params=(ACTIVATION, WEIGHT, OUTPUT), inputs=(0, 1), outputs=(2,)),
        inputs={"random": tensors},
        reference_outputs={"random": None},
        output_types=(OUTPUT,),
        constant=lambda: frozenset({1}),
        target=TARGET,
    )
    return GpuDevice(cast(Bench, bench), b"heartbeat", Cuda(driver=driver))


def program() -> Program:
    buffers = [
        Buffer(place=place, dtype=found.dtype, shape=found.shape)
        for place, found in ((Place.INPUT, ACTIVATION), (Place.INPUT, WEIGHT), (Place.OUTPUT, OUTPUT))
    ]
    launch = Launch(kernel=0, arguments=tuple(Pointer(buffer=i) for i in range(3)), grid=(1, 1, 1), block=(32, 1, 1))
    return Program(
        codes=(b"code",), kernels=(Kernel(code=0, name="main_kernel"),), buffers=tuple(buffers), run=(launch,)
    )


def test_stand_ins_begin_early_where_the_launches_of_a_model_do(device: GpuDevice) -> None:
    assert all(launch.programmatic for stand_in in device._stand_ins for launch in stand_in._launches)


def test_what_is_written_beside_an_output_is_seen_on_either_side(device: GpuDevice, driver: TimedDriver) -> None:
    running = DeviceProgram(device, program())
    (output,) = device.outputs
    for place in (output - 1, output + 4 * 8 * 4, output + 4 * 8 * 4 + GUARD_BYTES - 1):
        running.run("random")
        assert running.stays_inside
        driver.view(place, 1)[:] = b"\0"
        assert not running.stays_inside


@pytest.mark.parametrize("calls", [1, 3, 16, 40])
def test_a_call_takes_what_the_graph_takes_longer_with_it_and_finds_its_weights_in_no_cache(
    device: GpuDevice, calls: int
) -> None:
    running = DeviceProgram(device, program())
    assert running.call(calls) / calls == pytest.approx(COLD_SECS)


def test_each_call_of_a_graph_has_weights_of_its_own_and_the_stand_ins_touch_the_activations(
    device: GpuDevice, driver: TimedDriver
) -> None:
    DeviceProgram(device, program()).call(16)
    assert len(set(driver.weights)) == len(driver.weights) == 16
    assert all((driver._array(weight) == driver._array(driver.weights[0])).all() for weight in driver.weights)
    activation = device.inputs["random"][0]
    assert set(driver.touched) == {(activation, 4 * 64 * 4 // 16)}
    assert len(driver.touched) == 2 * 16


def test_weights_too_large_for_a_copy_each_are_shared_by_calls(
    device: GpuDevice, driver: TimedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_COPIES_BYTES", 3 * 64 * 8 * 4)
    DeviceProgram(device, program()).call(16)
    assert len(driver.weights) == 16
    assert len(set(driver.weights)) == 3


def test_a_checked_run_reads_the_weights_as_they_are_and_closing_frees_what_the_candidate_had(
    device: GpuDevice, driver: TimedDriver
) -> None:
    running = DeviceProgram(device, program())
    running.run("random")
    (found,) = running.outputs()
    weights = driver._array(device.inputs["random"][1])
    x = np.frombuffer(driver.view(device.inputs["random"][0], 1024), "f4").reshape(4, 64)
    assert np.allclose(found, x @ weights)
    running.call(16)
    held = driver.held
    running.close()
    assert driver.names().count("destroy") == 1
    assert driver.held == held, "weights and stand-ins stay for the next candidate"
