"""A model on a GPU that is a fake: where its results are, what is queued where, and what is never done.

The program computes ((x + 2 w) * 3, x + 2 w + 1) of float32[8] in four launches, 2 w once.
"""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pitchpipe.errors import InvalidInput, NoDevice
from pitchpipe.gpu import arrays, dlpack, executable
from pitchpipe.gpu.arrays import one_ordinal
from pitchpipe.gpu.driver import CudaError, Driver
from pitchpipe.gpu.executable import GpuModel
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program, Scalar, Span, Swizzle, TensorMap
from pitchpipe.gpu.testing import FakeDriver

SIZE = 8
X, W, TWICE, THREE, SCRATCH, PRODUCT, SUM, LAYING = range(8)


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: str = "float32"
    shape: tuple[int, ...] = (SIZE,)


def floats(driver: FakeDriver, address: int, count: int = SIZE) -> Any:
    return np.frombuffer(driver.view(address, 4 * count), np.float32)


def add(driver: FakeDriver, prepared: Any, a: int, b: int, to: int) -> None:
    floats(driver, to)[:] = floats(driver, a) + floats(driver, b)


def multiply(driver: FakeDriver, prepared: Any, a: int, factor: int, to: int) -> None:
    floats(driver, to)[:] = floats(driver, a) * floats(driver, factor, 1)


def increment(driver: FakeDriver, prepared: Any, a: int, by: bytes, to: int) -> None:
    floats(driver, to)[:] = floats(driver, a) + struct.unpack("<f", by)[0]


def count_up(driver: FakeDriver, prepared: Any, counter: int) -> None:
    """Spoils what follows unless its memory was zeroed."""
    found = floats(driver, counter, 1)
    found[0] += 1
    assert found[0] == 1


KERNELS = {"add": add, "multiply": multiply, "increment": increment, "count_up": count_up}


def launch(kernel: int, *arguments: Any, **more: Any) -> Launch:
    given = tuple(Pointer(buffer=one) if isinstance(one, int) else one for one in arguments)
    return Launch(kernel=kernel, arguments=given, grid=(1, 1, 1), block=(SIZE, 1, 1), **more)


COUNTER = Span(buffer=SCRATCH, offset=256, size_bytes=4)
PROGRAM = Program(
    codes=(b"cubin",),
    kernels=tuple(Kernel(code=0, name=name) for name in KERNELS),
    buffers=(
        Buffer(place=Place.INPUT, dtype="float32", shape=(SIZE,)),
        Buffer(place=Place.WEIGHT, dtype="float32", shape=(SIZE,)),
        Buffer(place=Place.RESIDENT, dtype="uint8", shape=(4 * SIZE,)),
        Buffer(place=Place.CONSTANT, dtype="float32", shape=()),
        Buffer(place=Place.SCRATCH, dtype="uint8", shape=(512,)),
        Buffer(place=Place.OUTPUT, dtype="float32", shape=(SIZE,)),
        Buffer(place=Place.OUTPUT, dtype="float32", shape=(SIZE,)),
        Buffer(place=Place.SCRATCH, dtype="uint8", shape=(4 * SIZE,)),
    ),
    constants=(struct.pack("<f", 3.0),),
    prepare=(launch(0, W, W, LAYING), launch(2, LAYING, Scalar(data=struct.pack("<f", 0.0)), TWICE)),
    run=(
        launch(0, X, TWICE, SCRATCH),
        launch(3, Pointer(buffer=SCRATCH, offset=256), zeroed=(COUNTER,)),
        launch(1, SCRATCH, THREE, PRODUCT),
        launch(2, SCRATCH, Scalar(data=struct.pack("<f", 1.0)), SUM),
    ),
)
WEIGHTS = np.arange(SIZE, dtype=np.float32)
WAITS = {"synchronize", "synchronize_event", "upload", "download", "copy"}


def expected(x: Any, w: Any = WEIGHTS) -> tuple[Any, Any]:
    return (x + 2 * w) * 3, x + 2 * w + 1


