"""The driver is called as CUDA's own header says: by a library that is compiled against that header, in a GPU's place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.measure import nvrtc

HERE = Path(__file__).parent
SCENE = """
from pitchpipe.gpu.driver import Driver
from pitchpipe.gpu.executable import GpuModel
from tests.compiler.test_gpu_driver import Spec, program

driver = Driver()
print("devices", driver.devices, driver.attribute(1, 38), driver.uuid(1))
driver.spin(1)
model = GpuModel(program(), [Spec("x", "bfloat16", (32, 64))], [], using=lambda: driver)
model.bind({})
loaded = model._on(0)
addresses = {0: driver.allocate(4096), 1: driver.allocate(512)}
loaded.run(addresses, 0)
print("again")
loaded.run({**addresses, 1: driver.allocate(512)}, 5)
print("secs", loaded.secs(addresses, 2))
print("more")
print("pooled", driver.allocate_from(loaded.pool(), 100, 5) % 256)
model._on(1)
"""


class Spec:
    """What an array of the scene must be."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape


def program() -> object:
    """Four launches with everything that a launch may have."""
    from pitchpipe.gpu.program import (
        Buffer,
        Kernel,
        Launch,
        Place,
        Pointer,
        Program,
        Scalar,
        Span,
        Swizzle,
        TensorMap,
    )

    described = TensorMap(
        base=Pointer(buffer=0, offset=16),
        dtype="bfloat16",
        sizes=(64, 31),
        strides=(128,),
        box=(32, 8),
        swizzle=Swizzle.BYTES_64,
    )
    zeroed = (Span(buffer=2, offset=256, size_bytes=100),)
    return Program(
        codes=(b"code",),
        kernels=(Kernel(code=0, name="wide"), Kernel(code=0, name="plain")),
        buffers=(
            Buffer(place=Place.INPUT, dtype="bfloat16", shape=(32, 64)),
            Buffer(place=Place.OUTPUT, dtype="uint8", shape=(512,)),
            Buffer(place=Place.SCRATCH, dtype="uint8", shape=(512,)),
        ),
        run=(
            Launch(
                kernel=0,
                arguments=(described, Scalar(data=b"\x05\0\0\0")),
                grid=(32, 2, 3),
                block=(64, 4, 2),
                shared_bytes=99_000,
                cluster=(16, 1, 1),
            ),
            Launch(kernel=1, arguments=(Pointer(buffer=2),), grid=(1, 1, 1), block=(1, 1, 1), programmatic=True),
            Launch(kernel=1, arguments=(Pointer(buffer=2),), grid=(1, 1, 1), block=(1, 1, 1), zeroed=zeroed),
            Launch(kernel=1, arguments=(Pointer(buffer=1, offset=48),), grid=(7, 1, 1), block=(32, 1, 1)),
        ),
    )


EXPECTED = """
devices 2 38001 a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
flags 1 1
stream 1
load code
attribute wide shared 99000
attribute wide cluster 1
wait 81 e2 0
wait 0 e2 0
map 0 type 1 rank 2 at 10 sizes 64 31 strides 128 box 32 8 steps 1 1 plain 1 swizzle 1 promotion 1 zeros 1
capture 51 1
launch wide grid 32 2 3 block 64 4 2 shared 99000 stream 51 first ab cluster 16 1 1
launch plain grid 1 1 1 block 1 1 1 shared 0 stream 51 first 0 early 1
zero 0 100
launch plain grid 1 1 1 block 1 1 1 shared 0 stream 51 first 0
launch plain grid 7 1 1 block 32 1 1 shared 0 stream 51 first 30
instantiate 61 0
graph 71 0
again
wait 5 e2 0
update 71 104 plain grid 7 1 1 block 32 1 1 shared 0 nothing else 1
graph 71 5
wait 81 e2 0
update 71 104 plain grid 7 1 1 block 32 1 1 shared 0 nothing else 1
graph 71 81
graph 71 81
graph 71 81
secs [0.0025, 0.0025]
more
pool 1 0 1 0 0
keeps 1 1
from pool 100 9 5
pooled 0
stream 1
load code
attribute wide shared 99000
attribute wide cluster 1
peer c1 c0 512
"""


def headers() -> list[str]:
    return [path for path in nvrtc.include_folders() if (Path(path) / "cuda.h").is_file()]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.skipif(not headers(), reason="no cuda.h: pip install 'pitchpipe[cuda]'")
def test_calls_and_structures_are_those_of_cuda_s_header(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-w", *(f"-I{path}" for path in headers())]
    subprocess.run(["cc", *flags, str(HERE / "libcuda.c"), "-o", str(library)], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, "-u", "-c", SCENE]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().splitlines() == EXPECTED.strip().splitlines()
