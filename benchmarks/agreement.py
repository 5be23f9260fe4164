"""Whether the interval printed with a served schedule holds what a later measurement gives.

    python benchmarks/agreement.py --json > benchmarks/results/agreement.json

50 operators with what is fused behind them (`--quick`: 8) become tasks the way a submitted model does. Each gets a short
search and a confirming run; `choose_best` gives the served schedule with the interval of its median. Then everything is
forgotten: a new Sandbox, with a zygote, inputs and processes of its own, repeats each confirming run, the first one after
the last was served, minutes later. `within` is the share of new medians of served schedules inside the printed intervals.

Each served schedule is also measured `alone`: then no other candidate's data pass through the caches between its samples,
and a program whose data exceed a core's own cache may be faster than in any model that runs it between other operators.
`ratio` is the new median over the served one, `half_width` half the interval over the served median.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from environment import environment, parser, show

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement, Timed
from pitchpipe.wire.record import Best
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from tuner.execution.steps import propose
from tuner.measure.timing import CONFIRM_PROCESSES
from tuner.search.requests import ProposeRequest
from tuner.tuning.confirm import MeasuredBatch, choose_best
from workers.device import detect_target, fingerprint, toolchain
from workers.sandbox.sandbox import Sandbox

TRIALS = 12
CONFIRMED = 3
"""Candidates that meet the baseline, as in tuner/tuning/loop.py."""
QUICK_PROGRAMS = 8
SEED = 3


@dataclass(frozen=True, kw_only=True)
class Program:
    """An operator with what is fused behind it; the first `inputs` shapes are the inputs', the others are weights'."""

    name: str
    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    inputs: int = 1


def programs() -> list[Program]:
    """Fifty. The kinds take turns, so that a bad moment of the host does not fall on one of them."""
    from tuner.tvm_compat import relax

    op = relax.op

    def dense(b: Any, x: Any, w: Any, bias: Any) -> Any:
        return op.add(b.emit(op.matmul(x, w)), bias)

    def dense_gelu(b: Any, x: Any, w: Any, bias: Any) -> Any:
        return op.nn.gelu(b.emit(dense(b, x, w, bias)))

    def attention(_: Any, x: Any, y: Any) -> Any:
        return op.matmul(x, y)

    def conv_relu(stride: int) -> Callable[..., Any]:
        def make(b: Any, x: Any, w: Any, bias: Any) -> Any:
            padding = int(w.ty.shape[2]) // 2
            return op.nn.relu(b.emit(op.add(b.emit(op.nn.conv2d(x, w, padding=padding, strides=stride)), bias)))

        return make

    def softmax(_: Any, x: Any) -> Any:
        return op.nn.softmax(x)

    def layer_norm(_: Any, x: Any, scale: Any, shift: Any) -> Any:
        return op.nn.layer_norm(x, scale, shift, axes=[-1])

    def max_pool(_: Any, x: Any) -> Any:
        return op.nn.max_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1))

    def add_relu(b: Any, x: Any, y: Any) -> Any:
        return op.nn.relu(b.emit(op.add(x, y)))

    kinds = [
        [
            Program(name="dense", make=dense, shapes=((m, k), (k, n), (n,)))
            for m in (1, 16, 64, 128)
            for k, n in ((256, 256), (512, 512), (768, 768))
        ],
        [
            Program(name="conv_relu", make=conv_relu(step), shapes=((1, c, s, s), (c, c, k, k), (1, c, 1, 1)))
            for c, s, k, step in (
                *((256, 7, 3, 1), (64, 14, 3, 1), (128, 14, 3, 1), (32, 28, 3, 1), (64, 28, 3, 1), (96, 28, 3, 2)),
                *((16, 56, 3, 1), (32, 56, 3, 2), (32, 56, 1, 1), (128, 28, 1, 1), (256, 14, 1, 1), (512, 7, 1, 1)),
            )
        ],
        [
            Program(name="dense_gelu", make=dense_gelu, shapes=((m, k), (k, n), (n,)))
            for m, k, n in ((32, 128, 512), (64, 256, 1024), (128, 192, 768), (16, 384, 1536))
        ],
        [
            Program(name="attention", make=attention, shapes=((h, s, d), (h, d, s)), inputs=2)
            for h, s, d in ((4, 64, 32), (8, 64, 64), (12, 128, 64), (4, 196, 32), (8, 128, 32), (6, 256, 64))
        ],
        [
            Program(name="softmax", make=softmax, shapes=(shape,))
            for shape in ((12, 128, 128), (4, 64, 64), (8, 196, 196), (1, 1000))
        ],
        [
            Program(name="layer_norm", make=layer_norm, shapes=((rows, width), (width,), (width,)))
            for rows, width in ((128, 768), (64, 384), (196, 192), (16, 1024))
        ],
        [
            Program(name="max_pool", make=max_pool, shapes=((1, c, s, s),))
            for c, s in ((32, 56), (64, 28), (16, 112), (64, 56))
        ],
        [
            Program(name="add_relu", make=add_relu, shapes=((1, c, s, s), (1, c, s, s)), inputs=2)
            for c, s in ((32, 28), (64, 56), (128, 28), (16, 112))
        ],
    ]
    return [program for turn in zip_longest(*kinds) for program in turn if program is not None]


def task_of(program: Program, target: Target) -> Task:
    """The task that holds the operator; a change of layout before it is another task."""
    from tuner.graph.prepare import prepare
    from tuner.tasks import split
    from tuner.tvm_compat import relax

    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"a{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(program.shapes)]
    with builder.function("main", arguments, attrs={"num_input": program.inputs}):
        with builder.dataflow():
            result = builder.emit_output(program.make(builder, *arguments))
        builder.emit_func_output(result)
    return max(split(prepare(builder.get(), target), target), key=lambda task: task.flops)


def measure(sandbox: Sandbox, task: Task, traces: Sequence[str], purpose: Purpose) -> list[Measurement]:
    """In the order of the traces."""
    candidates = [Candidate.of(task.workload.digest, trace) for trace in traces]
    measured = sandbox.measure(task.workload, candidates, MeasureConfig(), purpose=purpose)
    results = {result.candidate: result for result in measured}
    return [results[candidate.digest] for candidate in candidates]


def search(sandbox: Sandbox, task: Task) -> list[str]:
    """The fastest few of TRIALS proposals; of a fixed task, its schedule."""
    if task.fixed is not None:
        return [task.fixed]
    request = ProposeRequest(
        workload=task.workload, target=task.target, measured=(), seen=frozenset(), model=None, n=TRIALS, seed=SEED
    )
    traces = [proposal.candidate.trace for proposal in propose(request)]
    results = measure(sandbox, task, traces, Purpose.SEARCH)
    timed = [(result.secs, trace) for result, trace in zip(results, traces, strict=True) if isinstance(result, Timed)]
    return [trace for _, trace in sorted(timed)[:CONFIRMED]]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a job would serve for a task after so short a search, and the candidates of its confirming run."""

    task: Task
    best: Best
    traces: tuple[str, ...]
    at: float
    """On the monotonic clock."""


