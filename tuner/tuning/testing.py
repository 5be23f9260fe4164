"""Fakes for tests of the tuning loop and of what drives it: no compiler, no process, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from typing import Any

from pitchpipe.wire.ids import new_id
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, CheckVerdict, Failed, Measurement, Timed
from pitchpipe.wire.record import TuningRecord
from pitchpipe.wire.target import DeviceFingerprint, Target, Toolchain
from pitchpipe.wire.task import Task, TaskKind, Workload
from tuner.search.requests import Proposal, ProposeRequest
from tuner.tuning.confirm import MeasuredBatch
from tuner.tuning.records import RecordStore

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
DEVICE = DeviceFingerprint(kind="cpu", model="a made-up processor", cores=2, memory_bytes=1 << 30)
TOOLCHAIN = Toolchain(tvm="0.27.0", tvm_ffi="0.1.14", codegen="LLVM 22")
PASSED = CheckVerdict(passed=True, max_abs_error=0.0, tolerance=1e-3, input_sets=3)


def fake_task(name: str, *, weight: int = 1, flops: float = 1e9, kind: TaskKind = TaskKind.TUNED) -> Task:
    """A task whose IR is empty, with a digest that follows from its name."""
    digest = f"{sum(ord(c) * 257**i for i, c in enumerate(name)):064x}"[-64:]
    return Task(
        workload=Workload(digest=digest, ir="{}"),
        target=TARGET,
        name=name,
        kind=kind,
        weight=weight,
        flops=flops,
        bytes=1.0,
        group=name,
        fixed='[["fixed"],[]]' if kind is TaskKind.FIXED else None,
    )


def timed(candidate: Candidate, secs: float, samples: int = 12) -> Timed:
    """A verified measurement whose samples exceed `secs` by less than 1 %."""
    run_secs = tuple(secs * (1 + 0.001 * (i % 10)) for i in range(samples))
    return Timed(candidate=candidate.digest, run_secs=run_secs, check=PASSED, build_secs=0.1)


class CannedExecutor(Executor):
    """An executor of `propose` that answers at once with the first `n` of a list of traces that were not seen before.

    With `error` set it raises that instead.
    """

    def __init__(self, traces: Sequence[str]) -> None:
        self.traces = traces
        self.requests: list[ProposeRequest] = []
        self.error: Exception | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ARG002
        future: Future[Any] = Future()
        request: ProposeRequest = args[0]
        self.requests.append(request)
        if self.error is not None:
            future.set_exception(self.error)
            return future
        candidates = (Candidate.of(request.workload.digest, trace) for trace in self.traces)
        fresh = [candidate for candidate in candidates if candidate.digest not in request.seen]
        future.set_result([Proposal(candidate=candidate, features=None) for candidate in fresh[: request.n]])
        return future


class MemoryMeasurer:
    """A Measurer whose times are `secs_of(task index, trace)` in seconds; a Failed that it returns is the result. Results
    are stored as records."""

    def __init__(
        self, tasks: Sequence[Task], records: RecordStore, secs_of: Callable[[int, str], float | Failed], ahead: int = 2
    ) -> None:
        self.tasks, self.records, self.secs_of, self.ahead = tasks, records, secs_of, ahead
        self.queued: list[MeasuredBatch] = []
        self.submitted: list[tuple[int, Purpose, int]] = []
        self.whole = True

    def submit(
        self,
        task: int,
        purpose: Purpose,
        proposals: Sequence[Proposal],
        incumbent_secs: float | None,  # noqa: ARG002
    ) -> int:
        """Measures at once; the next `collect` returns the batch. The number of candidates."""
        candidates = tuple(proposal.candidate for proposal in proposals)
        results = tuple(self._measure(task, candidate) for candidate in candidates)
        ids = tuple(new_id("rec") for _ in candidates)
        of = self.tasks[task]
        self.records.add(
            [
                TuningRecord(
                    id=record,
                    workload=of.workload.digest,
                    target=of.target,
                    trace=candidate.trace,
                    result=result,
                    device=DEVICE,
                    toolchain=TOOLCHAIN,
                    worker="wrk_test",
                    created_at=datetime.now(UTC),
                )
                for record, candidate, result in zip(ids, candidates, results, strict=True)
            ]
        )
        self.submitted.append((task, purpose, len(candidates)))
        self.queued.append(
            MeasuredBatch(
                task=task,
                purpose=purpose,
                candidates=candidates,
                results=results,
                records=ids,
                whole=self.whole,
                device_class=DEVICE.device_class,
                toolchain=TOOLCHAIN.key,
            )
        )
        return len(candidates)

    def collect(self) -> list[MeasuredBatch]:
        """The batches that were submitted since the last call."""
        ended, self.queued = self.queued, []
        return ended

    def has_capacity(self, waiting: int) -> bool:
        """True while fewer than `ahead` batches are searched for or measured."""
        return len(self.queued) + waiting < self.ahead

    def withdraw(self, purposes: Sequence[Purpose]) -> None:
        """Nothing waits: all is measured at once."""

    def parallel(self) -> int:
        """One."""
        return 1

    def _measure(self, task: int, candidate: Candidate) -> Measurement:
        outcome = self.secs_of(task, candidate.trace)
        if isinstance(outcome, Failed):
            return outcome.model_copy(update={"candidate": candidate.digest})
        return timed(candidate, outcome)


class NoPredictor:
    """A Predictor without a cost model."""

    def latest(self) -> bytes | None:
        """None."""
        return None

    def observe(self, measured: int) -> None:
        """Ignores it."""
