"""What graph preparation buys: kernels and bytes of the models pass by pass, and the time of an encoder with and without.

    python benchmarks/preparation.py --traces /tmp/traces.json

Models are those of models.py, or of the file that `--models` names. A row of the first kind is a
model prepared with the rewrites up to one, counted as main calls them: what a run writes, and what kernels that compute
nothing write. A row of the second kind is an encoder of BERT's shape with some rewrites left out, its contractions tuned
with the same number of candidates of the register-tile space and everything else under its fixed schedule; variants take
turns, and the result is checked against eager. `--traces` keeps what the tuning found for the next run.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from environment import environment, models_parser, show
from model_file import models_of

from pitchpipe.model.local import detect_target
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.task import Task, TaskKind
from tuner.deploy.finish import finish
from tuner.graph.fold_head_split import fold_head_split
from tuner.graph.fold_transposes import fold_transposes
from tuner.graph.merge_matmuls import merge_matmuls
from tuner.graph.prepare import MAIN, TRANSFORM, call_counts, prepare, workload_module
from tuner.ingest import parse_container
from tuner.measure.build import build, parameters
from tuner.schedule.trace import apply_trace, encode_trace
from tuner.space import space_of
from tuner.space.default import default_trace
from tuner.space.tiles import find_contraction, tiled_sketches
from tuner.tasks import split, workload_functions
from tuner.tvm_compat import Schedule, load_ir, relax, to_tvm_target, tvm

ROUNDS = 30
RUNS = 4
"""Runs of each variant in a round; variants take turns."""
VARIANTS: dict[str, tuple[Any, ...]] = {
    "as exported": (fold_head_split, merge_matmuls, fold_transposes),
    "heads in the weights": (merge_matmuls,),
    "queries, keys and values joined": (),
}
"""Name of a variant -> rewrites left out."""


def counted(name: str, model: Any, target: Any) -> list[dict[str, Any]]:
    """Rows of the first kind: one for every rewrite that changes what main calls, with those before it."""
    rewrites = kind_of(target).rewrites()
    order = [*rewrites.products, *rewrites.layout]
    rows: list[dict[str, Any]] = []
    for done in range(len(order) + 1):
        prepared = prepare(load_ir(model.ir), target, without=order[done:])
        counts = call_counts(prepared)
        row = {"kernels": sum(counts.values()), "functions": 0, "written_bytes": 0.0, "moving_bytes": 0.0}
        contractions, taken = 0, 0
        for variable, function, _ in workload_functions(prepared):
            *_, written = parameters(workload_module(function))
            size = float(np.prod(written.shape)) * np.dtype(written.dtype).itemsize * counts[variable.name_hint]
            flops = tvm.s_tir.analysis.estimate_tir_flops(workload_module(function))
            row["functions"] += 1
            row["written_bytes"] += size
            row["moving_bytes"] += size if flops == 0 else 0
            if any(word in variable.name_hint for word in ("matmul", "conv2d", "einsum")):
                contractions += 1
                taken += find_contraction(Schedule(workload_module(function))) is not None
        row |= {"contractions": contractions, "with_register_tiles": taken}
        if not rows or any(rows[-1][key] != value for key, value in row.items()):
            rows.append({"model": name, "after": order[done - 1].__name__ if done else "lowering alone", **row})
    return rows


def best_trace(task: Task, target: Any, candidates: int) -> tuple[float, str]:
    """Median seconds and trace of the fastest of some candidates of the register-tile space, each timed a few times."""
    space = space_of(task.workload, target)
    sketches = space.sketches[len(space.sketches) - len(tiled_sketches(space.mod, target)) :]
    arguments: dict[Any, Any] = {}
    found: list[tuple[float, str]] = []
    for seed in range(candidates):
        schedule = space.candidate(sketches[seed % len(sketches)], seed + 1)
        if schedule is None:
            continue
        trace = encode_trace(schedule.trace)
        built = build(apply_trace(space.mod, trace).mod, to_tvm_target(target))
        types = [built.packed.get(index, kind) for index, kind in enumerate(parameters(space.mod))]
        tensors = []
        for kind in types:
            key = (tuple(kind.shape), str(kind.dtype))
            if key not in arguments:
                arguments[key] = np.random.default_rng(0).normal(0, 1, kind.shape).astype(kind.dtype)
            tensors.append(tvm.runtime.tensor(arguments[key]))
        timer = built.module.time_evaluator(MAIN, tvm.cpu(), number=1, repeat=7, min_repeat_ms=0)
        found.append((statistics.median(timer(*tensors).results), trace))
    return min(found)


def encoder_layers(layers: int) -> tuple[Any, Any]:
    """An encoder of BERT-base's shape with random weights, and 128 tokens. Its activation is relu: how fast gelu is, is
    another matter."""
    import torch
    from transformers import BertConfig, BertModel

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(num_hidden_layers=layers, attn_implementation="eager", hidden_act="relu")
            self.model = BertModel(config)

        def forward(self, x: Any) -> Any:
            return self.model(x, return_dict=False)[0]

    torch.manual_seed(0)
    return Outputs().eval(), torch.randint(0, 30000, (1, 128))


def timed(target: Any, layers: int, candidates: int, kept: Path | None) -> list[dict[str, Any]]:
    """Rows of the second kind."""
    import torch

    from tuner.ingest.torch_export import from_torch

    module, tokens = encoder_layers(layers)
    data, weights = from_torch(module, (tokens,))
    model = parse_container(data)
    traces: dict[str, Any] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    runs: dict[str, Any] = {}
    rows = []
    with torch.inference_mode():
        expected = module(tokens).numpy()
    for name, without in VARIANTS.items():
        prepared = prepare(load_ir(model.ir), target, without=without)
        kernels = sum(call_counts(prepared).values())
        contractions = {}
        for task in split(prepared, target):
            digest = task.workload.digest
            if digest not in traces:
                has_tiles = find_contraction(Schedule(load_ir(task.workload.ir))) is not None
                tuned = task.kind is TaskKind.TUNED and has_tiles
                fixed = default_trace(task.workload, target)
                traces[digest] = best_trace(task, target, candidates) if tuned else (0.0, fixed)
                if kept is not None:
                    kept.write_text(json.dumps(traces))
            if traces[digest][0]:
                contractions[task.name] = traces[digest][0] * task.weight
        for variable, function, digest in workload_functions(prepared):
            scheduled = apply_trace(workload_module(function), traces[digest][1]).mod[MAIN]
            prepared.update_func(variable, scheduled.with_attr("global_symbol", variable.name_hint))
        with to_tvm_target(target):
            machine = relax.VirtualMachine(
                tvm.compile(finish(prepared, target), target=to_tvm_target(target)), tvm.cpu()
            )
        bound = machine[TRANSFORM]([tvm.runtime.tensor(weights[spec.name]) for spec in model.params])
        runs[name] = (machine[MAIN], [tvm.runtime.tensor(tokens.numpy()), *bound])
        error = float(np.abs(machine[MAIN](*runs[name][1]).numpy() - expected).max())
        row = {"variant": name, "layers": layers, "kernels": kernels, "max_abs_error": error}
        rows.append(row | {"contraction_secs": contractions})
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, (main, arguments) in runs.items():
            for _ in range(RUNS):
                before = time.perf_counter()
                main(*arguments)
                samples[name].append(time.perf_counter() - before)
    first = statistics.median(samples[next(iter(samples))])
    for row in rows:
        median_secs = statistics.median(samples[str(row["variant"])])
        row |= {"median_secs": median_secs, "ratio": first / median_secs}
    return rows


def main() -> None:
    arguments = models_parser(__doc__)
    arguments.add_argument("--traces", type=Path, help="file in which the traces of the encoder are kept")
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--candidates", type=int, default=24, help="of each contraction")
    arguments.add_argument("--only", choices=["count", "time"])
    arguments.add_argument("names", nargs="*")
    options = arguments.parse_args()
    target = detect_target("auto")
    candidates = min(8, options.candidates) if options.quick else options.candidates
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"environment": environment(candidates=candidates), "rows": rows, "summary": {}}
    if options.only != "time":
        from tuner.ingest.torch_export import from_torch

        models = models_of(options.models)
        for name in options.names or (list(models)[:1] if options.quick else list(models)):
            module, inputs = models[name]()
            found = counted(name, parse_container(from_torch(module, inputs)[0]), target)
            rows += found
            result["summary"][f"{name} kernels"] = [found[0]["kernels"], found[-1]["kernels"]]
            result["summary"][f"{name} written_bytes"] = [found[0]["written_bytes"], found[-1]["written_bytes"]]
    if options.only != "count":
        measured = timed(target, 1 if options.quick else options.layers, candidates, options.traces)
        rows += measured
        result["summary"]["encoder_ratio"] = measured[-1]["ratio"]
    show(result, options.json)


if __name__ == "__main__":
    main()
