"""One build of one model in a process of its own: it computes when it is asked to, and nothing else.

    python benchmarks/peers/contestant.py PEER MODELS MODEL FOLDER

MODELS is a Python file with MODELS: name -> builder returning (module, example inputs); the seed makes weights and inputs
the same in every process. A module in training mode gives a loss: its run is a step of training, and what is compared is the
loss with all gradients. The threads are those of TVM_NUM_THREADS. The first line on stdout is a JSON object: seconds of
the set-up, where the output was put and, of torch.compile with our backend, whether anything that it compiled runs. Then
every line on stdin, {"warm_secs", "secs", "least"}, asks for runs that last so long and are at least so many, and is
answered by a list of their seconds.

A run is what a Python program writes to get the output of inputs that lie in memory, in the form that copies least:
inputs bound before, or handed over by pointer; the time is that of `perf_counter` around the call.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from model_file import models_of

SEED = 0
PATIENCE_SECS = 3600
"""What the first call may wait for builds and paired benchmarks, which otherwise go on beside and in later calls."""
WARM_RUNS = 3
"""Runs before anything is timed: first calls compile, allocate and start threads."""

Call = Callable[[], Any]


def threads() -> int:
    """Of everybody; who starts this process says how many."""
    return int(os.environ["TVM_NUM_THREADS"])


def eager(module: Any, inputs: Any, _folder: Path) -> Call:
    """PyTorch as it comes."""
    return lambda: module(*inputs)


def inductor(module: Any, inputs: Any, _folder: Path) -> Call:
    """torch.compile with its defaults."""
    import torch

    compiled = torch.compile(module)
    return lambda: compiled(*inputs)


def inductor_max_autotune(module: Any, inputs: Any, _folder: Path) -> Call:
    """torch.compile that times its templates against the library, with the weights as constants."""
    import torch
    import torch._inductor.config

    torch._inductor.config.freezing = True
    compiled = torch.compile(module, mode="max-autotune")
    return lambda: compiled(*inputs)


def onnxruntime(module: Any, inputs: Any, folder: Path) -> Call:
    """ONNX Runtime, all graph optimisations, inputs and outputs bound."""
    import onnxruntime as runtime

    path = folder / "model.onnx"
    if not path.exists():
        export_onnx(module, inputs, path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads(), 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for spec, tensor in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(spec.name, tensor.numpy())
    for spec in session.get_outputs():
        binding.bind_output(spec.name)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    return call


def openvino(module: Any, inputs: Any, _folder: Path) -> Call:
    """OpenVINO converted from the module; f32 asked for, since it may choose bf16 by itself."""
    import openvino as ov

    converted = ov.convert_model(module, example_input=inputs, input=[tuple(tensor.shape) for tensor in inputs])
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads()}
    request = ov.Core().compile_model(converted, "CPU", settings).create_infer_request()
    for index, tensor in enumerate(inputs):
        request.set_input_tensor(index, ov.Tensor(tensor.numpy(), shared_memory=True))

    def call() -> Any:
        request.infer(share_outputs=True)
        return request.get_output_tensor(0).data

    return call


def metaschedule(module: Any, inputs: Any, folder: Path) -> Call:
    """Stock MetaSchedule with what it had found when it had spent the seconds that ours had."""
    import stock_model

    return stock_model.build(folder / "stock", module, inputs)


def metaschedule_longer(module: Any, inputs: Any, folder: Path) -> Call:
    """Stock MetaSchedule with all that it found in its own, longer time."""
    import stock_model

    return stock_model.build(folder / "stock_longer", module, inputs)


def ours(module: Any, inputs: Any, folder: Path) -> Call:
    """Pitchpipe with the schedules that tuning left in the folder."""
    import pitchpipe
    from pitchpipe.deploy.lookup import Schedules
    from pitchpipe.wire.record import LookupResponse
    from pitchpipe.wire.target import Target

    stored = json.loads((folder / "ours.json").read_text())
    schedules = Schedules(
        target=Target.parse(stored["target"]), response=LookupResponse.model_validate(stored["schedules"])
    )
    compiled = pitchpipe.load(module, schedules, inputs, cache=folder / "artifacts")
    return lambda: compiled(*inputs)


def default(module: Any, inputs: Any, _folder: Path) -> Call:
    """Pitchpipe without schedules, from an empty cache: the default build."""
    import pitchpipe

    with tempfile.TemporaryDirectory() as cache:
        compiled = pitchpipe.load(module, None, inputs, target="cpu", cache=Path(cache))
    return lambda: compiled(*inputs)


def untuned(module: Any, inputs: Any, folder: Path) -> Call:
    """The same, from the folder's cache: the first process builds, and those beside it load."""
    import pitchpipe

    compiled = pitchpipe.load(module, None, inputs, target="cpu", cache=folder / "artifacts")
    return lambda: compiled(*inputs)


