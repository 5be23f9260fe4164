"""Contestants on a GPU, in the process that times them: PyTorch eager, modes of torch.compile, ours; and their errors.

torch is passed in: it is needed only where there is a GPU.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from model_tuning import task_row

SEED = 0
FACTOR = 4.0
"""How many times eager's own error ours may have in the same type, and no less than LEAST_ERROR."""
LEAST_ERROR = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-3}
BACKEND_SECS = 300.0
"""What the first calls of torch.compile(backend="pitchpipe") may wait for look-ups, builds and benchmarks."""


def reference_of(torch: Any, module: Any, inputs: tuple[Any, ...]) -> Any:
    """The output of eager in float32 without TF32."""
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    for switch in switches:
        switch.fp32_precision = "ieee"
    result = first(module.to("cuda", torch.float32)(*(x.to("cuda") for x in inputs))).float().cpu().numpy()
    for switch in switches:
        switch.fp32_precision = "tf32"
    return result


def first(output: Any) -> Any:
    return output[0] if isinstance(output, (tuple, list)) else output


def torch_call(torch: Any, module: Any, inputs: tuple[Any, ...], peer: str) -> Callable[[], Any]:
    """A call of the module as eager or in a mode of torch.compile."""
    called = module if peer == "eager" else compiled(torch, module, peer)
    return lambda: called(*inputs)


def compiled(torch: Any, module: Any, mode: str) -> Callable[..., Any]:
    """The module in a mode of torch.compile, its weights frozen; `compile` is the default mode."""
    from torch._inductor import config

    config.freezing = True
    found: Callable[..., Any] = torch.compile(module, mode=None if mode == "compile" else mode)
    return found


def backend_call(torch: Any, module: Any, inputs: tuple[Any, ...], folder: Path) -> Callable[[], Any]:
    """A call of torch.compile(backend="pitchpipe") that finds what `tuned_model` left in its folder."""
    os.environ |= {"PITCHPIPE_DATABASE_URL": database_in(folder), "PITCHPIPE_CACHE_DIR": str(folder)}
    options = {"mode": "reduce-overhead", "deadline_secs": BACKEND_SECS}
    return partial(torch.compile(module, backend="pitchpipe", options=options), *inputs)


def partitions() -> list[dict[str, Any]]:
    """What became of each partition of the programs that the backend compiled."""
    from pitchpipe import torch_backend

    return [
        {key: getattr(one, key) for key in ("name", "operators", "workloads", "tiers", "runs", "reason")}
        for program in torch_backend.reports()
        for graph in program.graphs
        for one in graph.partitions
    ]


def database_in(folder: Path) -> str:
    return f"sqlite:///{folder}/p.db"


def tuned_model(
    module: Any, inputs: tuple[Any, ...], case: dict[str, Any], folder: Path
) -> tuple[Callable[..., Any], dict[str, Any], Callable[[], list[Any]]]:
    """Ours, tuned and loaded; what the tuning cost; and what compares its costliest tasks with PyTorch's kernels.

    folder: keeps its database and cache.
    """
    from task_table import task_table, tasks_of

    import pitchpipe
    from pitchpipe.embedded import Embedded
    from pitchpipe.model.local import local_model
    from pitchpipe.tuning.inside import outside, tune_inside_or_tell
    from pitchpipe.wire.job import Budget
    from pitchpipe.wire.measure import Failed
    from workers.device import detect_target

    target, precision = detect_target("cuda"), "tf32" if case["dtype"] == "float32" else "ieee"
    if not case["seconds"]:
        model = pitchpipe.load(module, example_inputs=inputs, target=target, cache=folder, precision=precision)
        untuned = {"tuning_secs": 0.0, "trials": 0, "failed_trials": 0, "tasks": []}
        return model, untuned, list
    began = time.perf_counter()
    budget = Budget(seconds=case["seconds"])
    alone_secs = outside(budget, target).seconds
    with Embedded(database_in(folder), target) as client:
        job = pitchpipe.submit(
            module, inputs, target=target, seconds=alone_secs, precision=precision, client=client, cache=folder
        )
        view = client.wait(job.id)
        if view.state.value != "done":
            raise SystemExit(f"{view.state.value}: {view.error}")
        local = local_model(module, inputs, precision=precision)
        found, inside = tune_inside_or_tell(client, local, target, folder, budget)
        schedules = found or pitchpipe.fetch(job.id, target=target, client=client, cache=folder)
        tuning_secs = time.perf_counter() - began
        failures = Counter(
            record.result.kind.value for record in client.records(timed=False) if isinstance(record.result, Failed)
        )
    model = pitchpipe.load(module, schedules, inputs, target=target, cache=folder, precision=precision)
    tasks = [task_row(task) for task in view.tasks]
    told: dict[str, Any] = {
        "tuning_secs": tuning_secs,
        "trials": view.progress.trials,
        "failed_trials": view.progress.failed_trials,
    }
    told["inside"] = None if inside is None else {"gain": inside.gain, **inside.model_dump(mode="json")}
    secs = {task.workload: task.tuned_secs for task in view.tasks if task.tuned_secs is not None}

    def table() -> list[Any]:
        if not case["tasks"]:
            return []
        return task_table(tasks_of(local, target), schedules.traces, secs, case["tasks"])

    return model, {**told, "failures": failures, "tasks": tasks}, table


def error_of(output: Any, reference: Any) -> float:
    """Largest |a_i - r_i| / (|r_i| + s); infinite for another shape or a number that is none."""
    import numpy as np

    found = output.float().cpu().numpy() if hasattr(output, "cpu") else np.asarray(output, np.float32)
    if found.shape != reference.shape or not np.isfinite(found).all():
        return float("inf")
    r = reference.astype(np.float64)
    return float((np.abs(found - r) / (np.abs(r) + np.sqrt(np.mean(r * r)))).max())
