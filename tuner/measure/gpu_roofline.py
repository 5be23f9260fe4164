"""The roofline of a GPU, measured: the rates that no program exceeds, as tuner/measure/roofline.py has them for a CPU.

    float32    fused multiply-adds on registers, all multiprocessors
    tensor     products on the tensor cores per type of their factors, with sums in float32 (int32 for int8): wgmma where the
               architecture has it, else mma. Of architectures whose fastest instruction is neither (from 10.0 on tcgen05) no
               tensor peak is told, and tasks that may use tensor cores have no bound by arithmetic
    memory     per level: bytes of an array that lies in that level, read, or read and written elsewhere, whichever is faster
    launch     seconds a kernel that does nothing takes in a CUDA graph of many: no program takes less in one

Williams, Waterman and Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures" (2009). The
factors of all products are zero, with which the clock is highest: a bound must not be too high. Every rate is the fastest of
several runs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pitchpipe.gpu.launches import Launches
from pitchpipe.gpu.program import Buffer, Kernel, Launch, Place, Pointer, Program, Scalar
from pitchpipe.wire.roofline import MemoryLevel, Peak, Roofline
from tuner.measure.cuda_driver import Cuda
from tuner.measure.device_compiler import DeviceCompiler
from tuner.measure.gpu_turn import GpuTurn

_RUNS = 8
"""A kernel is run until so many runs in a row are no faster than the fastest before them."""
_MOST_RUNS = 200
_REPEATS = 2048
"""Of the arithmetic of a thread: a run takes about a millisecond."""
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 4
_FMA_CHAINS = 16
"""Independent multiply-adds of a thread: more than a pipeline holds."""
_TENSOR_CHAINS = 4
_WGMMA_COLUMNS = 128
_COPIES_OF_L2 = 16
"""Size of the array that the L2 cache does not hold, in L2 caches."""
_SHARE_OF_L2 = 4
"""Part of the L2 cache that the array in it takes: a multiprocessor has half of the cache near to it."""
_PASSES = 64
"""How often a run goes through the array that lies in the L2 cache, so that it takes much longer than to start."""
_TURN_POLL_SECS = 2e-3
_NOTHINGS = 512
"""Kernels of the graph that tells what starting one takes."""


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """Factors of one type on tensor cores."""

    name: str
    """As a task's `flops_type`."""
    ptx: str
    """As PTX names the type."""
    sums: str
    """As PTX names the type of the sums."""
    depth: int
    """Products of one instruction in each of its sums."""


TENSOR_TYPES = (
    TensorType(name="float16", ptx="f16", sums="f32", depth=16),
    TensorType(name="bfloat16", ptx="bf16", sums="f32", depth=16),
    TensorType(name="tf32", ptx="tf32", sums="f32", depth=8),
    TensorType(name="int8", ptx="s8", sums="s32", depth=32),
)
_WGMMA = "sm_90a"
_MMA = ("sm_80", "sm_86", "sm_87", "sm_89")


def measure(arch: str, multiprocessors: int, ordinal: int = 0) -> Roofline:
    """Measures the roofline in about a second, with the GPU's turn on this host.

    Makes a context on the GPU: call it only in a fork that ends afterwards. Raises CudaError, NotCompiled or OSError.
    """
    compiler = DeviceCompiler(arch)
    kinds = tensor_types(arch)
    code = compiler.compile(source(arch))
    cuda = Cuda(ordinal)
    with GpuTurn(cuda.uuid) as turn:
        while not turn.take():
            time.sleep(_TURN_POLL_SECS)
        return _Device(cuda, code, multiprocessors).roofline(kinds)


def tensor_types(arch: str) -> tuple[TensorType, ...]:
    """The types whose fastest instruction on tensor cores is known here."""
    return TENSOR_TYPES if arch in (_WGMMA, *_MMA) else ()