def deployed(module: Any, inputs: Any, folder: Path) -> Call:
    """Pitchpipe as the checkout around this interpreter has it, with what the database in the folder serves.

    It uses what every version has, so that versions can be compared. What the look-up answered, and whose code this is, goes
    to deployed.json.
    """
    import pitchpipe
    from pitchpipe.embedded import Embedded

    with Embedded(f"sqlite:///{folder.absolute()}/pitchpipe.db", None) as client:
        schedules = pitchpipe.fetch(module, inputs, client=client)
    tiers = Counter(str(getattr(answer.tier, "value", answer.tier)) for answer in schedules.response.answers)
    told = {"code": str(Path(pitchpipe.__file__).resolve().parents[1]), "tiers": tiers}
    (folder / "deployed.json").write_text(json.dumps(told))
    compiled = pitchpipe.load(module, schedules, inputs, cache=folder / "artifacts")
    return lambda: compiled(*inputs)


def torch_backend(module: Any, inputs: Any, _folder: Path) -> Call:
    """torch.compile with Pitchpipe as its backend, and nothing else changed."""
    import torch

    compiled = torch.compile(module, backend="pitchpipe", options={"deadline_secs": PATIENCE_SECS})
    return lambda: compiled(*inputs)


def runs_ours() -> bool:
    """Whether a program of this process runs anything that the backend compiled; else it runs as in eager mode."""
    from pitchpipe import torch_backend

    return any(program.runs == "pitchpipe" for program in torch_backend.reports())


def stepping(module: Any, call: Call) -> Call:
    """A training step around what gives the loss; the gradients stay on the parameters."""
    import torch

    optimiser = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> Any:
        optimiser.zero_grad()
        loss = call()
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


PEERS: dict[str, Callable[[Any, Any, Path], Call]] = {
    found.__name__: found
    for found in (
        eager,
        inductor,
        inductor_max_autotune,
        onnxruntime,
        openvino,
        metaschedule,
        metaschedule_longer,
        ours,
        torch_backend,
    )
}


def export_onnx(module: Any, inputs: Any, path: Path) -> None:
    """Writes the module as ONNX; a reader sees all of it or nothing."""
    import torch

    part = path.with_suffix(".part")
    torch.onnx.export(module, inputs, str(part), dynamo=False, opset_version=17)
    part.rename(path)


def flops(module: Any, inputs: Any) -> int:
    """Of one run's products and convolutions as PyTorch counts them, two for a multiply-add."""
    from torch.utils.flop_counter import FlopCounterMode

    module.requires_grad_(module.training)  # The counter asks for the graph of what needs a gradient: here is none.
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


def timed(call: Call, warm_secs: float, secs: float, least: int) -> list[float]:
    """Seconds of each run."""
    started = time.perf_counter()
    while time.perf_counter() - started < warm_secs:
        call()
    found: list[float] = []
    started = time.perf_counter()
    while len(found) < least or time.perf_counter() - started < secs:
        before = time.perf_counter()
        call()
        found.append(time.perf_counter() - before)
    return found


def main(peer: str, models: str, name: str, folder: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a stopped process would not see its input end
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    started = time.perf_counter()
    import numpy as np
    import torch

    torch.set_num_threads(threads())
    torch.manual_seed(SEED)
    module, inputs = models_of(models)[name]()
    with torch.inference_mode(not module.training):
        call = {**PEERS, "default": default, "untuned": untuned, "deployed": deployed}[peer](
            module, inputs, Path(folder)
        )
        if module.training:
            call = stepping(module, call)
        for _ in range(WARM_RUNS):
            output = call()
        if module.training:
            output = torch.cat([output.reshape(1), *(one.grad.flatten() for one in module.parameters())])
        if isinstance(output, tuple | list):
            output = output[0]  # of several, as ONNX Runtime and OpenVINO give here
        output = output if isinstance(output, (np.ndarray, torch.Tensor)) else output.numpy()
        path = Path(folder) / f"{peer}.npy"
        np.save(path, np.asarray(output))
        ready: dict[str, Any] = {"setup_secs": time.perf_counter() - started, "output": str(path)}
        if peer == "eager" and not module.training:
            ready["flops"] = flops(module, inputs)
        if peer == "torch_backend":
            ready["runs_ours"] = runs_ours()
        print(json.dumps(ready), file=answers)
        for line in sys.stdin:
            print(json.dumps(timed(call, **json.loads(line))), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
