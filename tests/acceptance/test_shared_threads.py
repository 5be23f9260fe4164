"""In a process with PyTorch, compiled code computes on PyTorch's threads; without PyTorch on TVM's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path

import numpy as np

if sys.argv[3] == "with":
    import torch
    torch.set_num_threads(2)
    torch.ones(1 << 22).add_(1.0)

import pitchpipe

def threads():
    return len(os.listdir("/proc/self/task"))

data, x = Path(sys.argv[1]).read_bytes(), np.load(sys.argv[2])
before = threads()
model = pitchpipe.load(data, None)
found = model(x)
more = threads() - before
w = np.load(sys.argv[2].replace("x.npy", "w.npy"))
np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-4, atol=1e-3)
if sys.argv[3] == "with":
    torch.set_num_threads(1)
    np.testing.assert_array_equal(model(x), found)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model(x), found) else 1)
    assert os.waitpid(child, 0)[1] == 0
print(more)
"""


@pytest.mark.parametrize(("torch", "more"), [("with", 0), ("without", 1)])
def test_compiled_code_starts_threads_of_its_own_only_without_torch(tmp_path: Path, torch: str, more: int) -> None:
    import numpy as np
    import onnx

    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(512, 512)).astype(np.float32) for name in "xw"}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["a"]), onnx.helper.make_node("Relu", ["a"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [512, 512]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(arrays["w"], "w")])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "x.npy"), torch]
    environment = {**os.environ, "TVM_NUM_THREADS": "2", "TVM_BIND_THREADS": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert ended.stdout == f"{more}\n", ended.stderr
