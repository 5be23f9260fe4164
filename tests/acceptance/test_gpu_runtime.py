"""A compiled model on a real GPU: what it computes, where its results lie, and what a call does not do."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import pitchpipe  # noqa: E402
from pitchpipe.deploy.lookup import Schedules  # noqa: E402
from pitchpipe.gpu.driver import Driver  # noqa: E402
from pitchpipe.gpu.executable import GpuModel  # noqa: E402
from pitchpipe.gpu.program import (  # noqa: E402
    Buffer,
    Kernel,
    Launch,
    Place,
    Pointer,
    Program,
    Scalar,
    Span,
    TensorMap,
)
from pitchpipe.wire.record import LookupResponse  # noqa: E402
from pitchpipe.wire.target import Target  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
HALF = torch.float16
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2}
TARGET = Target.parse(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "registers_per_block": 65536,
        "thread_warp_size": 32,
    }
)


class Encoder(nn.Module):
    """Two layers of a transformer as BERT has them."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "first": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "second": nn.LayerNorm(width),
                }
            )
            for _ in range(layers)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        for layer in self.layers:
            q, k, v = (
                part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
                for part in layer["qkv"](x).chunk(3, -1)
            )
            scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
            x = layer["first"](x + layer["out"]((scores @ v).transpose(1, 2).reshape(batch, length, width)))
            x = layer["second"](x + layer["down"](nn.functional.gelu(layer["up"](x))))
        return x


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10)
    )


class Powers(nn.Module):  # type: ignore[misc]
    """What fast mathematics gets wrong: powers of negative numbers, sines of large ones, small quotients."""

    def forward(self, x: Any) -> Any:
        normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        return normed + torch.sin(1024 * x) + x.pow(3) / (1e4 + x.abs())


