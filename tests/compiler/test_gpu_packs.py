"""A pack of a GPU model carries machine code and launches, and whoever opens it needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pitchpipe.deploy import packs, signing
from pitchpipe.deploy.artifact import intact, open_library, read_manifest
from pitchpipe.deploy.lookup import Schedules
from pitchpipe.errors import ArtifactRefused
from pitchpipe.gpu.program import Program
from pitchpipe.model.local import LocalModel
from pitchpipe.model.reference import NoSource
from pitchpipe.model.strip import strip_onnx
from pitchpipe.wire.job import ModelFormat
from pitchpipe.wire.record import LookupResponse, ScheduleAnswer, Tier
from tests.compiler.gpu_programs import TARGET
from tests.compiler.test_gpu_model import here, perceptron

pytestmark = pytest.mark.skipif(not here(), reason="needs NVRTC or nvcc")

WITHOUT_A_COMPILER = """
import sys
for name in ("tvm", "tvm_ffi", "torch", "psutil", "cuda"):
    sys.modules[name] = None
if sys.argv[4] == "alone":
    sys.modules["onnx"] = sys.modules["ml_dtypes"] = None
from importlib import metadata
installed = metadata.version
def version(name):
    if name.startswith("apache-tvm"):
        raise metadata.PackageNotFoundError(name)
    return installed(name)
metadata.version = version
import numpy as np
from pathlib import Path
from pitchpipe.errors import PitchpipeError
from pitchpipe.deploy.packs import open_pack
path, public, cache = map(Path, sys.argv[1:4])
from pitchpipe.deploy import packs
pack = open_pack(path, trusted=[public], target=packs.read_unverified(path).target)
weights = {"w1": np.ones((24, 48), np.float32), "b1": np.ones(48, np.float32), "w2": np.ones((48, 8), np.float32)}
try:
    if sys.argv[4] == "alone":
        model = pack.load(weights, cache=cache)
    else:
        import pitchpipe
        model = pitchpipe.load(path.with_suffix(".onnx"), pack, weights=weights, cache=cache)
    x = np.ones((5, 24), np.float32)
    print("ran", float(np.abs(model(x) - np.maximum(x @ weights["w1"] + 1, 0) @ weights["w2"]).max()))
except PitchpipeError as error:
    print(type(error).__name__, error.detail)
assert not [name for name in sys.modules if name.partition(".")[0] in ("tvm", "torch") and sys.modules[name]]
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pack with objects and the key to trust. Without a GPU nobody has tried it."""
    folder = tmp_path_factory.mktemp("pack")
    data = perceptron().SerializeToString()
    (folder / "model.onnx").write_bytes(data)
    stripped = strip_onnx(data)
    model = LocalModel(
        name="perceptron",
        format=ModelFormat.ONNX,
        data=stripped.data,
        weights=stripped.weights,
        source=NoSource(reason="a test"),
    )

    key = folder / "key.pem"
    signing.create_keys(key)
    answers = (ScheduleAnswer(workload="0" * 64, tier=Tier.NONE, reason="nothing is known"),)
    schedules = Schedules(target=TARGET, response=LookupResponse(answers=answers))
    packs.create_pack(folder / "model.pitchpack", schedules, key, model=model, cache=folder / "cache")
    return folder / "model.pitchpack", signing.public_path(key)


def test_an_artifact_for_a_gpu_is_a_program_and_its_manifest_says_so(pack: tuple[Path, Path]) -> None:
    (folder,) = (pack[0].parent / "cache" / "artifacts").glob("*/")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "manifest.sha256", "model.gpu"]
    assert read_manifest(folder).version == 2
    manifest, program = open_library(folder, TARGET)
    assert isinstance(program, Program)
    assert [tensor.name for tensor in manifest.params] == ["w1", "b1", "w2"]
    (folder / "model.gpu").write_bytes((folder / "model.gpu").read_bytes()[:-1])
    assert not intact(folder)


@pytest.mark.parametrize("how", ["alone", "with its model"])
def test_a_pack_of_a_gpu_model_needs_the_driver_and_no_compiler(
    pack: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WITHOUT_A_COMPILER, *map(str, pack), str(tmp_path), how]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert ended.returncode == 0, ended.stderr
    told, _, rest = ended.stdout.strip().splitlines()[-1].partition(" ")
    if told == "ran":
        assert float(rest) < 1e-3
    else:
        assert told == "ArtifactRefused"
        assert "libcuda.so.1" in rest
    assert [path.name for path in (tmp_path / "artifacts").glob("*/model.gpu")] == ["model.gpu"], "nothing was built"


def test_whoever_opens_it_where_there_is_a_compiler_gets_the_same(pack: tuple[Path, Path], tmp_path: Path) -> None:
    opened = packs.open_pack(pack[0], trusted=[pack[1]], target=TARGET)
    assert opened.compiler is None, "what is installed here is asked"
    weights = {name: np.asarray(each) for name, each in strip_onnx(perceptron().SerializeToString()).weights.items()}
    with suppress(ArtifactRefused):  # where there is no GPU
        opened.load(weights, cache=tmp_path)
    (folder,) = (tmp_path / "artifacts").glob("*/")
    assert intact(folder)
    assert folder.name == opened.manifest.recipe
