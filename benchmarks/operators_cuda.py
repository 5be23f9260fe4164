"""Operators on a GPU in float16, `benchmarks/operators.py --target cuda`: ours beside cuBLAS, cuDNN and max-autotune.

About ten shapes of each kind of MetaSchedule's workloads, and linear layers and convolutions with epilogues
(operator_shapes_cuda.py), each as a module of PyTorch (operator_modules_cuda.py) and in a process of its own:

    ours      tuned for the shape through the SDK on an embedded service, from an empty database and within --seconds, then
              loaded. Export, service and confirming are within `tuning_secs`, and not within --seconds
    eager     PyTorch's own: cuBLAS, and cuDNN that chooses by trying (`cudnn.benchmark`)
    autotune  torch.compile, mode `max-autotune-no-cudagraphs`, weights frozen

Images have their channels last for all three, the peers' weights too. Each contestant's calls are captured as one CUDA
graph, so that nobody pays for launches. Every call has inputs and results of its own, and there are so many calls that
these are together twice as large as the L2 cache, within LEAST_CALLS and MOST_CALLS (`exceed_l2`). Weights are bound once,
as in deployment, and all calls read the same ones: for all three they stay in the cache where there is room. Graphs take
turns (rounds.py), and a time is that of a replay divided by its calls. A ratio is another's time over ours.

`error` is the largest |a_i - r_i| / (|r_i| + s) with r from eager in float32 without TF32, on the same inputs and weights,
and s its root mean square. FLOPs are those of products and convolutions, as PyTorch counts them; norms and softmax have the
bytes of their inputs and results in their place. `notes_secs` are what a spike measured on an H200, where weights came from
memory in every call: more work than here.

`--work FOLDER` keeps each row there, with its commit, date and GPU, and does not measure again what is there. Several
processes may share the folder, each with a GPU and with shapes of its own (`--only`). What was refused is kept too, and
measured again with `--retry`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from case_process import row_of
from cells import cut
from cuda_contestants import FACTOR, LEAST_ERROR, SEED, compiled, error_of, reference_of, tuned_model
from cuda_graphs import captured, timed
from environment import commit, environment, kernel_threads, show, target_here
from model_tuning import write
from operator_shapes_cuda import MOVES, kind_and_index, notes_secs, shape_of, text_of
from rounds import geometric_mean

DTYPE = "float16"
AUTOTUNE = "max-autotune-no-cudagraphs"
PEERS = ("eager", "autotune")
SECONDS, QUICK_SECONDS = 20.0, 10.0
ROUNDS, QUICK_ROUNDS = 8, 4
QUICK = ("LIN-0", "C2D-2", "SFM-0")
CACHES = 2
"""How many times the L2 cache the inputs and results of all calls of a graph fill ..."""
LEAST_CALLS, MOST_CALLS = 20, 2000
"""... within these numbers of calls."""
LIMIT_SECS = 420.0
"""Of a shape's process, beyond the seconds of tuning: a peer or a service that hangs must not keep the rest waiting."""
SHOWN = ("name", "ours_secs", "eager_secs", "autotune_secs", "best_peer_over_ours", "ours_error", "refused")