MODELS = {
    "powers": (Powers, (16, 256)),
    "perceptron": (perceptron, (32, 64)),
    "convolutions": (convolutions, (2, 8, 12, 12)),
    "encoder": (Encoder, (1, 64, 128)),
}
CASES = [(name, dtype) for name in MODELS for dtype in (torch.float32, HALF)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def alone(cache: Path) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PITCHPIPE_CACHE_DIR", str(cache))
    patch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        yield
    patch.undo()


def module_of(name: str, dtype: Any = torch.float32) -> tuple[Any, Any]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().to(dtype).eval(), torch.randn(shape).to(dtype)


def loaded(name: str, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    """The compiled model, the module on the GPU, and an input there."""
    module, x = module_of(name, dtype)
    model = pitchpipe.load(module, None, (x,), target="cuda")
    return model, module.cuda(), x.cuda()


@pytest.fixture(scope="module")
def encoder() -> tuple[Any, Any, Any]:
    return loaded("encoder")


def close(found: Any, module: Any, x: Any) -> bool:
    with torch.no_grad():
        right = module(x)
    assert (found.dtype, found.shape, found.device) == (right.dtype, right.shape, right.device)
    scale = float(right.float().abs().max())
    return float((found.float() - right.float()).abs().max()) <= TOLERANCE[x.dtype] * scale


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Whoever waits for the device, or moves anything to it or on it, fails the test."""
    gc.collect()  # a model that ends waits
    patch = pytest.MonkeyPatch()
    for name in ("synchronize", "synchronize_event", "upload", "download", "copy"):
        patch.setattr(Driver, name, lambda *_arguments, _name=name: pytest.fail(f"a call did {_name}"))
    try:
        yield
    finally:
        patch.undo()


@needs_gpu
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda one: str(one).removeprefix("torch."))
def test_results_are_eager_s_and_stay_on_the_gpu(name: str, dtype: Any) -> None:
    model, module, x = loaded(name, dtype)
    for _ in range(3):
        with nothing_waits():
            found = model(x)
        assert close(found, module, x)
        x = torch.randn_like(x)
    on_host = model(x.cpu().numpy())
    assert isinstance(on_host, np.ndarray)
    np.testing.assert_array_equal(on_host, model(x).cpu().numpy())
    np.testing.assert_array_equal(model(x.cpu()), on_host)
    np.testing.assert_array_equal(model(x[:, :].contiguous().flip(0).flip(0)).cpu().numpy(), on_host)


@needs_gpu
def test_a_call_returns_before_its_stream_has_come_to_it(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    model(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    ended = torch.cuda.Event()
    found = model(x + 1)
    ended.record()
    assert not ended.query(), "the call waited for what was queued before it"
    assert close(found, module, x + 1)


@needs_gpu
def test_arguments_move_and_results_are_new_memory(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    inputs = [torch.randn_like(x) for _ in range(5)]
    results = [model(one) for one in inputs]
    assert len({result.data_ptr() for result in results}) == len(results)
    assert all(close(found, module, one) for found, one in zip(results, inputs, strict=True))
    room = torch.zeros(x.numel() + 1, device="cuda")
    for offset in (0, 1):  # the second is not aligned
        moved = room[offset : offset + x.numel()].view_as(x).copy_(x)
        assert close(model(moved), module, x)
    assert close(model(x.transpose(0, 1).contiguous().transpose(0, 1)), module, x)


@needs_gpu
def test_two_streams_and_two_threads_get_their_own_results(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                generator = torch.Generator("cuda").manual_seed(seed)
                for _ in range(20):
                    one = torch.randn(x.shape, generator=generator, device="cuda")
                    if not close(model(one), module, one):
                        wrong.append(f"thread {seed}")
        except BaseException as error:  # noqa: BLE001 - told below
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_gpu
def test_a_run_goes_into_the_graph_of_whoever_captures_it(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    static = x.clone()
    model(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(static * 2)
    for seed in range(3):
        torch.manual_seed(seed)
        static.copy_(torch.randn_like(x))
        other = model(x)  # beside it
        graph.replay()
        assert close(found, module, static * 2)
        assert close(other, module, x)


@needs_gpu
def test_weights_are_bound_again_from_the_gpu(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        doubled = {name: 2 * tensor for name, tensor in state.items()}
    model.bind(doubled)
    module.load_state_dict(doubled)
    assert close(model(x), module, x)
    module.load_state_dict({name: tensor / 2 for name, tensor in doubled.items()})
    model.bind(dict(module.state_dict()))
    assert close(model(x), module, x)


@needs_gpu
def test_memory_does_not_grow(encoder: tuple[Any, Any, Any]) -> None:
    model, _, x = encoder
    for _ in range(10):
        model(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    for at in range(1000):
        model(x if at % 2 else x + 1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert before - torch.cuda.mem_get_info()[0] < 8 << 20


@needs_gpu
def test_runs_are_timed(encoder: tuple[Any, Any, Any]) -> None:
    secs = encoder[0].run_secs(encoder[2], repeats=20)
    assert len(secs) == 20
    assert all(1e-6 < one < 0.1 for one in secs)


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_arrays_on_another_gpu_run_there(encoder: tuple[Any, Any, Any]) -> None:
    model, module, x = encoder
    there = x.to("cuda:1")
    found = model(there)
    assert close(found, module.to("cuda:1"), there)
    module.to("cuda:0")
    assert close(model(x), module, x)


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: str
    shape: tuple[int, ...]


SPECIAL = r"""
extern "C" __global__ void ranks(unsigned* out) {
  unsigned rank, count;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  out[blockIdx.x] = 100 * count + rank;
}
extern "C" __global__ void first(const float* x, float* y, float add) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < 100000; ++i) asm volatile("");
  y[threadIdx.x] = x[threadIdx.x] + add;
}
extern "C" __global__ void second(const float* y, float* z, unsigned* counter) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  z[threadIdx.x] = 2 * y[threadIdx.x] + atomicAdd(counter + threadIdx.x, 1u);
}
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void tile(const __grid_constant__ Map map, float* out) {
  __shared__ alignas(128) float tile[8 * 16];
  __shared__ unsigned long long barrier;
  unsigned b = (unsigned)__cvta_generic_to_shared(&barrier), t = (unsigned)__cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 512;" :: "r"(b) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(t), "l"(&map), "r"(16), "r"(8), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra WAIT;\n}" :: "r"(b) : "memory");
  out[threadIdx.x] = tile[threadIdx.x];
}
"""


def special_program(code: bytes) -> Program:
    """Clusters, an early launch after one with a scalar, zeroed counters, and a tensor map of a part of the input."""
    described = TensorMap(base=Pointer(buffer=0), dtype="float32", sizes=(64, 32), strides=(256,), box=(16, 8))
    one = (1, 1, 1)
    return Program(
        codes=(code,),
        kernels=tuple(Kernel(code=0, name=name) for name in ("ranks", "first", "second", "tile")),
        buffers=(
            Buffer(place=Place.INPUT, dtype="float32", shape=(32, 64)),
            Buffer(place=Place.OUTPUT, dtype="int32", shape=(32,)),
            Buffer(place=Place.OUTPUT, dtype="float32", shape=(128,)),
            Buffer(place=Place.OUTPUT, dtype="float32", shape=(128,)),
            Buffer(place=Place.SCRATCH, dtype="uint8", shape=(1024,)),
        ),
        run=(
            Launch(kernel=0, arguments=(Pointer(buffer=1),), grid=(32, 1, 1), block=one, cluster=(16, 1, 1),
                   zeroed=(Span(buffer=4, offset=512, size_bytes=512),)),
            Launch(kernel=1, arguments=(Pointer(buffer=0), Pointer(buffer=4), Scalar(data=np.float32(3).tobytes())),
                   grid=one, block=(128, 1, 1)),
            Launch(kernel=2, arguments=(Pointer(buffer=4), Pointer(buffer=2), Pointer(buffer=4, offset=512)),
                   grid=one, block=(128, 1, 1), programmatic=True),
            Launch(kernel=3, arguments=(described, Pointer(buffer=3)), grid=one, block=(128, 1, 1)),
        ),
        in_tuple=True,
    )  # fmt: skip


def special_code() -> bytes:
    from tuner.measure.device_compiler import DeviceCompiler, NotCompiled

    try:
        return DeviceCompiler("sm_90a").compile(SPECIAL)
    except NotCompiled as error:
        if "neither NVRTC" in str(error):
            pytest.skip(str(error))
        raise


def test_the_special_kernels_compile_for_hopper() -> None:
    assert special_program(special_code()).codes[0][:4] == b"\x7fELF"


@needs_gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)
@pytest.mark.parametrize("graphs", [True, False])
def test_clusters_early_launches_zeros_scalars_and_tensor_maps_reach_the_device(graphs: bool) -> None:
    model = GpuModel(special_program(special_code()), [Spec("x", "float32", (32, 64))], [], graphs=graphs)
    model.bind({})
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(32, 64, device="cuda")
        ranks, sums, part = model(x)
        assert ranks.tolist() == [1600 + at % 16 for at in range(32)]
        assert torch.equal(sums, 2 * (x.flatten()[:128] + 3)), "a counter that was not zeroed would show"
        assert torch.equal(part.view(8, 16), x[8:16, 16:32])


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_driver_the_fallback_runs_and_says_why(tmp_path: Path) -> None:
    if not _compiles():
        pytest.skip("needs NVRTC or nvcc")
    module, x = module_of("perceptron")
    schedules = Schedules(target=TARGET, response=LookupResponse(answers=()))
    with pytest.warns(pitchpipe.FallbackWarning, match=r"libcuda\.so\.1"):
        model = pitchpipe.load_safely(module, (x,), schedules=schedules, deadline_secs=120, cache=tmp_path)
    assert model.compiled is None
    np.testing.assert_allclose(model(x.numpy()), module(x).detach().numpy(), rtol=1e-6)
    assert os.path.exists(next((tmp_path / "artifacts").glob("*/model.gpu"))), (
        "what was built waits for a machine with one"
    )


def _compiles() -> bool:
    from tuner.measure.device_compiler import DeviceCompiler, NotCompiled

    try:
        DeviceCompiler("sm_90")
    except NotCompiled:
        return False
    return True
