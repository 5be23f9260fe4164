"""Trials per second: stock MetaSchedule and this engine on the same programs, in turn on one machine.

    python benchmarks/throughput.py --json                  # two programs on this CPU, 128 trials each
    python benchmarks/throughput.py --target cuda --json    # a 1024^3 fp16 product on the first GPU

Each side runs in a process of its own, and imports, design space, search, cost model, builds and timings all count, for
ours the output checks as well. Stock is `tune_tir`, told how many threads to use, in processes that start in a tenth of
their time (peers/lean), and on a GPU without the pass that keeps most of its schedules from compiling
(peers/metaschedule.py); its runner checks no output.
Ours is the loop of a coordinator over the sandbox of a worker, twice: `cold`, where the clock starts before any process
has imported TVM, and warm, as in a service, where executor and sandbox have worked on another program before. The ratio
is that of the warm run; `cold_trials_per_sec_ratio` stands beside it. Confirming what is served comes after the clock of
ours has stopped: stock does no such thing. Then stock's best schedule and the one that our warm run would serve are built
and timed anew, interleaved, in three fresh processes each: the final medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environment import environment, parser, show, target_here
from peers.metaschedule import lean_path, program

from pitchpipe.processes.cores import usable_cores
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement, Timed
from pitchpipe.wire.record import Best, TuningRecord
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task, Workload
from tuner.execution.engine import LocalEngine
from tuner.execution.steps import propose, train
from tuner.search.requests import Proposal, ProposeRequest, Sample, TrainedModel
from tuner.tuning.budget import BudgetLedger
from tuner.tuning.confirm import MeasuredBatch
from tuner.tuning.loop import TuningLoop
from tuner.tuning.records import InMemoryRecordStore, encode_trace
from workers.device import fingerprint, toolchain
from workers.sandbox.sandbox import Sandbox

TRIALS, QUICK_TRIALS = 128, 32
BATCH = 32
SEED = 1
CORES_PER_SEARCH = 4
"""Decides the executor's processes: one on a small host."""
PROGRAMS = {"llvm": ("matmul_512", "conv2d_56x56x64_3x3"), "cuda": ("matmul_1024_fp16",)}
NEW, UNSEEN = "matmul_128", "matmul_256"
"""What a warm engine has worked on before, and what it has not seen when a batch of one is timed."""
STOCK = Path(__file__).parent / "peers" / "metaschedule.py"


def task_of(name: str, target: Target) -> Task:
    """The program as a task of its own."""
    from tuner.tvm_compat import save_ir
    from tuner.workload.digest import workload_digest

    mod = program(name)
    workload = Workload(digest=workload_digest(mod), ir=save_ir(mod))
    baseline = kind_of(target).baseline_trace(workload, target)
    return Task(workload=workload, target=target, name=name, weight=1, flops=0, bytes=0, group=name, baseline=baseline)


