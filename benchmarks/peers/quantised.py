"""One build of one quantised ONNX file in a process of its own; contestant.py says how it is asked.

    python benchmarks/peers/quantised.py SIDE FOLDER

FOLDER has model.onnx and inputs.npz, the inputs by name.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from contestant import WARM_RUNS, Call, threads, timed


def onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> Call:
    """All graph optimisations, inputs and outputs bound."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads(), 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for spec in session.get_outputs():
        binding.bind_output(spec.name)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    return call


def openvino(path: Path, inputs: dict[str, np.ndarray]) -> Call:
    """float32 between what is quantised is asked for, since it may choose bfloat16 by itself."""
    import openvino as ov

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
    core = ov.Core()
    model = core.read_model(path)
    model.reshape({name: list(array.shape) for name, array in inputs.items()})
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name, array in inputs.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def call() -> Any:
        request.infer(share_outputs=True)
        return request.get_output_tensor(0).data

    return call


def default(path: Path, inputs: dict[str, np.ndarray]) -> Call:
    """Pitchpipe without schedules, from an empty cache."""
    import pitchpipe

    with tempfile.TemporaryDirectory() as cache:
        compiled = pitchpipe.load(path, cache=Path(cache))

    def call() -> Any:
        found = compiled(*inputs.values())
        return found[0] if isinstance(found, tuple) else found

    return call


SIDES = {made.__name__: made for made in (onnxruntime, openvino, default)}


def main(side: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    started = time.perf_counter()
    inputs = dict(np.load(Path(folder) / "inputs.npz"))  # whose memory the sides read
    call = SIDES[side](Path(folder) / "model.onnx", inputs)
    for _ in range(WARM_RUNS):
        output = call()
    path = Path(folder) / f"{side}.npy"
    np.save(path, np.asarray(output))
    print(json.dumps({"setup_secs": time.perf_counter() - started, "output": str(path)}), file=answers)
    for line in sys.stdin:
        print(json.dumps(timed(call, **json.loads(line))), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
