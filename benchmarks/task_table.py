"""The costliest tasks of a model on a GPU: ours beside PyTorch's own kernels and inductor's, a task at a time.

    ours       the served schedule of the task, compiled as it is deployed
    library    PyTorch eager (cuDNN, cuBLAS, its own kernels) for the same operators (torch_equivalents.py)
    inductor   torch.compile of that function

Each is called CALLS times in a CUDA graph of its own, so that nobody pays for launches, every call with its own copies of
all arguments: what is larger than the L2 cache together comes from memory, for all three. Graphs take turns (rounds.py), and
a time is that of a replay divided by its calls. A row has times only where PyTorch computes what the task does: results of
ours and the library's are compared first. A task that has no equivalent is named with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from cuda_graphs import captured, error_of, timed
from torch_equivalents import Equivalent, NoEquivalent, equivalents

from pitchpipe.model.local import LocalModel
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from tuner.measure.properties import inspect
from tuner.tvm_compat import load_ir

CALLS = 20
"""Of a graph."""
ROUNDS = 8
LARGEST_ERROR = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-2}
"""Of a result, relative to its size and the root mean square of all: of the tolerance of TF32 in float32."""


def task_table(tasks: Sequence[Task], traces: Mapping[str, str], secs: Mapping[str, float], most: int) -> list[Any]:
    """A row for each of the `most` tasks that take most of a run.

    traces: what is served, by workload; a task without one runs its default schedule. secs: of one call, by workload.
    """
    import torch

    cost = {task.workload.digest: task.weight * (secs.get(task.workload.digest) or 0.0) for task in tasks}
    costliest = sorted(tasks, key=lambda task: -cost[task.workload.digest])[:most]
    return [
        {
            "task": task.name,
            "weight": task.weight,
            "contraction": "products" in task.signature.anchor,
            "served": task.workload.digest in traces,
            "served_secs": secs.get(task.workload.digest),
            **compared(torch, task, traces.get(task.workload.digest, task.fixed or task.baseline)),
        }
        for task in costliest
        if task.signature is not None
    ]


def compared(torch: Any, task: Task, trace: str) -> dict[str, Any]:
    """Seconds of one call of each side, and the error of ours from the library's; or why there is no equivalent."""
    assert task.signature is not None
    types = task.signature.arguments
    if len(inspect(load_ir(task.workload.ir)).inputs) != len(types) - 1:
        return {"equivalent": "it has several results"}
    generator = torch.Generator("cuda").manual_seed(0)
    sets = [[drawn(torch, one, generator) for one in types[:-1]] for _ in range(CALLS)]
    ours = kernel_of(task, trace)
    try:
        made = [equivalents(torch, task.signature, inputs) for inputs in sets]
    except NoEquivalent as error:
        return {"equivalent": str(error)}
    result = ours(*sets[0])
    errors = [error_from(torch, one, result) for one in made[0]]
    told = min(errors)
    if told > LARGEST_ERROR[types[-1].dtype]:
        return {"equivalent": f"PyTorch's operators compute something else: error {told:.1e}"}
    theirs = [each[errors.index(told)] for each in made]
    compiled = torch.compile(theirs[0].function)
    for one in theirs[:2]:
        compiled(*one.arguments)
    graphs = {
        "ours": captured(torch, [lambda inputs=inputs: ours(*inputs) for inputs in sets]),
        "library": captured(torch, [lambda one=one: one.function(*one.arguments) for one in theirs]),
        "inductor": captured(torch, [lambda one=one: compiled(*one.arguments) for one in theirs]),
    }
    found = timed(torch, graphs, CALLS, ROUNDS)
    return {"error": told, **{f"{name}_secs": secs for name, secs in found.items()}}


def error_from(torch: Any, guess: Equivalent, result: Any) -> float:
    """The error of a result from PyTorch's function; infinite where that does not take tensors of these shapes."""
    try:
        return error_of(torch, guess.restored(guess.function(*guess.arguments)), result)
    except RuntimeError:
        return math.inf


def drawn(torch: Any, one: Any, generator: Any, device: str = "cuda") -> Any:
    """A tensor of that type: numbers of the size that activations and weights have, or indices below 1000."""
    if one.dtype.startswith("int"):
        return torch.randint(0, 1000, one.shape, dtype=getattr(torch, one.dtype), device=device, generator=generator)
    return torch.randn(one.shape, device=device, generator=generator).mul_(0.2).to(getattr(torch, one.dtype))


def kernel_of(task: Task, trace: str) -> Callable[..., Any]:
    """A task with a schedule, as a function of GPU tensors."""
    from pitchpipe.gpu.executable import GpuModel
    from tuner.measure.device_compiler import DeviceCompiler
    from tuner.measure.gpu_code import compile_program
    from tuner.schedule.trace import apply_trace
    from tuner.tvm_compat import to_tvm_target

    mod, target = load_ir(task.workload.ir), task.target
    properties = inspect(mod)
    assert target.arch is not None
    program = compile_program(
        apply_trace(mod, trace).mod, to_tvm_target(target), properties, DeviceCompiler(target.arch)
    )
    types = [properties.params[at] for at in properties.inputs]
    specs = [SimpleNamespace(name=f"a{at}", shape=one.shape, dtype=one.dtype) for at, one in enumerate(types)]
    model = GpuModel(program, specs, [], graphs=False)
    model.bind({})
    return model


def tasks_of(model: LocalModel, target: Target) -> list[Task]:
    """The tasks of a model that came from PyTorch, as a job makes them."""
    from tuner.graph.prepare import prepare
    from tuner.ingest import parse_container
    from tuner.tasks import split

    return split(prepare(load_ir(parse_container(model.data).ir), target), target)