class _Device:
    def __init__(self, cuda: Cuda, code: bytes, multiprocessors: int) -> None:
        self._cuda, self._code = cuda, code
        self._blocks = multiprocessors * _BLOCKS_PER_MULTIPROCESSOR
        self._out = cuda.allocate(1 << 20)

    def roofline(self, kinds: Sequence[TensorType]) -> Roofline:
        threads = self._blocks * _THREADS
        peak = threads * _FMA_CHAINS * _REPEATS * 2.0 / self._fastest("multiply_add", [self._out])
        peaks = []
        for kind in kinds:
            flops = self._blocks * tensor_flops_per_block(kind)
            peaks.append(Peak(type=kind.name, flops_per_sec=flops / self._fastest(f"tensor_{kind.name}", [self._out])))
        l2 = self._cuda.l2_bytes
        near, far = self._bytes_per_sec(l2 // _SHARE_OF_L2, _PASSES), self._bytes_per_sec(l2 * _COPIES_OF_L2, 1)
        levels = (
            MemoryLevel(name="L2", inside_bytes=0, bytes_per_sec=max(near, far)),
            MemoryLevel(name="memory", inside_bytes=l2, bytes_per_sec=far),
        )
        return Roofline(
            threads=1, flops_per_sec=peak, peaks=tuple(peaks), levels=levels, launch_secs=self._launch_secs()
        )

    def _launch_secs(self) -> float:
        """What one more kernel adds to a graph."""
        graph = self._cuda.capture([self._launches("nothing", [self._out])] * _NOTHINGS)

        def run() -> float:
            self._cuda.start()
            self._cuda.replay(graph)
            return self._cuda.stop()

        try:
            run()
            return fastest(run) / _NOTHINGS
        finally:
            self._cuda.destroy(graph)

    def _bytes_per_sec(self, size: int, passes: int) -> float:
        """Of reading `size` bytes, or half of them while the other half is written, `passes` times."""
        size -= size % (_THREADS * 64)
        array = self._cuda.allocate(size)
        try:
            self._cuda.fill(array, size, b"\0\0\0\0")
            vectors = size // 16
            read = self._fastest("read_bytes", [array, self._out], vectors, passes)
            copy = self._fastest("copy_bytes", [array, array + size // 2], vectors // 2, passes)
            return size * passes / min(read, copy)
        finally:
            self._cuda.free(array)

    def _fastest(self, name: str, pointers: Sequence[int], *numbers: int) -> float:
        """Seconds of the fastest of several runs."""
        launches = self._launches(name, pointers, *numbers)
        self._cuda.launch(launches)

        def run() -> float:
            self._cuda.start()
            self._cuda.launch(launches)
            return self._cuda.stop()

        return fastest(run)

    def _launches(self, name: str, pointers: Sequence[int], *numbers: int) -> Launches:
        """One launch of a kernel that takes pointers and numbers of 64 bits."""
        arguments: list[Pointer | Scalar] = [Pointer(buffer=at) for at in range(len(pointers))]
        arguments += [Scalar(data=number.to_bytes(8, "little")) for number in numbers]
        launch = Launch(kernel=0, arguments=tuple(arguments), grid=(self._blocks, 1, 1), block=(_THREADS, 1, 1))
        buffer = Buffer(place=Place.OUTPUT, dtype="float32", shape=(1,))
        program = Program(
            codes=(self._code,), kernels=(Kernel(code=0, name=name),), buffers=(buffer,) * len(pointers), run=(launch,)
        )
        return self._cuda.launches(program, self._cuda.load(program), dict(enumerate(pointers)))


def fastest(run: Callable[[], float]) -> float:
    """The least of what `run` returns, until _RUNS in a row are no less than the least before them."""
    least, since = run(), 0
    for _ in itertools.repeat(None, _MOST_RUNS):
        if since == _RUNS:
            break
        secs = run()
        since = 0 if secs < least else since + 1
        least = min(least, secs)
    return least


def tensor_flops_per_block(kind: TensorType) -> float:
    """FLOPs of one block of `tensor_*`, by whichever instruction: both do as many a thread."""
    per_warp = 2.0 * 16 * _WGMMA_COLUMNS * kind.depth
    return _THREADS / 32 * per_warp * _TENSOR_CHAINS * _REPEATS / _TENSOR_SHORTER


_TENSOR_SHORTER = 16
"""How many times fewer repeats the products have: one has thousands of multiply-adds."""


def source(arch: str) -> str:
    """CUDA C++ of all kernels for an architecture."""
    kernels = [_fma(), _read(), _copy()]
    for kind in tensor_types(arch):
        kernels.append(_wgmma(kind) if arch == _WGMMA else _mma(kind))
    return "\n".join(kernels)


def _fma() -> str:
    chains = range(_FMA_CHAINS)
    names = ", ".join(f"a{i} = t + {i}" for i in chains)
    steps = " ".join(f"a{i} = fmaf(a{i}, 0.5f, 1.0f);" for i in chains)
    total = " + ".join(f"a{i}" for i in chains)
    return f"""
extern "C" __global__ void multiply_add(float* out) {{
  float t = threadIdx.x, {names};
  for (int i = 0; i < {_REPEATS}; ++i) {{ {steps} }}
  if ({total} == -1.0f) out[0] = t;
}}"""


def _read() -> str:
    return """
extern "C" __global__ void nothing(float* out) {}
extern "C" __global__ void read_bytes(const float4* array, float* out, size_t vectors, size_t passes) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  float sum = 0;
  for (size_t pass = 0; pass < passes; ++pass) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * stride < vectors; i += 4 * stride) {
      float4 a = __ldcg(array + i), b = __ldcg(array + i + stride);
      float4 c = __ldcg(array + i + 2 * stride), d = __ldcg(array + i + 3 * stride);
      sum += a.x + b.y + c.z + d.w;
    }
    for (; i < vectors; i += stride) sum += __ldcg(array + i).x;
    asm volatile("" ::: "memory");
  }
  if (sum == -1.0f) out[0] = sum;
}"""


def _copy() -> str:
    return """
extern "C" __global__ void copy_bytes(const float4* from, float4* to, size_t vectors, size_t passes) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t pass = 0; pass < passes; ++pass) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * stride < vectors; i += 4 * stride) {
      float4 a = __ldcg(from + i), b = __ldcg(from + i + stride);
      float4 c = __ldcg(from + i + 2 * stride), d = __ldcg(from + i + 3 * stride);
      __stcg(to + i, a); __stcg(to + i + stride, b); __stcg(to + i + 2 * stride, c); __stcg(to + i + 3 * stride, d);
    }
    for (; i < vectors; i += stride) __stcg(to + i, __ldcg(from + i));
    asm volatile("" ::: "memory");
  }
}"""


def _mma(kind: TensorType) -> str:
    """Warps multiply 16 x depth by depth x 8; as many of these as one wgmma of _WGMMA_COLUMNS columns has."""
    sums = "float" if kind.sums == "f32" else "int"
    constraint = "f" if kind.sums == "f32" else "r"
    shape = f"m16n8k{kind.depth}"
    each = _TENSOR_CHAINS * 4
    products = []
    for i in range(each):
        at = ", ".join(f'"+{constraint}"(s[{i}][{j}])' for j in range(4))
        products.append(
            f'asm volatile("mma.sync.aligned.{shape}.row.col.{kind.sums}.{kind.ptx}.{kind.ptx}.{kind.sums} '
            f'{{%0, %1, %2, %3}}, {{%4, %4, %4, %4}}, {{%4, %4}}, {{%0, %1, %2, %3}};" : {at} : "r"(zero));'
        )
    rounds = _REPEATS // _TENSOR_SHORTER * _WGMMA_COLUMNS // 8 * _TENSOR_CHAINS // each
    return _tensor_kernel(
        kind, f"{sums} s[{each}][4] = {{}}; unsigned zero = 0;", rounds, "\n    ".join(products), sums
    )


def _wgmma(kind: TensorType) -> str:
    """Groups of four warps multiply 64 x depth by depth x _WGMMA_COLUMNS, both in shared memory, which holds zeros."""
    sums = "float" if kind.sums == "f32" else "int"
    constraint = "f" if kind.sums == "f32" else "r"
    count = _WGMMA_COLUMNS // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    at = ", ".join(f'"+{constraint}"(s[0][{i}])' for i in range(count))
    tail = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0", "tf32": ", 1, 1", "s8": ""}[kind.ptx]
    product = (
        f'asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 1}, 0; wgmma.mma_async.sync.aligned.'
        f"m64n{_WGMMA_COLUMNS}k{kind.depth}.{kind.sums}.{kind.ptx}.{kind.ptx} "
        f"{{{registers}}}, %{count}, %{count}, p{tail};}}"
        f'" : {at} : "l"(descriptor), "r"(1));'
    )
    setup = f"""__shared__ __align__(1024) unsigned shared[16384 / 4];
  for (int i = threadIdx.x; i < 16384 / 4; i += blockDim.x) shared[i] = 0;
  __syncthreads();
  asm volatile("fence.proxy.async;" ::: "memory");
  {sums} s[1][{count}] = {{}};
  unsigned long long descriptor = ((unsigned long long)__cvta_generic_to_shared(shared) & 0x3FFFF) >> 4;
  descriptor |= (1ull << 16) | (64ull << 32) | (1ull << 62);"""
    steps = ['asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', *[product] * _TENSOR_CHAINS]
    steps += [
        'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
        'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
    ]
    return _tensor_kernel(kind, setup, _REPEATS // _TENSOR_SHORTER, "\n    ".join(steps), sums)


def _tensor_kernel(kind: TensorType, setup: str, rounds: int, step: str, sums: str) -> str:
    return f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) tensor_{kind.name}({sums}* out) {{
  {setup}
  for (int i = 0; i < {rounds}; ++i) {{
    {step}
  }}
  {sums} total = 0;
  for (auto& row : s) for (auto value : row) total += value;
  if (total == ({sums})-1) out[0] = total;
}}"""
