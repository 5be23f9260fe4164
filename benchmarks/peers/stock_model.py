"""Stock MetaSchedule on a torch model, in a process that knows nothing of ours.

    python benchmarks/peers/stock_model.py MODELS MODEL TARGET FOLDER

Tunes until it is killed, or until every task has its trials; the records stay in FOLDER as MetaSchedule writes them, and
what happened last is on stdout. The pipeline is the one that TVM documents for models with static shapes,
`static_shape_tuning` with weight prepacking, on a module whose convolutions are NHWC; the trials a task gets are those of
its own default round. On its own it would use half of the cores: TVM_NUM_THREADS says how many. metaschedule.LEAN is on
PYTHONPATH: torch is hidden from the processes that build and run.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIALS_PER_TASK = 64
MANY = 1_000_000
LAYOUTS = {"relax.nn.conv2d": ["NHWC", "HWIO"]}
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"


def relax_module(module: Any, inputs: Any) -> tuple[Any, Any]:
    """The module in Relax, and its parameters."""
    import torch
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    with torch.no_grad():
        program = torch.export.export(module, inputs)
        mod = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    mod, params = relax.frontend.detach_params(mod)
    return relax.transform.ConvertLayout(LAYOUTS)(relax.transform.CanonicalizeBindings()(mod)), params


def pipeline(target: Any, folder: Path, trials: int) -> Any:
    from tvm import relax

    return relax.pipeline.static_shape_tuning_pipeline(
        total_trials=trials,
        target=target,
        work_dir=str(folder),
        cpu_weight_prepack=True,
        max_trials_per_task=TRIALS_PER_TASK,
    )


def build(folder: Path, module: Any, inputs: Any) -> Callable[[], Any]:
    """A call of the model compiled with the records in the folder."""
    import tvm
    from tvm import relax

    target = tvm.target.Target(json.loads((folder / "target.json").read_text()))
    mod, params = relax_module(module, inputs)
    mod = pipeline(target, folder, 0)(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())
    weights = machine["main_transform_params"](params["main"])
    arguments = [*(tvm.runtime.from_dlpack(tensor) for tensor in inputs), *weights]
    main = machine["main"]
    return lambda: main(*arguments)


def keep_whole_lines(folder: Path) -> int:
    """Cuts off a line that was being written when the tuning was killed: one makes a file unreadable. Returns the number
    of records left."""
    count = 0
    for name in (WORKLOADS, RECORDS):
        path = folder / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        path.write_text("".join(lines))
        count = len(lines)
    return count


def main(models: str, name: str, target: str, folder: str) -> None:
    import tvm
    from metaschedule import load_intrinsics
    from sitecustomize import show_torch  # of metaschedule.LEAN

    show_torch()
    import torch

    torch.manual_seed(0)
    module, inputs = runpy.run_path(models)["MODELS"][name]()
    mod, _ = relax_module(module, inputs)
    made = tvm.target.Target(json.loads(target))
    load_intrinsics(made.kind.name)
    with tvm.transform.PassContext(opt_level=3):
        pipeline(made, Path(folder), MANY)(mod)


if __name__ == "__main__":
    main(*sys.argv[1:])