def serve(sandbox: Sandbox, task: Task, device: str, line: str) -> Served:
    """Searches and confirms."""
    traces = list(dict.fromkeys([task.baseline, *search(sandbox, task)]))
    results = measure(sandbox, task, traces, Purpose.CONFIRM)
    batch = MeasuredBatch(
        task=0,
        purpose=Purpose.CONFIRM,
        candidates=tuple(Candidate.of(task.workload.digest, trace) for trace in traces),
        results=tuple(results),
        records=tuple(str(number) for number in range(len(traces))),
        whole=True,
        device_class=device,
        toolchain=line,
    )
    best = choose_best(task, batch)
    if best is None:
        raise SystemExit(f"{task.name}: the confirming run decided nothing: {results}")
    return Served(task=task, best=best, traces=tuple(traces), at=time.monotonic())


def again(sandbox: Sandbox, served: Served) -> dict[str, Any]:
    """The row of a record: its confirming run repeated, and its schedule measured alone."""
    task, best = served.task, served.best
    later = measure(sandbox, task, served.traces, Purpose.CONFIRM)[served.traces.index(best.trace)]
    (alone,) = measure(sandbox, task, [best.trace], Purpose.CONFIRM)
    for result in (later, alone):
        if not isinstance(result, Timed):
            raise SystemExit(f"{task.name}: {result}")
    assert isinstance(later, Timed)
    assert isinstance(alone, Timed)
    return {
        "task": task.name,
        "bytes": task.bytes,
        "served": "baseline" if best.record is None else "candidate",
        "baseline_over_served": None if best.baseline_secs is None else best.baseline_secs / best.secs,
        "served_secs": best.secs,
        "secs_low": best.secs_low,
        "secs_high": best.secs_high,
        "half_width": (best.secs_high - best.secs_low) / 2 / best.secs,
        "minutes_between": (time.monotonic() - served.at) / 60,
        "later_secs": later.secs,
        "ratio": later.secs / best.secs,
        "within": best.secs_low <= later.secs <= best.secs_high,
        "alone_secs": alone.secs,
        "within_alone": best.secs_low <= alone.secs <= best.secs_high,
    }


def main() -> None:
    options = parser(__doc__).parse_args()
    target = detect_target("llvm")
    device, line = fingerprint().device_class, toolchain(target).key
    tasks = [task_of(program, target) for program in programs()][: QUICK_PROGRAMS if options.quick else None]
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "environment": environment(
            records=len(tasks), trials=TRIALS, processes_per_candidate=CONFIRM_PROCESSES, nice=os.nice(0)
        ),
        "rows": rows,
    }
    with Sandbox(target) as sandbox:
        served = [serve(sandbox, task, device, line) for task in tasks]
    with Sandbox(target) as sandbox:
        rows += [again(sandbox, record) for record in served]
    result["environment"]["load_after"] = os.getloadavg()[0]
    widths = sorted(row["half_width"] for row in rows)
    result["summary"] = {
        "within": sum(row["within"] for row in rows) / len(rows),
        "records": len(rows),
        "within_alone": sum(row["within_alone"] for row in rows) / len(rows),
        "half_width_median": statistics.median(widths),
        "half_width_90": widths[int(0.9 * len(widths))],
        "ratio_median": statistics.median(row["ratio"] for row in rows),
        "outside": {row["task"]: row["ratio"] for row in rows if not row["within"]},
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