class OnGpu:
    """An array of some library's in the fake's memory."""

    def __init__(self, driver: FakeDriver, values: Any, *, ordinal: int = 0, offset: int = 0) -> None:
        self._base = driver._new(values.nbytes + offset)
        driver._write(self._base + offset, values.tobytes())
        self.described = dlpack.Described(
            address=self._base + offset,
            device_type=dlpack.CUDA,
            ordinal=ordinal,
            dtype=str(values.dtype),
            shape=values.shape,
            contiguous=True,
        )
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.described.ordinal

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)
        return dlpack.lend(self.described, self)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(KERNELS, devices=2)


@pytest.fixture
def model(driver: FakeDriver) -> Iterator[GpuModel]:
    made = made_with(driver)
    made.bind({"w": WEIGHTS})
    yield made
    assert dlpack.lent() == 0, "somebody forgot to give an array back"


def made_with(driver: FakeDriver, program: Program = PROGRAM, **more: Any) -> GpuModel:
    return GpuModel(program, [Spec("x")], [Spec("w")], using=lambda: driver, **more)


def random(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def check(results: Any, x: Any, w: Any = WEIGHTS) -> None:
    for found, right in zip(results, expected(x, w), strict=True):
        np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.numpy(), right)


def test_arrays_of_the_host_give_arrays_of_the_host(model: GpuModel) -> None:
    for seed in range(3):
        check(model(random(seed)), random(seed))
    check(model(random()[::-1]), random()[::-1])
    check(model(random().astype(">f4")), random())


def test_arrays_on_the_gpu_stay_there_and_nothing_waits(model: GpuModel, driver: FakeDriver) -> None:
    for seed in range(3):
        given = OnGpu(driver, random(seed))
        with driver.watched() as calls:
            results = model(given)
        assert not WAITS & {name for name, *_ in calls}
        assert [result.__dlpack_device__() for result in results] == [(dlpack.CUDA, 0)] * 2
        assert given.streams == [1], "the producer is told the default stream as DLPack writes it"
        check(results, random(seed))


def test_launches_are_recorded_once_and_only_the_nodes_that_take_other_arrays_are_updated(
    model: GpuModel, driver: FakeDriver
) -> None:
    given = [OnGpu(driver, random(seed)) for seed in range(2)]
    with driver.watched() as first:
        kept = model(given[0])
    assert [name for name, *_ in first].count("instantiate") == 1
    recorded = [call for call in first if call[0] == "launch"]
    assert [name for _, name, _ in recorded] == ["add", "count_up", "multiply", "increment"]
    with driver.watched() as second:
        more = model(given[1])
    names = [name for name, *_ in second]
    assert names.count("update") == 3, "the input's node and those of two outputs; count_up keeps its arguments"
    assert names.count("launch_graph") == 1
    assert "launch" not in names
    assert "instantiate" not in names
    check(kept, random(0))
    check(more, random(1))


def test_the_same_arrays_in_the_same_places_need_no_update(model: GpuModel, driver: FakeDriver) -> None:
    addresses = {X: driver._new(64), PRODUCT: driver._new(64), SUM: driver._new(64)}
    loaded = model._on(0)
    loaded.run(addresses, 0)
    with driver.watched() as calls:
        loaded.run(addresses, 0)
    assert [name for name, *_ in calls] == ["launch_graph", "record"]


def test_a_run_goes_to_the_stream_of_its_caller_and_waits_for_the_run_before(
    model: GpuModel, driver: FakeDriver
) -> None:
    given = OnGpu(driver, random())
    model(given, stream=77)
    with driver.watched() as calls:
        check(model(given, stream=88), random())
    assert given.streams == [77, 88]
    assert ("launch_graph", 88) in calls
    done = model._on(0).done
    waited = calls.index(("wait_for", done, 88))
    assert waited < calls.index(("launch_graph", 88)) < calls.index(("record", done, 88))


