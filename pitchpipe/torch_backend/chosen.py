"""What Dynamo calls: the graph as it captured it, until the compiled program has been built, compared and timed.

A program has a bucket for each set of rounded sizes (dynamic.py; one, where sizes are known), and a bucket a way:

    prepared and built beside the program -> compared with PyTorch at the caller's own sizes -> timed -> decided

Whatever a call waits for comes out of one allowance of the process (beside.py): the first call waits for a build as long as
that lasts, and a trial takes what is left of it; then the call runs as PyTorch would, and a later one goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import compiled_autograd

from pitchpipe.deploy.artifact import cache_dir
from pitchpipe.deploy.identity import write_json
from pitchpipe.torch_backend import paired_benchmark
from pitchpipe.torch_backend.beside import Task, allowance, process_ends
from pitchpipe.torch_backend.dynamic import SMALLEST, bucket, read, symbols
from pitchpipe.torch_backend.graphs import Key, key_of
from pitchpipe.torch_backend.part import Part
from pitchpipe.torch_backend.program import Program, built
from pitchpipe.torch_backend.rehearsal import Rehearsal, Shared
from pitchpipe.torch_backend.report import BucketReport, ProgramReport
from pitchpipe.torch_backend.warning import warn_once
from pitchpipe.wire.ids import sha256

Run = Callable[..., Any]
MOST = 8
"""Buckets of one program that are compiled; further sizes run eagerly."""
MOST_TRIALS = 4
"""Sizes of one bucket that are timed. After them a size without an answer runs eagerly."""
MOST_COMPARED = 16
"""Sizes of one bucket whose results are compared before they are used. The proof that rows are independent covers all."""


class Bucket:
    """What is known of one set of rounded sizes."""

    def __init__(self, sizes: dict[str, int], report: BucketReport) -> None:
        self.sizes, self.report = sizes, report
        self.parts: list[Part] = []
        self.task: Task | None = None
        self.waited_for = False
        """Whether a call has waited for its build."""
        self.benchmarks: dict[Key, paired_benchmark.PairedBenchmark] = {}
        """By the caller's sizes."""
        self.compared: set[Key] = set()
        self.wins_from = float("inf")
        """Least share of the padded rows that are the caller's with which the compiled side wins."""
        self.loses_to = float("-inf")
        """Largest with which it loses."""

    def answer(self, share: float) -> bool | None:
        """Whether the compiled side runs calls with that share; None when that has to be found out."""
        if share >= self.wins_from:
            return True
        return False if share <= self.loses_to else None

    def learn(self, share: float, verdict: paired_benchmark.Verdict) -> None:
        """The compiled side takes as long for fewer rows; PyTorch takes shorter, at most in proportion. So they break even
        where the share is that of this benchmark over its ratio, or closer to it: between here and there nothing changes."""
        even = share if verdict.ratio is None else share / (verdict.ratio * paired_benchmark.MARGIN)
        if verdict.use:
            self.wins_from = min(self.wins_from, even, share)
        else:
            self.loses_to = max(self.loses_to, even if verdict.ratio is not None else 1.0, share)

    def never(self, reason: str) -> None:
        """It runs as PyTorch would, whatever the sizes."""
        self.loses_to, self.wins_from = 1.0, float("inf")
        self.report.runs, self.report.reason = "eager", reason