class IssuedRecordStore(InMemoryRecordStore):
    """Counts what is being measured as seen, as the service's store does."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: set[str] = set()

    def seen(self, workload: str, target: Target) -> frozenset[str]:
        return super().seen(workload, target) | self.issued


class SandboxMeasurer:
    """The loop's measurer and predictor over one sandbox in this process: a thread measures batch after batch."""

    def __init__(self, sandbox: Sandbox, task: Task, store: IssuedRecordStore, engine: Executor) -> None:
        self.changed = threading.Event()
        self._sandbox, self._task, self._store, self._engine = sandbox, task, store, engine
        self._queue: list[tuple[Sequence[Proposal], Future[MeasuredBatch]]] = []
        self._samples: list[Sample] = []
        self._training: Future[TrainedModel | None] | None = None
        self._model: bytes | None = None
        self._thread, self._withdrawn = ThreadPoolExecutor(1), threading.Event()
        asking = ThreadPoolExecutor(1)  # A process that imports the compiler answers: nothing waits for it.
        self._device = asking.submit(fingerprint, task.target.kind)
        self._toolchain = asking.submit(toolchain, task.target)

    def submit(self, task: int, purpose: Purpose, proposals: Sequence[Proposal], incumbent_secs: float | None) -> int:
        self._store.issued.update(proposal.candidate.digest for proposal in proposals)
        self._queue.append((proposals, self._thread.submit(self._measure, task, purpose, proposals, incumbent_secs)))
        return len(proposals)

    def collect(self) -> list[MeasuredBatch]:
        ended = [entry for entry in self._queue if entry[1].done()]
        self._queue = [entry for entry in self._queue if not entry[1].done()]
        batches = []
        for proposals, future in ended:
            batch = future.result()
            batches.append(batch)
            if batch.purpose is Purpose.CONFIRM:
                continue
            self._store.add([self._record(*pair) for pair in zip(batch.candidates, batch.results, strict=True)])
            features = {proposal.candidate.digest: proposal.features for proposal in proposals}
            self._samples += [
                Sample(
                    workload=self._task.workload.digest,
                    features=found,
                    secs=result.secs if isinstance(result, Timed) else None,
                )
                for result in batch.results
                if (found := features[result.candidate]) is not None
            ]
        return batches

    def has_capacity(self, waiting: int) -> bool:
        return len(self._queue) + waiting < 2

    def withdraw(self, purposes: Sequence[Purpose]) -> None:
        """Stops trials, also those that are measured; a confirming run is measured to its end."""
        if Purpose.SEARCH in purposes:
            self._withdrawn.set()

    def parallel(self) -> int:
        return 1

    def latest(self) -> bytes | None:
        if self._training is not None and self._training.done():
            trained, self._training = self._training.result(), None
            self._model = self._model if trained is None else trained.data
        return self._model

    def observe(self, measured: int) -> None:
        del measured
        if self._training is None:
            self._training = self._engine.submit(train, list(self._samples), SEED)

    def _measure(
        self, task: int, purpose: Purpose, proposals: Sequence[Proposal], incumbent_secs: float | None
    ) -> MeasuredBatch:
        results = {
            result.candidate: result
            for result in self._sandbox.measure(
                self._task.workload,
                [proposal.candidate for proposal in proposals],
                MeasureConfig(),
                purpose=purpose,
                incumbent_secs=incumbent_secs,
                cancelled=lambda: purpose.charged and self._withdrawn.is_set(),
            )
        }
        candidates = tuple(each.candidate for each in proposals if each.candidate.digest in results)
        self.changed.set()
        return MeasuredBatch(
            task=task,
            purpose=purpose,
            candidates=candidates,
            results=tuple(results[candidate.digest] for candidate in candidates),
            records=tuple(candidate.digest for candidate in candidates),
            whole=True,
            device_class=self._device.result().device_class,
            toolchain=self._toolchain.result().key,
            withdrawn=len(proposals) - len(candidates),
        )

    def _record(self, candidate: Candidate, result: Measurement) -> TuningRecord:
        return TuningRecord(
            id=candidate.digest,
            workload=self._task.workload.digest,
            target=self._task.target,
            trace=candidate.trace,
            result=result,
            device=self._device.result(),
            toolchain=self._toolchain.result(),
            worker="throughput",
            created_at=datetime.now(UTC),
        )


def batch_of_one(sandbox: Sandbox, task: Task, trace: str) -> float:
    """Seconds from handing one candidate to a warm sandbox to its result."""
    candidate = Candidate.of(task.workload.digest, trace)
    started = time.perf_counter()
    (result,) = sandbox.measure(task.workload, [candidate], MeasureConfig())
    if not isinstance(result, Timed):
        raise SystemExit(f"{task.name}: {result}")
    return time.perf_counter() - started