def test_without_graphs_or_with_few_launches_they_are_queued_one_by_one(driver: FakeDriver) -> None:
    short = replace(PROGRAM, run=PROGRAM.run[:1] + PROGRAM.run[2:3], buffers=PROGRAM.buffers)
    for program, graphs in ((PROGRAM, False), (short, True)):
        made = made_with(driver, program, graphs=graphs)
        made.bind({"w": WEIGHTS})
        with driver.watched() as calls:
            results = [made(OnGpu(driver, random(seed))) for seed in range(2)]
        names = [name for name, *_ in calls]
        assert names.count("launch") == 2 * len(program.run)
        assert "launch_graph" not in names
        for seed, (product, _) in enumerate(results):
            np.testing.assert_array_equal(product.numpy(), expected(random(seed))[0])


def test_a_capture_of_somebody_else_takes_arrays_of_torch_alone(model: GpuModel, driver: FakeDriver) -> None:
    given = OnGpu(driver, random())
    model(given)
    driver.foreign_captures.add(5)
    with pytest.raises(InvalidInput, match="captured"):
        model(given, stream=5)
    addresses = {X: driver._new(64), PRODUCT: driver._new(64), SUM: driver._new(64)}
    scratch = {at: driver._new(512) for at in model._on(0).scratch}
    assert set(scratch) == {SCRATCH}, "what only `prepare` uses is not there any more"
    with driver.watched() as calls:
        model._on(0).run_captured(addresses, scratch, 5)
    assert {name for name, *_ in calls} == {"launch", "zero"}, "no event from outside, no graph of ours"
    check(model(given), random())


class FakeTorch:
    """As much of torch as a model asks for, on the fake's memory. `current` is torch's current stream."""

    float32, uint8 = "float32", "uint8"

    def __init__(self, driver: FakeDriver) -> None:
        self.current = 0
        self.allocated_on: list[int] = []
        torch = self

        class Tensor:
            def __init__(
                self, shape: Any, dtype: str, *, ordinal: int = 0, dense: bool = True, offset: int = 0
            ) -> None:
                self.shape, self.dtype, self.is_cuda, self._dense = tuple(shape), f"torch.{dtype}", True, dense
                self.device = SimpleNamespace(index=ordinal)
                torch.allocated_on.append(torch.current)
                self._address = driver._new(4096) + offset

            def detach(self) -> Any:
                return self

            def is_conj(self) -> bool:
                return False

            is_neg = is_conj

            def is_contiguous(self) -> bool:
                return self._dense

            def resolve_conj(self) -> Any:
                return self

            resolve_neg = resolve_conj

            def contiguous(self) -> Any:
                return Tensor(self.shape, self.dtype.removeprefix("torch."))

            clone = contiguous

            def data_ptr(self) -> int:
                return self._address

        @contextmanager
        def on(stream: Any) -> Iterator[None]:
            before, torch.current = torch.current, stream
            yield
            torch.current = before

        self.Tensor = Tensor
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True,
            current_device=lambda: 0,
            current_stream=lambda ordinal: SimpleNamespace(cuda_stream=torch.current),
            ExternalStream=lambda stream, device: stream,
            stream=on,
        )

    def device(self, kind: str, ordinal: int) -> int:
        return ordinal

    def empty(self, shape: Any, *, dtype: str, device: int) -> Any:
        return self.Tensor(shape, dtype, ordinal=device)

    def of(self, driver: FakeDriver, values: Any, **more: Any) -> Any:
        found = self.Tensor(values.shape, str(values.dtype), **more)
        driver._write(found.data_ptr(), values.tobytes())
        return found


