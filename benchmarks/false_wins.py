"""A/A comparisons: how often a program beats itself in a confirming run.

    python benchmarks/false_wins.py --json > benchmarks/results/false_wins.json
    python benchmarks/false_wins.py --target cuda --seconds 240 --json > benchmarks/results/false_wins_cuda.json

`--workers 8` compares on eight parts of the cores at a time, each with a rule of quiet of its own (tuner/measure/quiet.py),
and on as many GPUs as there are, one for each worker in turn.

10,000 pairs (`--quick`: 4 of each program) over programs of about 5 us to 5 ms on all cores, or of 3 to 700 us on a GPU,
some of them bound by memory. Both sides are one program under its schedule: the baseline's trace, and the same trace after
instructions that only look a block up. Each side is built and timed as in production, through the Sandbox with
Purpose.CONFIRM, in fresh processes, and judged by the real `choose_best`. A false win is a candidate served instead of the
baseline.

Some pairs share a batch, as the candidates of a task do; every side is in one pair. On a CPU each side has processes of its
own; on a GPU each process holds every side, as there.
`by_samples_alone` counts the pairs that the interval of the pooled samples would have given to the candidate: what a rule
errs that does not see that processes differ. Bounds are Clopper and Pearson's (1934), one-sided, 95 %.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from typing import Any

from environment import environment, parser, show, target_here

from pitchpipe.wire.ids import canonical_json
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig, Timed
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload
from tuner.measure import quiet
from tuner.measure.timing import CONFIRM_PROCESSES, median_interval
from tuner.tuning.confirm import MeasuredBatch, choose_best
from workers.device import detect_target, fingerprint, toolchain
from workers.sandbox.sandbox import Sandbox

PAIRS = 10_000
PAIRS_PER_BATCH = {"llvm": 4, "cuda": 8}
SHARES = {
    "llvm": {"product_96": 0.26, "product_224": 0.26, "sum_1m": 0.22, "product_448": 0.18, "product_768": 0.08},
    "cuda": {"product_128": 0.3, "sum_1m": 0.3, "product_1024": 0.2, "sum_8m": 0.2},
}
"""Kind of target to programs, and the share of the pairs that each gets."""
QUICK_PAIRS = 4
GPU_THREADS = 256
CONFIDENCE = 0.95


def product(n: int, target: Target) -> Task:
    """A product of two n x n matrices: on all cores, tiled and vectorised, or with a thread for each element."""
    from tuner.tvm_compat import IRModule, Schedule, te

    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    mod = IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})
    schedule = Schedule(mod)
    block = schedule.get_sblock("c")
    i, j, reduced = schedule.get_loops(block)
    if target.kind == "cuda":
        on_threads(schedule, schedule.fuse(i, j))
        return task_of(f"product_{n}", mod, schedule, target)
    rows, row = schedule.split(i, [None, 4])
    columns, column = schedule.split(j, [None, 32])
    outer, inner = schedule.split(reduced, [None, 8])
    schedule.reorder(rows, columns, outer, inner, row, column)
    schedule.parallel(rows)
    schedule.vectorize(column)
    schedule.unroll(row)
    schedule.decompose_reduction(block, outer)
    return task_of(f"product_{n}", mod, schedule, target)


def elementwise(n: int, target: Target) -> Task:
    """c = a * b + a over n elements, on all cores or with a thread for each: bound by memory."""
    from tuner.tvm_compat import IRModule, Schedule, te

    a, b = te.placeholder((n,), name="a"), te.placeholder((n,), name="b")
    c = te.compute((n,), lambda i: a[i] * b[i] + a[i], name="c")
    mod = IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})
    schedule = Schedule(mod)
    (loop,) = schedule.get_loops(schedule.get_sblock("c"))
    if target.kind == "cuda":
        on_threads(schedule, loop)
    else:
        outer, _, inner = schedule.split(loop, [target.num_cores or 1, None, 16])
        schedule.parallel(outer)
        schedule.vectorize(inner)
    return task_of(f"sum_{n >> 20}m", mod, schedule, target)


def on_threads(schedule: Any, loop: Any) -> None:
    """A thread of a GPU for each iteration of the loop."""
    outer, inner = schedule.split(loop, [None, GPU_THREADS])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")


def task_of(name: str, mod: Any, schedule: Any, target: Target) -> Task:
    """A task whose baseline is this schedule."""
    from tuner.tuning.records import encode_trace
    from tuner.tvm_compat import save_ir
    from tuner.workload.digest import workload_digest

    return Task(
        workload=Workload(digest=workload_digest(mod), ir=save_ir(mod)),
        target=target,
        name=name,
        weight=1,
        flops=0,
        bytes=0,
        group=name,
        baseline=encode_trace(schedule.trace),
    )


def programs(target: Target) -> list[Task]:
    """The tasks named in SHARES."""
    found = []
    for name in SHARES[target.kind]:
        kind, size = name.split("_")
        found.append(elementwise(int(size.rstrip("m")) << 20, target) if kind == "sum" else product(int(size), target))
    return found


def same(trace: str, count: int) -> list[str]:
    """Traces that make one program: the k-th looks a block up k times before it begins."""
    instructions, decisions = json.loads(trace)
    found = []
    for k in range(count):
        lookups = [["GetSBlock", [], ["c", "main"], [f"b{900_000 + i}"]] for i in range(k)]
        moved = [[index + k, value] for index, value in decisions]
        found.append(canonical_json([lookups + instructions, moved]).decode())
    return found


def pairs(sandbox: Sandbox, task: Task, count: int, device: str, line: str) -> list[dict[str, Any]]:
    """`count` pairs in one batch."""
    candidates = [Candidate.of(task.workload.digest, trace) for trace in same(task.baseline, 2 * count)]
    measured = sandbox.measure(task.workload, candidates, MeasureConfig(), purpose=Purpose.CONFIRM)
    results = {result.candidate: result for result in measured}
    found = []
    for pair in zip(candidates[::2], candidates[1::2], strict=True):
        sides = [results[candidate.digest] for candidate in pair]
        for side in sides:
            if not isinstance(side, Timed):
                raise SystemExit(f"{task.name}: {side}")
        batch = MeasuredBatch(
            task=0,
            purpose=Purpose.CONFIRM,
            candidates=pair,
            results=tuple(sides),
            records=("baseline", "candidate"),
            whole=True,
            device_class=device,
            toolchain=line,
        )
        best = choose_best(task.model_copy(update={"baseline": pair[0].trace}), batch)
        if best is None:
            raise SystemExit(f"{task.name}: no verdict")
        baseline, candidate = (side for side in sides if isinstance(side, Timed))
        found.append(
            {
                "won": best.record == "candidate",
                "by_samples_alone": median_interval(candidate.run_secs)[1] < median_interval(baseline.run_secs)[0],
                "secs": baseline.secs,
                "apart": candidate.secs / baseline.secs - 1,
                "half_width": (best.secs_high - best.secs_low) / 2 / best.secs,
                "spread": process_spread(baseline),
            }
        )
    return found


def process_spread(timed: Timed) -> float:
    """Slowest over fastest process of one candidate, less one, by their medians."""
    processes = timed.rule.processes if timed.rule is not None else 1
    medians = [statistics.median(timed.run_secs[i::processes]) for i in range(processes)]
    return max(medians) / min(medians) - 1


def upper_bound(errors: int, trials: int) -> float:
    """The largest rate at which so few errors still have a chance of 1 - CONFIDENCE."""
    low, high = errors / trials, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        chance = sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(errors + 1))
        low, high = (rate, high) if chance > 1 - CONFIDENCE else (low, rate)
    return high


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name: str, found: Sequence[dict[str, Any]], repeated: int, secs: float) -> dict[str, Any]:
    """Of one program."""
    wins = sum(pair["won"] for pair in found)
    return {
        "program": name,
        "pairs": len(found),
        "false_wins": wins,
        "rate_upper95": upper_bound(wins, len(found)),
        "by_samples_alone": sum(pair["by_samples_alone"] for pair in found),
        "median_secs": statistics.median(pair["secs"] for pair in found),
        "medians_apart_95": quantile([abs(pair["apart"]) for pair in found], 0.95),
        "process_spread_median": statistics.median(pair["spread"] for pair in found),
        "process_spread_95": quantile([pair["spread"] for pair in found], 0.95),
        "interval_half_width_median": statistics.median(pair["half_width"] for pair in found),
        "repeated_batches": repeated,
        "secs_per_pair": secs / len(found),
    }


def of_one_worker(
    kind: str, budget: Mapping[str, int], seconds: float, cores: Sequence[int], gpu: int | None
) -> dict[str, tuple[list[dict[str, Any]], int, float]]:
    """On these cores and this GPU of a process that has not begun to use any: by program the pairs, the batches that were
    repeated because the machine was not steady, and the seconds that passed."""
    os.sched_setaffinity(0, cores)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    told = {}
    with TemporaryDirectory() as own:
        os.environ[quiet.ENVIRONMENT] = f"{own}/quiet.lock"
        target = detect_target(kind)
        device, line = fingerprint(target.kind).device_class, toolchain(target).key
        shares, per_batch = SHARES[kind], PAIRS_PER_BATCH[kind]
        with Sandbox(target) as sandbox:
            for task in programs(target):
                found: list[dict[str, Any]] = []
                started = time.monotonic()
                until = started + shares[task.name] * seconds
                before = sandbox.steadiness.repeated if sandbox.steadiness is not None else 0
                while (left := budget[task.name] - len(found)) > 0 and time.monotonic() < until:
                    found += pairs(sandbox, task, min(left, per_batch), device, line)
                repeated = sandbox.steadiness.repeated - before if sandbox.steadiness is not None else 0
                told[task.name] = found, repeated, time.monotonic() - started
    return told


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", choices=sorted(SHARES), default="llvm")
    arguments.add_argument("--pairs", type=int, default=PAIRS, help=f"default {PAIRS}")
    arguments.add_argument(
        "--seconds", type=float, default=math.inf, help="of all programs, after which fewer pairs are enough"
    )
    arguments.add_argument("--workers", type=int, default=1, help="processes at a time, each on cores of its own")
    options = arguments.parse_args()
    kind, workers, gpus = target_here(options.target).kind, options.workers, []
    if kind == "cuda":
        import torch

        gpus = [*range(torch.cuda.device_count())]
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // workers
    if not each:
        arguments.error(f"{workers} workers have no core each of {len(cores)}")
    budget = {
        name: QUICK_PAIRS if options.quick else math.ceil(share * options.pairs / workers)
        for name, share in SHARES[kind].items()
    }
    result: dict[str, Any] = {
        "environment": environment(
            gpu=kind == "cuda",
            pairs={name: count * workers for name, count in budget.items()},
            per_batch=PAIRS_PER_BATCH[kind],
            processes_per_side=CONFIRM_PROCESSES,
            workers=workers,
            nice=os.nice(0),
        )
    }
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(
                of_one_worker,
                kind,
                budget,
                options.seconds,
                cores[at * each : (at + 1) * each],
                gpus[at % len(gpus)] if gpus else None,
            )
            for at in range(workers)
        ]
        told = [one.result() for one in asked]
    rows = []
    for name in budget:
        found, repeated, secs = zip(*(one[name] for one in told), strict=True)
        rows.append(row(name, [pair for of_worker in found for pair in of_worker], sum(repeated), sum(secs)))
    result["rows"] = rows
    result["environment"]["load_after"] = os.getloadavg()[0]
    trials, wins = sum(row["pairs"] for row in rows), sum(row["false_wins"] for row in rows)
    result["summary"] = {
        "rate": wins / trials,
        "rate_upper95": upper_bound(wins, trials),
        "false_wins": wins,
        "pairs": trials,
        "worst_program_rate": max(row["false_wins"] / row["pairs"] for row in rows),
        "rate_by_samples_alone": sum(row["by_samples_alone"] for row in rows) / trials,
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