def main(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Runs every shape and prints the result. Ends the script where there is no GPU."""
    target_here("cuda")
    seconds = options.seconds if options.seconds is not None else QUICK_SECONDS if options.quick else SECONDS
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    result: dict[str, Any] = {"environment": environment(gpu=True, seconds=seconds, rounds=rounds), "rows": []}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as scratch:
        work = (options.work or Path(scratch)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/inductor"
        with suppress(KeyboardInterrupt):  # What is measured by then is printed.
            for name in names:
                if kept(work, name, options.retry) is None:
                    case = {"name": name, "seconds": seconds, "rounds": rounds, "scratch": scratch}
                    row = {**identity(name), **row_of(__file__, case, LIMIT_SECS + seconds)}
                    write(work / f"{name}.json", row)
                    print(json.dumps({key: row.get(key) for key in SHOWN}), file=sys.stderr)
        rows = {name: kept(work, name) for name in names}
        result["rows"] = [found for found in rows.values() if found is not None]
    missing = [name for name, found in rows.items() if found is None]
    result["summary"] = summary(result["rows"]) | {"not_measured": missing}
    show(
        result if options.json else {**result, "rows": [{k: r.get(k) for k in SHOWN} for r in result["rows"]]},
        options.json,
    )
    if not result["summary"]["outputs_within_tolerance"]:
        raise SystemExit("an output of ours is out of tolerance")


def kept(work: Path, name: str, retry: bool = False) -> dict[str, Any] | None:
    """The row of a shape, if it is in the folder; with `retry` only one that has times."""
    file = work / f"{name}.json"
    if not file.exists():
        return None
    row: dict[str, Any] = json.loads(file.read_text())
    return None if retry and row.get("refused") else row


def identity(name: str) -> dict[str, Any]:
    return {"name": name, "kind": kind_and_index(name)[0], "shape": text_of(name)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all rows and by kind: the best peer's time over ours; who was faster, and what was not run."""
    ran = [row for row in rows if not row.get("refused")]
    over = {row["name"]: row["best_peer_over_ours"] for row in ran}
    kinds = list(dict.fromkeys(row["kind"] for row in ran))
    noted = [row["notes_over_ours"] for row in ran if row.get("notes_over_ours") is not None]
    return {
        "geomean_vs_best_peer": geometric_mean(list(over.values())) if over else None,
        "worst_vs_best_peer": min(over.values(), default=None),
        "geomean_vs_best_peer_by_kind": {
            kind: geometric_mean([row["best_peer_over_ours"] for row in ran if row["kind"] == kind]) for kind in kinds
        },
        "geomean_of_notes_over_ours": geometric_mean(noted) if noted else None,
        "shapes": len(rows),
        "slower": [name for name, found in over.items() if found < 1],
        "out_of_tolerance": [row["name"] for row in ran if not row["within_tolerance"]],
        "refused": [f"{row['name']}: {row['refused']}" for row in rows if row.get("refused")],
        "without_autotune": [f"{row['name']}: {row['autotune_refused']}" for row in ran if row.get("autotune_refused")],
        "outputs_within_tolerance": all(row["within_tolerance"] for row in ran),
    }


def row_from(name: str, secs: dict[str, float], errors: dict[str, float], flops: float, moved: float) -> dict[str, Any]:
    """What follows from times and errors, by contestant.

    secs: of a call. flops: of products and convolutions. moved: bytes of a call's inputs and results.
    """
    ours, noted = secs["ours"], notes_secs(name)
    best = min((peer for peer in PEERS if peer in secs), key=lambda peer: secs[peer])
    row: dict[str, Any] = {f"{who}_secs": secs.get(who) for who in ("ours", *PEERS)}
    row |= {f"{peer}_over_ours": secs[peer] / ours if peer in secs else None for peer in PEERS}
    row |= {"best_peer": best, "best_peer_over_ours": secs[best] / ours}
    row |= {f"{who}_error": errors.get(who) for who in ("ours", *PEERS)}
    row["within_tolerance"] = errors["ours"] <= max(LEAST_ERROR[DTYPE], FACTOR * errors["eager"])
    if kind_and_index(name)[0] in MOVES:
        row["gb_per_sec"] = {who: moved / found / 1e9 for who, found in secs.items()}
    else:
        row["tflops"] = {who: flops / found / 1e12 for who, found in secs.items()}
    if noted is not None:
        row |= {"notes_secs": noted, "notes_over_ours": noted / ours}
    return row


def calls_for(moved: int, cache: int) -> int:
    """Calls of a graph. moved: bytes of one call's inputs and results; cache: of the L2."""
    return min(max(math.ceil(CACHES * cache / moved), LEAST_CALLS), MOST_CALLS)


# -- the process of one shape


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Sets the three up, compares their results, and times them in turn."""
    import torch
    from operator_modules_cuda import channels_last, made
    from torch.utils.flop_counter import FlopCounterMode

    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(SEED)
    module, inputs = made(kind_and_index(case["name"])[0], shape_of(case["name"]), dtype=getattr(torch, DTYPE))
    module, inputs = module.cuda(), tuple(x.cuda() for x in inputs)
    reference = reference_of(torch, copy.deepcopy(module), tuple(x.float() for x in inputs))

    theirs = channels_last(copy.deepcopy(module))
    with FlopCounterMode(display=False) as counter:
        result = theirs(*inputs)
    moved = sum(x.numel() * x.element_size() for x in (*inputs, result))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    calls = calls_for(moved, cache)
    told: dict[str, Any] = {"flops": float(counter.get_total_flops()), "bytes": moved, "calls": calls}
    told["exceed_l2"] = calls * moved > cache

    contestants: dict[str, Callable[..., Any]] = {"eager": theirs}
    try:
        autotune = compiled(torch, theirs, AUTOTUNE)
        autotune(*inputs)
        contestants["autotune"] = autotune
    except Exception as error:  # noqa: BLE001 - ours is then compared with eager alone
        told["autotune_refused"] = reason(error)
    tuning = {"seconds": case["seconds"], "dtype": DTYPE, "tasks": 0}
    folder = Path(tempfile.mkdtemp(dir=case["scratch"]))
    contestants["ours"], tuned, _ = tuned_model(module, inputs, tuning, folder)

    errors = {who: error_of(call(*inputs), reference) for who, call in contestants.items()}
    sets = [inputs, *(tuple(torch.randn_like(x) for x in inputs) for _ in range(calls - 1))]
    graphs = {who: captured(torch, [partial(call, *one) for one in sets]) for who, call in contestants.items()}
    secs = timed(torch, graphs, calls, case["rounds"])
    return {
        **row_from(case["name"], secs, errors, told["flops"], moved),
        **told,
        **{key: tuned[key] for key in ("tuning_secs", "trials", "failed_trials", "tasks")},
        "failures": tuned.get("failures", {}),
        "seconds": case["seconds"],
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "measured_on": datetime.now(UTC).date().isoformat(),
    }


def reason(error: BaseException) -> str:
    return cut(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    kernel_threads()
    try:
        found = run_case(json.loads(Path(sys.argv[1]).read_text()))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a shape's refusal; the others go on
        traceback.print_exc()
        found = {"refused": reason(error)}
    print(json.dumps(found))