@pytest.fixture
def torch(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    made = FakeTorch(driver)
    for module in (arrays, executable):
        monkeypatch.setattr(module, "torch_here", lambda: made)
    return made


def values_of(driver: FakeDriver, results: Any) -> list[Any]:
    return [floats(driver, result.data_ptr()) for result in results]


def test_tensors_of_torch_s_give_tensors_of_torch_s_on_its_current_stream(
    model: GpuModel, driver: FakeDriver, torch: FakeTorch
) -> None:
    given = torch.of(driver, random())
    torch.current = 44
    with driver.watched() as calls:
        results = model(given)
    assert all(isinstance(result, torch.Tensor) for result in results)
    assert ("launch_graph", 44) in calls
    assert not (WAITS | {"allocate", "allocate_from"}) & {name for name, *_ in calls}
    for found, right in zip(values_of(driver, results), expected(random()), strict=True):
        np.testing.assert_array_equal(found, right)
    torch.allocated_on.clear()
    with driver.watched() as calls:
        model(given, stream=55)
    assert ("launch_graph", 55) in calls
    assert torch.allocated_on == [55, 55], "torch's memory belongs to the stream that the run goes to"
    assert torch.current == 44


def test_a_capture_by_torch_gets_the_launches_and_scratch_memory_of_its_own(
    model: GpuModel, driver: FakeDriver, torch: FakeTorch
) -> None:
    given = torch.of(driver, random())
    model(given)
    torch.current = 66
    driver.foreign_captures.add(66)
    torch.allocated_on.clear()
    with driver.watched() as calls:
        model(given)
    assert {name for name, *_ in calls} == {"launch", "zero"}
    assert [stream for name, _, stream in calls if name == "launch"] == [66] * 4
    assert torch.allocated_on == [66] * 3, "two results and the scratch memory"
    with pytest.raises(InvalidInput, match="captured"):
        model(OnGpu(driver, random()), stream=66)


def test_a_tensor_of_torch_s_that_lies_in_another_way_is_copied_by_torch(
    model: GpuModel, driver: FakeDriver, torch: FakeTorch
) -> None:
    model(torch.of(driver, random()))
    for more in ({"dense": False}, {"offset": 4}):
        torch.allocated_on.clear()
        model(torch.of(driver, random(), **more))
        assert len(torch.allocated_on) == 4, "the tensor, its copy and two results"
    with pytest.raises(InvalidInput, match=r"x must be float32\[8\], not float16\[8\]"):
        model(torch.of(driver, random().astype(np.float16)))
    with pytest.raises(InvalidInput, match="different GPUs"):
        one_ordinal([Spec("a"), Spec("b")], [torch.of(driver, random(), ordinal=n) for n in range(2)])


def test_results_hold_their_memory_as_long_as_anybody_holds_them(model: GpuModel, driver: FakeDriver) -> None:
    given = OnGpu(driver, random())
    results = model(given)
    before = driver.held
    for _ in range(1000):
        model(given)
    assert driver.held == before, "memory grows"
    capsule = results[0].__dlpack__(stream=33)
    address = results[0].address
    with driver.watched() as calls:
        del results
        gc.collect()
    assert [name for name, *_ in calls].count("free_on") == 1, "one of two: the other is lent"
    np.testing.assert_array_equal(floats(driver, address), expected(random())[0])
    del capsule
    assert driver.held == before - 2


def test_whoever_takes_a_result_waits_for_the_run_on_its_own_stream(model: GpuModel, driver: FakeDriver) -> None:
    (result, _) = model(OnGpu(driver, random()))
    done = model._on(0).done
    for stream, handle in ((None, 0), (1, 0), (33, 33)):
        with driver.watched() as calls:
            borrowed = result.__dlpack__(stream=stream)
        assert calls == [("wait_for", done, handle)]
        del borrowed
    with driver.watched() as calls:
        borrowed = result.__dlpack__(stream=-1)
    assert calls == []
    del borrowed
    for more in ({"copy": True}, {"dl_device": (dlpack.CPU, 0)}):
        with pytest.raises(BufferError):
            result.__dlpack__(**more)
    borrowed = dlpack.Borrowed(result, 33)
    assert (borrowed.described.address, borrowed.described.shape) == (result.address, (SIZE,))
    borrowed.release()


def test_a_model_frees_all_it_holds_once_its_results_are_gone(driver: FakeDriver) -> None:
    made = made_with(driver)
    made.bind({"w": WEIGHTS})
    made(random())
    given = OnGpu(driver, random())
    alone = driver.held
    results = made(given)
    del made
    gc.collect()
    assert driver.held > 1, "a result keeps what its memory comes from"
    del results
    gc.collect()
    assert driver.held == 1, "the argument"
    assert alone > 1
    names = driver.names()
    for made_by, undone_by in (("load", "unload"), ("instantiate", "destroy"), ("create_pool", "destroy_pool")):
        assert names.count(made_by) == names.count(undone_by) > 0
    assert names.count("create_stream") == names.count("destroy_stream")
    assert names.count("create_event") == names.count("destroy_event")


def test_threads_take_turns(model: GpuModel, driver: FakeDriver) -> None:
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for _ in range(20):
                check(model(OnGpu(driver, random(seed)) if seed % 2 else random(seed)), random(seed))
        except BaseException as error:  # noqa: BLE001 - told below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_weights_are_bound_again_in_place_and_kept_when_others_do_not_fit(model: GpuModel, driver: FakeDriver) -> None:
    given = OnGpu(driver, random())
    check(model(given), random())
    addresses = dict(model._on(0).addresses)
    for wrong in ({}, {"w": WEIGHTS[:4]}, {"w": WEIGHTS.astype(np.float64)}, {"w": "text"}):
        with pytest.raises(InvalidInput, match="w"):
            model.bind(wrong)
    check(model(given), random())
    done = model._on(0).done
    with driver.watched() as calls:
        model.bind({"w": OnGpu(driver, -WEIGHTS)})
    stream, names = model._on(0).stream, [name for name, *_ in calls]
    assert calls.index(("wait_for", done, stream)) < names.index("copy"), "a run that is queued reads what was there"
    assert names.index("launch") < calls.index(("record", done, stream)), "later runs wait for it"
    assert names.index("record") < names.index("synchronize"), "whoever lent the array may change it"
    assert model._on(0).addresses == addresses
    check(model(given), random(), -WEIGHTS)


def test_binding_tensors_of_torch_s_waits_for_nothing(model: GpuModel, driver: FakeDriver, torch: FakeTorch) -> None:
    torch.current = 44
    weights, held = torch.of(driver, -WEIGHTS), driver.held
    with driver.watched() as calls:
        model.bind({"w": weights})
    assert not {name for name, *_ in calls} & (WAITS - {"copy"})
    stream = model._on(0).stream
    recorded = [at for at, (name, *_) in enumerate(calls) if name == "record"]
    assert calls[recorded[-1] + 1] == ("wait_for", calls[recorded[-1]][1], 44), "torch may then free or change them"
    assert calls[recorded[-1]][2] == stream
    assert driver.held == held, "what was there for binding alone is freed"
    given = torch.of(driver, random())
    with driver.watched() as calls:
        results = model(given)
    assert ("wait_for", model._on(0).done, 44) in calls
    for found, wanted in zip(values_of(driver, results), expected(random(), -WEIGHTS), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_gpu_that_is_named_holds_the_weights_and_computes_with_arrays_of_the_host(driver: FakeDriver) -> None:
    made = made_with(driver, ordinal=1)
    made.bind({"w": WEIGHTS})
    check(made(random()), random())
    assert set(made._loaded) == {1}
    check(made(OnGpu(driver, random())), random())
    assert set(made._loaded) == {0, 1}


def test_arrays_on_another_gpu_run_there_with_the_same_weights(model: GpuModel, driver: FakeDriver) -> None:
    check(model(OnGpu(driver, random(1), ordinal=1)), random(1))
    assert [call[:3] for call in driver.calls if call[0] == "copy_peer"] == [("copy_peer", 0xC1, 0xC0)]
    model.bind({"w": -WEIGHTS})
    for ordinal in (0, 1):
        results = model(OnGpu(driver, random(2), ordinal=ordinal))
        assert results[0].__dlpack_device__() == (dlpack.CUDA, ordinal)
        check(results, random(2), -WEIGHTS)
    with pytest.raises(CudaError, match="ordinal"):
        model(OnGpu(driver, random(), ordinal=7))


@pytest.mark.parametrize(
    ("values", "more"),
    [(random()[:4], {}), (random().astype(np.float16), {}), (random().reshape(2, 4), {}), (random(), {"offset": 4})],
    ids=["shape", "type", "axes", "alignment"],
)
def test_an_array_on_the_gpu_that_does_not_fit_is_refused(
    model: GpuModel, driver: FakeDriver, values: Any, more: dict[str, int]
) -> None:
    with pytest.raises(InvalidInput, match="x must"):
        model(OnGpu(driver, values, **more))
    with pytest.raises(InvalidInput, match="1 arrays, not 2"):
        model(values, values)


def test_a_run_is_timed_in_memory_of_its_own(model: GpuModel, driver: FakeDriver) -> None:
    assert model.run_secs(random(), repeats=5) == pytest.approx([4e-6] * 5)
    with driver.watched() as calls:
        model.timed(OnGpu(driver, random()))(3)
    names = [name for name, *_ in calls]
    assert names.count("launch_graph") == 4, "one that is not counted"
    assert names.count("update") == 0


def test_a_step_takes_what_a_run_is_shorter_by_without_it(model: GpuModel, driver: FakeDriver) -> None:
    with driver.watched() as calls:
        steps = model.steps(random(), repeats=2)
    assert [step.name for step in steps] == [PROGRAM.kernels[launch.kernel].name for launch in PROGRAM.run]
    assert [step.secs for step in steps] == pytest.approx([1e-6] * 4)
    names = [name for name, *_ in calls]
    assert names.count("instantiate") == names.count("destroy") == 5, "the whole run, and one without each launch"
    check(model(random(1)), random(1))


def test_clusters_early_launches_and_tensor_maps_reach_the_driver(driver: FakeDriver) -> None:
    seen: list[tuple[Any, ...]] = []
    driver._kernels = {**KERNELS, "add": lambda _driver, prepared, *arguments: seen.append((prepared, arguments))}
    described = TensorMap(
        base=Pointer(buffer=X, offset=16), dtype="float32", sizes=(4,), strides=(), box=(4,), swizzle=Swizzle.NONE
    )
    special = Launch(
        kernel=0,
        arguments=(described, Pointer(buffer=PRODUCT)),
        grid=(32, 1, 1),
        block=(128, 1, 1),
        shared_bytes=100_000,
        cluster=(16, 1, 1),
        programmatic=True,
    )
    program = replace(PROGRAM, prepare=(), run=(special,))
    made = made_with(driver, program)
    made.bind({"w": WEIGHTS})
    assert ("function", "add", 100_000, 16) in driver.calls
    given = OnGpu(driver, random())
    made(given)
    ((prepared, (found, to)),) = seen
    assert int.from_bytes(found[:8], "little") == given.described.address + 16
    assert to % 256 == 0
    attributes = [prepared.config.attributes[at] for at in range(prepared.config.count)]
    assert [(one.id, tuple(one.value.cluster)[:1]) for one in attributes] == [(4, (16,)), (6, (1,))]
    assert (tuple(prepared.node.grid), prepared.node.shared_bytes) == ((32, 1, 1), 100_000)


def test_a_program_of_other_tensors_than_its_manifest_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(InvalidInput, match="input"):
        GpuModel(PROGRAM, [Spec("x", shape=(4,))], [Spec("w")], using=lambda: driver)
    with pytest.raises(InvalidInput, match="weight"):
        GpuModel(PROGRAM, [Spec("x")], [], using=lambda: driver)


def test_one_result_comes_alone_unless_it_came_in_a_tuple(driver: FakeDriver) -> None:
    one = replace(PROGRAM, run=PROGRAM.run[:3], buffers=(*PROGRAM.buffers[:SUM], PROGRAM.buffers[LAYING]), prepare=())
    for in_tuple, kind in ((False, np.ndarray), (True, tuple)):
        made = made_with(driver, replace(one, in_tuple=in_tuple))
        made.bind({"w": WEIGHTS})
        assert isinstance(made(random()), kind)


def test_a_machine_without_the_driver_says_so() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(NoDevice, match=r"libcuda\.so\.1"):
            Driver()
    else:
        pytest.skip("there is a driver")
