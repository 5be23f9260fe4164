"""A program that forks after it has loaded a model, as servers do that load before they start their processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from pathlib import Path

import numpy as np

import pitchpipe

data, x = Path(sys.argv[1]).read_bytes(), np.load(sys.argv[2])
model = pitchpipe.load(data, None)
expected = model(x)


def same(model):
    return bool(np.array_equal(model(x), expected) and len(model.run_secs(x, repeats=2)) == 2)


def in_a_fork(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0


assert in_a_fork(lambda: same(model))
assert in_a_fork(lambda: same(model) and in_a_fork(lambda: same(model)))
assert in_a_fork(lambda: same(pitchpipe.load(data, None)))
assert same(model)
print("right")
"""


def test_a_fork_runs_the_model_that_was_loaded_before_it(tmp_path: Path) -> None:
    import numpy as np
    import onnx

    rng = np.random.default_rng(0)
    weights = rng.normal(size=(256, 256)).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["a"]), onnx.helper.make_node("Relu", ["a"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [256, 256]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(tmp_path / "x.npy", rng.normal(size=(256, 256)).astype(np.float32))
    command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "x.npy")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.stdout == "right\n", ended.stderr
