"""TVM's own set of MetaSchedule workloads, 52 shapes that it can make: ours against stock, at 64 trials and equal seconds.

    python benchmarks/operators.py --work build/operators                    # all of them; goes on where it was stopped
    python benchmarks/operators.py --work build/operators --only GMM,C2D-2   # kinds or shapes
    python benchmarks/operators.py --work build/operators --phase time --json > benchmarks/results/operators.json
    python benchmarks/operators.py --target cuda --json > benchmarks/results/operators_cuda.json    (operators_cuda.py)

Two phases; what they find is kept in --work shape by shape, and what is there is not done again. *Tune*: stock is
`tune_tir` as it comes, 64 trials, told how many threads to use, in processes that start in a tenth of their time
(peers/lean); `stock_timed` of its trials have a time. Ours is the loop of a coordinator over the sandbox of a worker, as in
throughput.py, one task, from nothing and cold. *Time*: the winners built anew and timed interleaved, in three fresh
processes each (the confirming run of production, outputs checked).

Equal seconds: stock's `secs` are those of its process from before it imports TVM to its last record. Ours begin before any
process has imported TVM, and are those of a whole job, confirming included (stock does no such thing): `our_secs` says when
the search ended, `our_total_secs` when all did, and `over_time` in the summary names the shapes where that is more than
stock's, as a confirming run that has begun is measured to its end.
`--at-most` ends our search after so many seconds where stock took longer: ours then has fewer seconds, never more.
`at_trials` is the candidate that was fastest in our search after as many trials as stock had.

FLOPs are TVM's count over the tensor program, so a Winograd shape is counted by its own arithmetic, and softmax and norms
by operations that are no multiply-adds: their share of peak is low whatever is done. `peak_flops_per_sec` is measured in
the timing phase (peak.py). A ratio is stock's median over ours; `slower` counts those below 1, `slower_for_certain` those
whose intervals do not meet either.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import operator_shapes_cuda
import operators_cuda
from environment import environment, parser, show
from model_tuning import write
from peak import peak
from peers.metaschedule import program
from rounds import geometric_mean
from throughput import IssuedRecordStore, run, run_stock, stock_trace, task_of, tuned

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement, Timed
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from tuner.execution.engine import LocalEngine
from tuner.tuning.budget import BudgetLedger
from workers.device import detect_target
from workers.sandbox.sandbox import Sandbox

TRIALS, QUICK_TRIALS = 64, 16
QUICK = ("GMM-2", "C2D-2")
BATCH = 32


def shapes() -> list[str]:
    """Names of all 53 that it lists, in TVM's order."""
    from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

    return [f"{kind}-{index}" for kind, (_, found) in CONFIGS.items() for index in range(len(found))]


def chosen(names: Sequence[str], only: str | None) -> list[str]:
    """Those that `only` names: kinds (GMM) or shapes (GMM-2), with commas between. Raises ValueError for an unknown one."""
    if only is None:
        return list(names)
    wanted = only.split(",")
    if unknown := [one for one in wanted if not any(one in (name, name.rpartition("-")[0]) for name in names)]:
        raise ValueError(f"no workload is called {', '.join(unknown)}")
    return [name for name in names if name in wanted or name.rpartition("-")[0] in wanted]


def not_made(names: Sequence[str]) -> list[str]:
    """Those whose program this version of TVM refuses to make: its set has a Winograd shape that its operators dropped."""
    found = []
    for name in names:
        try:
            program(name)
        except RuntimeError:
            found.append(name)
    return found