class Chosen:
    """Called with the arguments of the captured graph. Thread-safe."""

    def __init__(
        self, program: Program, captured: Any, eager: Run, compiled: Run, inputs: Sequence[Any], patience_secs: float
    ) -> None:
        """eager: what runs the captured graph as PyTorch would. inputs: what it was captured with, sizes as symbols.
        patience_secs: what a process may be made to wait."""
        self._program, self._eager, self._compiled = program, eager, compiled
        self._patience_secs = patience_secs
        self._run: Run | None = None
        self._buckets: dict[Key, Bucket] = {}
        self._trying = threading.Lock()
        self._starting = threading.Lock()
        self._stepping = torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in inputs
        )
        self._places: dict[str, tuple[int, int | None]] = {}
        try:
            self._places = {str(symbol): place for symbol, place in symbols(inputs).items()}
        except ValueError as error:
            program.failed = str(error)
        if program.failed is None and not program.symbols <= set(self._places):
            program.failed = "a size that none of the program's arguments tells"
        self._padded = program.padded if program.failed is None else frozenset()
        self._types = [_type_text(one) for one in inputs] if not self._places else []
        self._code = sha256(getattr(captured, "gm", captured).code.encode())
        if program.failed is not None or not program.graphs:
            self._decide(self._eager, "eager", program.failed or "nothing was captured")
        elif not self._places:
            self._bucket({})  # its building begins now, not at the first call

    @property
    def report(self) -> ProgramReport:
        return self._program.report

    def found_something(self) -> bool:
        """Whether a part of it may run compiled code of ours, as far as the allowance is enough to know. True where that
        depends on sizes."""
        if self._places:
            return True
        for found in self._buckets.values():
            assert found.task is not None
            with allowance.spending():
                there = allowance.wait_for(found.task, self._patience_secs)
            return there and found.loses_to < 1.0
        return False

    def __call__(self, *arguments: Any) -> Any:
        return (self._run or self._chosen(arguments))(*arguments)

    def _chosen(self, arguments: Sequence[Any]) -> Run:
        try:
            sizes = read(self._places, arguments)
            if any(sizes[name] < SMALLEST for name, (_, axis) in self._places.items() if axis is not None):
                return self._eager
            found = self._bucket(sizes)
            if found is None:
                return self._eager
            share = prod(size / found.sizes[name] for name, size in sizes.items() if name in self._padded)
            key = key_of(sizes)
            if found.answer(share) is None or not self._is_compared(found, key, share):
                self._find_out(found, sizes, share, arguments)
            use = found.answer(share) is True and self._is_compared(found, key, share)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            warn_once("choice", f"the model runs in eager mode: {error}")
            self._decide(self._eager, "eager", str(error))
            return self._eager
        if not use:
            self._program.report.eager_calls += 1
        if not self._places and found.answer(share) is not None:
            self._decide(self._guarded if use else self._eager, found.report.runs, found.report.reason)
        return self._guarded if use else self._eager

    def _is_compared(self, found: Bucket, key: Key, share: float) -> bool:
        return found.answer(share) is not True or key in found.compared or len(found.compared) >= MOST_COMPARED

    def _bucket(self, sizes: dict[str, int]) -> Bucket | None:
        """The bucket of such sizes, whose way has begun; None when there are too many."""
        rounded = {name: bucket(size) if name in self._padded else size for name, size in sizes.items()}
        key = key_of(rounded)
        found = self._buckets.get(key)
        if found is not None and not (found.task is not None and found.task.lost):
            return found
        with self._starting:
            found = self._buckets.get(key)
            if found is None or (found.task is not None and found.task.lost):
                if len(self._buckets) >= MOST:
                    warn_once("sizes", f"more than {MOST} sizes of one graph: others run in eager mode")
                    return None
                report = BucketReport(sizes=rounded)
                self._program.report.buckets.append(report)
                found = self._buckets[key] = Bucket(rounded, report)
                made = found
                found.task = Task(lambda: self._build(made), "torch-compile")
        return found

    def _build(self, found: Bucket) -> None:
        """Prepares and builds the bucket's graphs, in a thread beside the program."""
        try:
            prepared = self._program.prepare(found.sizes)
            found.parts = [part for one in prepared for part in one.parts]
            verdict = None if self._places else paired_benchmark.known(self._file(found, self._types))
            if verdict is not None and not verdict.use:  # nothing needs to be built
                self._learn(found, {}, 1.0, verdict)
                return
            built(prepared)
            if not any(part.compiled for part in found.parts):
                raise NothingCompiled(_reasons(found.parts))
            found.report.built = True
        except NothingCompiled as error:
            self._give_up(found, str(error))
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            if not process_ends():
                warn_once("prepare", f"a graph runs in eager mode: {error}")
            self._give_up(found, str(error))

    def _find_out(self, found: Bucket, sizes: dict[str, int], share: float, arguments: Sequence[Any]) -> None:
        """As much as the allowance is enough for."""
        key, left_secs = key_of(sizes), allowance.left_secs(self._patience_secs)
        if left_secs < 0 or (key not in found.benchmarks and len(found.benchmarks) >= MOST_TRIALS):
            return
        if not self._trying.acquire(blocking=self._program.random):
            return
        try:
            assert found.task is not None
            until = time.monotonic() + left_secs
            with allowance.spending():
                there = allowance.wait_for(found.task, 0.0 if found.waited_for else self._patience_secs)
                found.waited_for = True
                if there and found.loses_to < 1.0:
                    self._go_on(found, sizes, share, arguments, until)
        finally:
            self._trying.release()

    def _go_on(
        self, found: Bucket, sizes: dict[str, int], share: float, arguments: Sequence[Any], until: float
    ) -> None:
        key = key_of(sizes)
        mutated = self._program.mutated if len(arguments) == self._program.arguments else range(len(arguments))
        try:
            computed = self._program.computed
            rehearsal = Rehearsal(arguments, mutated, stepping=self._stepping, computed=computed)
            if found.answer(share) is True:  # a size that was not timed, and need not be
                with _Trial(self._program, None):
                    wrong = paired_benchmark.compared(*self._sides(found, rehearsal))
                verdict = None if wrong is None else paired_benchmark.Verdict(use=False, reason=wrong)
            else:
                verdict = self._verdict(found, key, rehearsal, arguments, until)
                if verdict is None:
                    return
        except (NothingCompiled, Shared) as error:
            self._give_up(found, str(error))
            return
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            warn_once("paired benchmark", f"the model runs in eager mode: {error}")
            self._give_up(found, str(error))
            return
        found.compared.add(key)
        if verdict is not None:
            self._learn(found, sizes, share, verdict)

    def _give_up(self, found: Bucket, reason: str) -> None:
        """The bucket runs as PyTorch would; so does the program, as long as no other bucket says otherwise."""
        found.never(reason)
        told = self._program.report
        if told.runs == "undecided":
            told.runs, told.reason = "eager", reason

    def _learn(self, found: Bucket, sizes: dict[str, int], share: float, verdict: paired_benchmark.Verdict) -> None:
        report = found.report
        if verdict.secs is None and not verdict.use:
            warn_once(self._code, f"the model runs in eager mode: {verdict.reason}")
            found.never(verdict.reason)
        found.learn(share, verdict)
        report.tried.append(dict(sizes))
        report.runs, report.reason = "pitchpipe" if verdict.use else "eager", verdict.reason
        report.secs, report.eager_secs = verdict.secs, verdict.eager_secs
        told = self._program.report
        told.runs, told.reason, told.secs, told.eager_secs = report.runs, report.reason, report.secs, report.eager_secs

    def _verdict(
        self, found: Bucket, key: Key, rehearsal: Rehearsal, arguments: Sequence[Any], until: float
    ) -> paired_benchmark.Verdict | None:
        """The kept one, or what the paired benchmark finds within the time; None when it has to go on later."""
        file = self._file(found, self._types if not self._places else [_type_text(one) for one in arguments])
        with paired_benchmark.turn_of(file) as mine:
            verdict = paired_benchmark.known(file)
            if verdict is None and mine:
                benchmark = found.benchmarks.setdefault(key, paired_benchmark.PairedBenchmark())
                with _Trial(self._program, until):
                    rehearsal(self._compiled)  # in which the partitions are decided
                    if not all(part.decided for part in found.parts):
                        return None
                    if not any(part.compiled for part in found.parts):
                        raise NothingCompiled(_reasons(found.parts))
                    ours, theirs, nudged = self._sides(found, rehearsal)
                    verdict = benchmark.go_on(ours, theirs, nudged=nudged, until=until)
                if verdict is not None:
                    write_json(file, verdict)
        return verdict

    def _file(self, found: Bucket, types: Sequence[str]) -> Path:
        """Of the verdict on calls with arguments of such types."""
        specs = sorted(part.key for part in found.parts if part.key is not None)
        return paired_benchmark.verdict_file(cache_dir(), "program", self._code, types, self._stepping, specs)

    def _sides(self, found: Bucket, rehearsal: Rehearsal) -> tuple[Any, Any, Any]:
        def ours() -> paired_benchmark.Outcome:
            if self._stepping:  # an optimiser changes the weights between steps
                for part in found.parts:
                    part.forget_weights()
            return rehearsal(self._compiled)

        nudged = (lambda: rehearsal.nudged()(self._eager)) if self._stepping else None
        return ours, lambda: rehearsal(self._eager), nudged

    def _guarded(self, *arguments: Any) -> Any:
        try:
            return self._compiled(*arguments)
        except Exception as error:  # noqa: BLE001 - the program's own error is raised again by the captured graph
            found = self._eager(*arguments)
            warn_once("run", f"the model goes on in eager mode: {error}")
            self._decide(self._eager, "eager", str(error))
            return found

    def _decide(self, run: Run, runs: str, reason: str) -> None:
        self._program.report.runs, self._program.report.reason = runs, reason
        self._run = run


class NothingCompiled(Exception):
    """There is nothing to try; the message says why."""


class _Trial:
    """Around runs that are no call of the program: its partitions take part until then, random states are put back."""

    def __init__(self, program: Program, until: float | None) -> None:
        self._program, self._until = program, until
        gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        self._inside = (compiled_autograd._disable(), torch.random.fork_rng(gpus))

    def __enter__(self) -> None:
        for one in self._inside:
            one.__enter__()
        self._program.trials.begin(self._until)

    def __exit__(self, *error: Any) -> None:
        self._program.trials.until = None
        for one in reversed(self._inside):
            one.__exit__(*error)


def _reasons(parts: Sequence[Part]) -> str:
    reasons = {part.report.reason for part in parts if part.report.reason}
    return "; ".join(sorted(reasons)) or "no part of it is compiled"


def _type_text(one: Any) -> str:
    if isinstance(one, torch.Tensor):
        return f"{one.dtype}{list(one.shape)}{list(one.stride())}{one.device}{one.requires_grad}"
    return type(one).__name__ if not isinstance(one, int) else str(one)