def warm_up(sandbox: Sandbox, engine: LocalEngine, target: Target) -> None:
    """Has every process do on another program what it will do on the one that is measured."""
    other = task_of(NEW, target)
    batch_of_one(sandbox, other, other.baseline)
    request = ProposeRequest(
        workload=other.workload, target=target, measured=(), seen=frozenset(), model=None, n=2, seed=SEED
    )
    for future in [engine.submit(propose, request) for _ in range(engine.processes)]:
        future.result()


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a tuning loop came to; seconds since its start."""

    search_secs: float
    """Until the budget was spent and the last batch was measured: without the confirming run."""
    total_secs: float
    best: Best | None


def tuned(
    task: Task, sandbox: Sandbox, engine: LocalEngine, store: IssuedRecordStore, ledger: BudgetLedger, started: float
) -> Tuned:
    """The tuning loop of one task over a sandbox, as a coordinator and a worker run it, to its end.

    started: by time.perf_counter, from which the ledger's seconds count.
    """
    measurer = SandboxMeasurer(sandbox, task, store, engine)
    served: list[Best] = []
    loop = TuningLoop(
        [task],
        frozenset(),
        ledger,
        measurer,
        store,
        lambda _: measurer,
        engine,
        seed=SEED,
        on_confirmed=lambda _, best: served.append(best),
    )
    search_secs = None
    while not loop.step(time.perf_counter() - started):
        elapsed_secs = time.perf_counter() - started
        if search_secs is None and ledger.finished(elapsed_secs):
            search_secs = elapsed_secs
        measurer.changed.wait(0.01)
        measurer.changed.clear()
    total_secs = time.perf_counter() - started
    return Tuned(
        search_secs=total_secs if search_secs is None else search_secs,
        total_secs=total_secs,
        best=served[0] if served else None,
    )


def ours(name: str, target: Target, trials: int, warm: bool) -> dict[str, Any]:
    """The tuning loop over a sandbox, as a coordinator and a worker run it."""
    started = time.perf_counter()
    with Sandbox(target) as sandbox:
        engine = LocalEngine(max(1, usable_cores() // CORES_PER_SEARCH))
        if warm:
            warm_up(sandbox, engine, target)
            started = time.perf_counter()
        task = task_of(name, target)
        store = IssuedRecordStore()
        ledger = BudgetLedger([task], trials=trials, seconds=None, batch_size=BATCH)
        found = tuned(task, sandbox, engine, store, ledger, started)
        assert found.best is not None, "a confirming run serves the baseline at least"
        steadiness = sandbox.steadiness
        engine.shutdown(wait=False)
        known = batch_of_one(sandbox, task, found.best.trace)
        new = task_of(UNSEEN, target)
        unknown = batch_of_one(sandbox, new, new.baseline)
    results = [record.result for record in store.for_task(task.workload.digest, target)]
    return {
        "secs": found.search_secs,
        "trials": len(results),
        "timed": sum(isinstance(result, Timed) for result in results),
        "failures": sorted({result.kind.value for result in results if not isinstance(result, Timed)}),
        "trace": found.best.trace,
        "batch_of_one_secs": known,
        "batch_of_one_of_a_new_workload_secs": unknown,
        "steadiness": None if steadiness is None else steadiness.model_dump(),
    }


def run_stock(name: str, target: Target, trials: int, folder: str) -> dict[str, Any]:
    """What peers/metaschedule.py prints."""
    command = [str(STOCK), name, target.key, str(trials), str(SEED), folder]
    return run(command, {**os.environ, "PYTHONPATH": lean_path()})


def run(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that a child process prints last; what else it says is shown only if it fails."""
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def stock_trace(folder: Path, mod: Any, target: Target) -> str:
    """The schedule that stock would use: of its database's records, the fastest by its own ranking."""
    from tuner.tvm_compat import ms

    kind_of(target).load_intrinsics()  # Reading a record replays its trace.
    database = ms.database.JSONDatabase(work_dir=str(folder))
    (record,) = database.get_top_k(database.commit_workload(mod), 1)
    return encode_trace(record.trace)