def sized_task(name: str, target: Target) -> Task:
    """The shape as a task with its FLOPs and the bytes of its arguments."""
    import tvm

    mod = program(name)
    tensors = [param.ty for param in mod["main"].params]
    sizes = [math.prod(int(n) for n in ty.shape) * tvm.DataType(str(ty.dtype)).bits // 8 for ty in tensors]
    flops = float(tvm.s_tir.analysis.estimate_tir_flops(mod))
    return task_of(name, target).model_copy(update={"flops": flops, "bytes": float(sum(sizes))})


def ours(name: str, target: Target, seconds: float, trials: int) -> dict[str, Any]:
    """The tuning loop over a sandbox, as a coordinator and a worker run it, for so many seconds."""
    started = time.perf_counter()
    with Sandbox(target) as sandbox:
        engine = LocalEngine(1)
        task = sized_task(name, target)
        store = IssuedRecordStore()
        spent = time.perf_counter() - started
        ledger = BudgetLedger([task], trials=None, seconds=max(spent + 1.0, seconds), batch_size=BATCH)
        found = tuned(task, sandbox, engine, store, ledger, started)
        engine.shutdown(wait=False)
    records = sorted(store.for_task(task.workload.digest, target), key=lambda record: record.created_at)
    timed = [record for record in records[:trials] if isinstance(record.result, Timed)]
    return {
        "secs": found.search_secs,
        "total_secs": found.total_secs,
        "trials": len(records),
        "timed": sum(isinstance(record.result, Timed) for record in records),
        "trace": None if found.best is None else found.best.trace,
        "trace_at_trials": min(timed, key=lambda record: secs_of(record.result)).trace if timed else None,
    }


def secs_of(result: Measurement | None) -> float:
    return result.secs if isinstance(result, Timed) else math.inf


def tune(name: str, target: Target, trials: int, at_most: float) -> dict[str, Any]:
    """Both sides, one after the other; ours for stock's seconds, or for `at_most` if that is less."""
    with tempfile.TemporaryDirectory() as folder:
        stock = run_stock(name, target, trials, folder)
        stock["trace"] = None
        if stock["timed"]:
            try:
                stock["trace"] = stock_trace(Path(folder), program(name), target)
            except InvalidTrace as error:
                stock["refused"] = str(error)
    side = [__file__, "--side", name, "--target", target.key, "--seconds", str(min(stock["secs"], at_most))]
    return {"stock": stock, "ours": run([*side, "--trials", str(trials)])}


def interleaved(task: Task, traces: Sequence[str | None]) -> list[Measurement | None]:
    """Each trace's result, all timed interleaved in one run; None for none."""
    candidates = [None if trace is None else Candidate.of(task.workload.digest, trace) for trace in traces]
    unique = list({candidate.digest: candidate for candidate in candidates if candidate is not None}.values())
    with Sandbox(task.target) as sandbox:
        results = sandbox.measure(task.workload, unique, MeasureConfig(), purpose=Purpose.CONFIRM)
        found = {result.candidate: result for result in results}
    return [None if candidate is None else found[candidate.digest] for candidate in candidates]


def time_shape(name: str, target: Target, tuned: dict[str, Any], peak_flops: float) -> dict[str, Any]:
    """The row of a shape."""
    task = sized_task(name, target)
    stock, mine = tuned["stock"], tuned["ours"]
    results = interleaved(task, [stock["trace"], mine["trace"], mine["trace_at_trials"]])
    sides = dict(zip(("stock", "ours", "ours_at_trials"), results, strict=True))
    row: dict[str, Any] = {
        "workload": name,
        "flops": task.flops,
        "bytes": task.bytes,
        "peak_flops_per_sec": peak_flops,
        "stock_secs": stock["secs"],
        "stock_trials": stock["trials"],
        "stock_timed": stock["timed"],
        "our_secs": mine["secs"],
        "our_total_secs": mine["total_secs"],
        "our_trials": mine["trials"],
    }
    for side, result in sides.items():
        secs = secs_of(result) if isinstance(result, Timed) else None
        row[f"{side}_median_secs"] = secs
        row[f"{side}_interval_secs"] = [result.secs_low, result.secs_high] if isinstance(result, Timed) else None
        row[f"{side}_gflops_per_sec"] = None if secs is None else task.flops / secs / 1e9
        row[f"{side}_share_of_peak"] = None if secs is None else task.flops / secs / peak_flops
        if not isinstance(result, Timed):
            row[f"{side}_failure"] = stock.get("refused", "nothing was found") if result is None else result.kind.value
    row["ratio"] = ratio(sides["stock"], sides["ours"])
    row["ratio_at_trials"] = ratio(sides["stock"], sides["ours_at_trials"])
    return row


def ratio(stock: Measurement | None, mine: Measurement | None) -> float | None:
    """Stock's median over ours; None where one has none."""
    if not isinstance(stock, Timed) or not isinstance(mine, Timed):
        return None
    return stock.secs / mine.secs


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    equal = {row["workload"]: row["ratio"] for row in rows if row["ratio"] is not None}
    trials = {row["workload"]: row["ratio_at_trials"] for row in rows if row["ratio_at_trials"] is not None}

    def certain(row: dict[str, Any]) -> bool:
        return row["workload"] in equal and row["stock_interval_secs"][1] < row["ours_interval_secs"][0]

    return {
        "geomean_vs_stock": geometric_mean(list(equal.values())) if equal else None,
        "worst_vs_stock": min(equal.values(), default=None),
        "geomean_vs_stock_at_trials": geometric_mean(list(trials.values())) if trials else None,
        "worst_vs_stock_at_trials": min(trials.values(), default=None),
        "shapes": len(rows),
        "slower": sorted(name for name, found in equal.items() if found < 1),
        "slower_for_certain": sorted(row["workload"] for row in rows if certain(row)),
        "slower_at_trials": sorted(name for name, found in trials.items() if found < 1),
        "without_a_ratio": sorted(row["workload"] for row in rows if row["ratio"] is None),
        "over_time": sorted(row["workload"] for row in rows if row["our_total_secs"] > row["stock_secs"]),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", help="kinds (GMM) or shapes (GMM-2), with commas between; default: all")
    arguments.add_argument("--phase", choices=("tune", "time", "all"), default="all")
    arguments.add_argument("--work", type=Path, help="folder of results, shape by shape; default: a new one, removed")
    arguments.add_argument("--trials", type=int, default=TRIALS, help="of stock")
    arguments.add_argument(
        "--at-most", type=float, default=math.inf, help="seconds of ours; default: as many as stock took"
    )
    arguments.add_argument("--side", metavar="SHAPE", help="run our side only, on one shape, and print its result")
    arguments.add_argument("--target", help="cuda: a GPU's operators; with --side: the target's JSON")
    arguments.add_argument(
        "--seconds",
        type=float,
        help=f"with --side: its budget; with --target cuda: of tuning a shape, default {operators_cuda.SECONDS}",
    )
    arguments.add_argument("--retry", action="store_true", help="with --target cuda: measure again what was refused")
    options = arguments.parse_args()
    if options.side:
        print(json.dumps(ours(options.side, Target.parse(options.target), options.seconds, options.trials)))
        return
    on_gpu = options.target == "cuda"
    if options.target and not on_gpu:
        arguments.error("without --side the target is cuda, or is left out")
    every, quick = (operator_shapes_cuda.names(), operators_cuda.QUICK) if on_gpu else (shapes(), QUICK)
    try:
        names = chosen(every, options.only or (",".join(quick) if options.quick else None))
    except ValueError as error:
        arguments.error(str(error))
    if on_gpu:
        operators_cuda.main(options, names)
        return
    if options.phase != "all" and options.work is None:
        arguments.error(f"--phase {options.phase} needs --work")
    missing = not_made(names)
    target = detect_target("llvm")
    trials = QUICK_TRIALS if options.quick else options.trials
    result: dict[str, Any] = {"environment": environment(trials=trials, target=target.attributes()), "rows": []}
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        peak_flops = peak(target.num_cores or 1) if options.phase != "tune" else 0.0
        for name in [name for name in names if name not in missing]:
            tuned, timed = work / f"{name}.tuned.json", work / f"{name}.row.json"
            if options.phase != "time" and not tuned.exists():
                write(tuned, tune(name, target, trials, options.at_most))
            if options.phase == "tune" or not tuned.exists():
                continue
            if not timed.exists():
                write(timed, time_shape(name, target, json.loads(tuned.read_text()), peak_flops))
            result["rows"].append(json.loads(timed.read_text()))
    if options.phase != "tune":
        result["summary"] = {**summary(result["rows"]), "not_made_by_tvm": missing}
        show(result, options.json)


if __name__ == "__main__":
    main()
