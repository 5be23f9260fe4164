"""Torch models through the SDK: submitted without weights, tuned, fetched, loaded, compared with eager.

    python benchmarks/zoo.py --models ../shared/models/zoo.py --seconds 150 resnet18 bert_base_s128

Each model's outputs are compared with eager on the same weights and inputs, then both are timed in turn. `--models` is a
Python file with MODELS: name -> builder returning (module, example inputs).
"""

from __future__ import annotations

import runpy
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import environment, parser, show

import pitchpipe
from pitchpipe.embedded import Embedded
from pitchpipe.tune import detect_target

ROUNDS = 15
RUNS = 5
"""Runs of each side in a round; sides take turns."""


def measure(name: str, builder: Any, seconds: float, database: str) -> dict[str, Any]:
    """One row: correctness against eager, medians in seconds, what the tuning cost."""
    import numpy as np
    import torch

    torch.manual_seed(0)
    module, inputs = builder()
    target = detect_target("auto")
    started = time.monotonic()
    with Embedded(database, target) as client:
        job = pitchpipe.submit(module, inputs, target=target, seconds=seconds, client=client)
        view = client.wait(job.id)
        if view.state.value != "done":
            raise SystemExit(f"{name}: {view.state.value}: {view.error}")
        schedules = pitchpipe.fetch(view, target=target, client=client)
    tuning_secs = time.monotonic() - started
    compiled = pitchpipe.load(module, schedules, inputs)
    arrays = [tensor.numpy() for tensor in inputs]
    torch.set_num_threads(target.num_cores or 1)
    with torch.inference_mode():
        expected = module(*inputs).numpy()
        got = compiled(*arrays)
        ours, eager = [], []
        for _ in range(ROUNDS):
            for _ in range(RUNS):
                before = time.perf_counter()
                module(*inputs)
                eager.append(time.perf_counter() - before)
            ours += compiled.run_secs(*arrays, repeats=RUNS)
    difference = float(np.abs(got - expected).max())
    return {
        "model": name,
        "tasks": len(view.tasks),
        "trials": view.progress.trials,
        "failed_trials": view.progress.failed_trials,
        "tuning_secs": tuning_secs,
        "max_abs_error": difference,
        "max_relative_error": difference / float(np.abs(expected).max()),
        "eager_secs": statistics.median(eager),
        "tuned_secs": statistics.median(ours),
        "eager_over_tuned": statistics.median(eager) / statistics.median(ours),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--models", type=Path, required=True)
    arguments.add_argument("--seconds", type=float, default=150.0, help="tuning budget of each model")
    arguments.add_argument("--database", help="SQLAlchemy URL; a fresh SQLite file by default")
    arguments.add_argument("names", nargs="*", default=["resnet18", "bert_base_s128"])
    options = arguments.parse_args()
    seconds = 40.0 if options.quick else options.seconds
    models = runpy.run_path(str(options.models))["MODELS"]
    result: dict[str, Any] = {"environment": environment(seconds=seconds), "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        database = options.database or f"sqlite:///{scratch}/zoo.db"
        for name in options.names:
            result["rows"].append(measure(name, models[name], seconds, database))
    result["summary"] = {
        "worst_max_relative_error": max(row["max_relative_error"] for row in result["rows"]),
        "worst_eager_over_tuned": min(row["eager_over_tuned"] for row in result["rows"]),
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