def interleaved(task: Task, traces: Sequence[str]) -> list[Timed]:
    """All of them timed interleaved in one run, each in a fresh process."""
    candidates = [Candidate.of(task.workload.digest, trace) for trace in traces]
    with Sandbox(task.target) as sandbox:
        unique = list({candidate.digest: candidate for candidate in candidates}.values())
        results = sandbox.measure(task.workload, unique, MeasureConfig(), purpose=Purpose.CONFIRM)
        found = {result.candidate: result for result in results}
    timed = []
    for candidate in candidates:
        result = found[candidate.digest]
        if not isinstance(result, Timed):
            raise SystemExit(f"{task.name}: {result}")
        timed.append(result)
    return timed


def measure(name: str, target: Target, trials: int) -> dict[str, Any]:
    """One row: both sides in turn, then their winners interleaved."""
    with tempfile.TemporaryDirectory() as folder:
        stock = run_stock(name, target, trials, folder)
        side = [__file__, "--side", name, "--target", target.kind, "--trials", str(trials)]
        cold, mine = run(side), run([*side, "--warm"])
        task = task_of(name, target)
        stocks_best, our_best = interleaved(task, [stock_trace(Path(folder), program(name), target), mine["trace"]])
    return {
        "workload": name,
        "stock_trials": stock["trials"],
        "stock_timed": stock["timed"],
        "stock_failures": stock["failures"],
        "stock_secs": stock["secs"],
        "stock_trials_per_sec": stock["trials"] / stock["secs"],
        "our_trials": mine["trials"],
        "our_timed": mine["timed"],
        "our_failures": mine["failures"],
        "our_secs": mine["secs"],
        "our_trials_per_sec": mine["trials"] / mine["secs"],
        "trials_per_sec_ratio": mine["trials"] / mine["secs"] / (stock["trials"] / stock["secs"]),
        "our_cold_secs": cold["secs"],
        "cold_trials_per_sec_ratio": cold["trials"] / cold["secs"] / (stock["trials"] / stock["secs"]),
        "stock_median_secs": stocks_best.secs,
        "our_median_secs": our_best.secs,
        "our_median_interval_secs": [our_best.secs_low, our_best.secs_high],
        "stock_median_over_ours": stocks_best.secs / our_best.secs,
        **{key: mine[key] for key in ("batch_of_one_secs", "batch_of_one_of_a_new_workload_secs", "steadiness")},
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--target", choices=sorted(PROGRAMS), default="llvm")
    arguments.add_argument("--trials", type=int, default=TRIALS, help="of each side and program")
    arguments.add_argument("--side", metavar="NAME", help="run our side only, on one program, and print its result")
    arguments.add_argument("--warm", action="store_true", help="with --side: executor and sandbox have worked before")
    options = arguments.parse_args()
    target = target_here(options.target)
    if options.side:
        print(json.dumps(ours(options.side, target, options.trials, options.warm)))
        return
    trials = QUICK_TRIALS if options.quick else options.trials
    result: dict[str, Any] = {
        "environment": environment(gpu=target.kind == "cuda", trials=trials, target=target.attributes()),
        "rows": [],
    }
    result["environment"]["toolchain"] = toolchain(target).key
    for name in PROGRAMS[options.target]:
        result["rows"].append(measure(name, target, trials))
    rows = result["rows"]
    result["summary"] = {
        "trials_per_sec_ratio": min(row["trials_per_sec_ratio"] for row in rows),
        "cold_trials_per_sec_ratio": min(row["cold_trials_per_sec_ratio"] for row in rows),
        "median_trials_per_sec": statistics.median(row["our_trials_per_sec"] for row in rows),
        "worst_stock_median_over_ours": min(row["stock_median_over_ours"] for row in rows),
    }
    show(result, options.json)


if __name__ == "__main__":
    main()
