"""The process of one workload on CUDA: as workers/sandbox/cpu/process.py, but its candidates share one runner.

    zygote
      └─ task process       holds inputs and reference outputs; never touches the GPU
           ├─ builders      one per candidate, confined: no GPU, no file, no process (workers/sandbox/gpu/children.py)
           └─ runner        the only processes with a context on the GPU: one of a search, kept for 30 idle seconds, or the
                            fresh ones of a confirming run

A batch is measured in workers/sandbox/gpu/search.py or confirm.py.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from mmap import mmap

from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig
from pitchpipe.wire.target import Target
from tuner.measure import quiet
from tuner.measure.build import warm_up
from tuner.measure.device_compiler import DeviceCompiler, NotCompiled
from tuner.measure.gpu import HEARTBEAT_SOURCE
from tuner.measure.gpu_code import lower
from tuner.templates import compiler as templates
from tuner.tvm_compat import IRModule, Schedule, te, to_tvm_target
from workers.sandbox.channel import Channel
from workers.sandbox.cpu.process import Cancelled, TaskProcess, Unusable, run_forked
from workers.sandbox.gpu.children import INBOX_BYTES, MAX_PROGRAM_BYTES, builder_body, runner_body, start_assembler
from workers.sandbox.gpu.confirm import ConfirmRun
from workers.sandbox.gpu.runners import Runner
from workers.sandbox.gpu.search import SearchRun
from workers.sandbox.messages import Batch, End, FromChild, Open, ToTask
from workers.sandbox.nursery import MAX_OUTPUT_BYTES, Child, Ended, Limits, Line
from workers.sandbox.report import failed

_POLL_SECS = 0.5
_RUNNER_CPU_SECS = 1e6
"""A runner waits for the GPU by spinning, so it has no limit of processor time; every request has a deadline."""
_COMPILER_FILE_BYTES = 1 << 28
"""Limit of file sizes for builders that use nvcc, which writes intermediate files."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the zygote compiled for all its task processes."""

    compiler: DeviceCompiler
    heartbeat: bytes
    """Machine code of the heartbeat kernel."""


def prepare(target: Target) -> Callable[[Channel[ToTask]], None]:
    """Prepares the zygote for the target: warms up the compilers and compiles the heartbeat kernel. Returns the function
    that its forks run.

    Starts no thread, touches no GPU. Raises NotCompiled.
    """
    warm_up(target)
    assert target.arch is not None
    compiler = DeviceCompiler(target.arch)
    if templates.available():
        templates.warm_up(target.arch)
    n = 64
    a, b = (te.placeholder((n, n), "float16", name=name) for name in "ab")
    k = te.reduce_axis((0, n), name="k")
    product = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    schedule = Schedule(IRModule({"main": te.create_prim_func([a, b, product])}))
    i, j, _ = schedule.get_loops(schedule.get_sblock("c"))
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")
    lower(schedule.mod, to_tvm_target(target))
    prepared = Prepared(compiler=compiler, heartbeat=_in_fork(lambda: compiler.compile(HEARTBEAT_SOURCE)))
    return lambda channel: run_forked(channel, lambda opened: GpuTaskProcess(channel, opened, prepared))


def _in_fork(make: Callable[[], bytes]) -> bytes:
    """The result of `make`, of at most a megabyte, called in a fork. Raises NotCompiled when that fails."""
    shared = mmap(-1, 1 << 20)
    pid = os.fork()
    if pid == 0:
        try:
            data = make()
            shared[: 4 + len(data)] = len(data).to_bytes(4, "little") + data
        except BaseException:  # noqa: BLE001 - nothing above to tell
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    size = int.from_bytes(shared[:4], "little")
    if not size:
        raise NotCompiled("the heartbeat kernel does not compile")
    return bytes(shared[4 : 4 + size])


class GpuTaskProcess(TaskProcess):
    """The task process of a GPU workload. A context manager; leaving it ends every child."""

    rest_after_secs = 30.0
    """Seconds without a batch after which the GPU's memory is freed."""

    def __init__(self, channel: Channel[ToTask], opened: Open, prepared: Prepared) -> None:
        super().__init__(channel, opened, None)
        self._compiled = prepared
        self.runner: Runner | None = None
        self.inbox = mmap(-1, INBOX_BYTES)

    @cached_property
    def slots(self) -> Sequence[mmap]:
        return [mmap(-1, MAX_PROGRAM_BYTES) for _ in range(max(1, self.parallel_builds - 1))]

    def builder_body(self, candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
        return builder_body(self._prepared(), candidate, self._compiled.compiler, slot)

    def before_building(self, candidate: Candidate) -> None:
        start_assembler(candidate, self._compiled.compiler)

    def measure(self, batch: Batch) -> None:
        """Sends one Measured per candidate, unless the batch is cancelled, then End."""
        try:
            self._prepared()
            made = ConfirmRun if batch.purpose is Purpose.CONFIRM else SearchRun
            with made(self, batch) as run:
                run.run()
        except (Cancelled, quiet.Abandoned):
            pass
        except Unusable as unusable:
            self._nursery.close()
            for candidate in batch.candidates:
                self.send(failed(candidate, unusable.kind, unusable.detail))
        self._channel.send(End())

    def rest(self) -> None:
        """Ends the runner, which frees the GPU's memory until the next batch."""
        self._nursery.close()
        self.runner = None

    def events(self, timeout_secs: float = _POLL_SECS) -> list[tuple[Child, FromChild | Ended]]:
        if self.abandoned():
            raise Cancelled
        return self._nursery.events(timeout_secs, self._channel.fileno())

    def runner_body(self, config: MeasureConfig) -> Callable[[Line], None]:
        return runner_body(self._prepared(), config, self._compiled.heartbeat, self.inbox)

    def builder_limits(self, config: MeasureConfig) -> Limits:
        in_process = self._compiled.compiler.in_process
        return Limits(
            memory_bytes=config.memory_limit_bytes,
            cpu_secs=config.build_timeout_secs * 2,
            confined=self._opened.confined and in_process,
            file_bytes=MAX_OUTPUT_BYTES if in_process else _COMPILER_FILE_BYTES,
        )

    def runner_limits(self, config: MeasureConfig) -> Limits:
        return Limits(memory_bytes=config.memory_limit_bytes, cpu_secs=_RUNNER_CPU_SECS, reserves=True, confined=False)
