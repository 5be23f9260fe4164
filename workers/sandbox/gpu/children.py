"""The two kinds of children of a CUDA task process.

A builder (one per candidate, confined, many at a time) applies a trace and compiles it, without a GPU, and leaves the
program in memory that it shares with its parent. A runner holds the GPU: the context, the inputs of all sets, and the
programs that it is given, which it checks and times: of a search one at a time, of a confirming run all of them. They send:

    builder   Applied, then Compiled; or Fault
    runner    Started or Broken; then one answer to each request: Sampled to TRIAL, Warmed to WARM and WARM_BRIEFLY, Sample
              to SAMPLE and BEAT; or Fault
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap

from pitchpipe.errors import InvalidTrace, NoDevice
from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig
from tuner.measure.build import apply
from tuner.measure.candidate import Bench, Measuring, WrongOutput
from tuner.measure.cuda_driver import CudaError
from tuner.measure.device_compiler import MAX_CODE_BYTES, DeviceCompiler
from tuner.measure.gpu import DeviceProgram, GpuDevice
from tuner.measure.gpu_code import compile_program
from tuner.templates import assembler
from tuner.templates import compiler as templates
from tuner.templates.text import is_template
from workers.sandbox.messages import Applied, Broken, Compiled, Fault, Sample, Sampled, Started, Warmed
from workers.sandbox.nursery import Line
from workers.sandbox.report import last_line

TRIAL, WARM, WARM_BRIEFLY, SAMPLE, BEAT = b"t", b"w", b"c", b"s", b"b"
"""Requests to a runner: check and time the program in the inbox; check it and keep it loaded as program n; the same, with
the first input set alone; take one sample of program n; time the heartbeat kernel."""
MAX_PROGRAM_BYTES = MAX_CODE_BYTES + (1 << 20)
REQUEST = struct.Struct("=Qd")
"""Head of the inbox: size of the program that follows in bytes, and the incumbent's seconds (NaN for none)."""
INBOX_BYTES = REQUEST.size + MAX_PROGRAM_BYTES
_RUN_SHARE = 0.8
"""Share of the run's time limit that sampling may use; the rest is for the checks after it."""


def builder_body(bench: Bench, candidate: Candidate, compiler: DeviceCompiler, slot: mmap) -> Callable[[Line], None]:
    """The function that a builder runs: it compiles a candidate and writes the program into `slot`."""

    def body(line: Line) -> None:
        start = time.perf_counter()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # NVRTC would look for GPUs, which costs more than a compilation.
        try:
            mod = apply(bench.mod, candidate.trace)
        except InvalidTrace as error:
            line.send(Fault(kind=FailureKind.INVALID_SCHEDULE, detail=last_line(error)))
            return
        line.send(Applied())
        try:
            data = encode(compile_program(mod, bench.tvm_target, bench.properties, compiler))
            slot[: len(data)] = data
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met
            line.send(Fault(kind=FailureKind.BUILD_ERROR, detail=last_line(error)))
            return
        line.send(Compiled(size_bytes=len(data), build_secs=time.perf_counter() - start))

    return body


def start_assembler(candidate: Candidate, compiler: DeviceCompiler) -> None:
    """For a template: starts the assembler, which waits for the builder that will be confined."""
    if is_template(candidate.trace) and templates.available():
        with suppress(assembler.AssemblerError):  # The build will say that there is none.
            assembler.start(assembler.machine(compiler.arch), 1)


def request(program: bytes, incumbent_secs: float | None) -> bytes:
    """The content of the inbox for a TRIAL."""
    return REQUEST.pack(len(program), math.nan if incumbent_secs is None else incumbent_secs) + program


def runner_body(bench: Bench, config: MeasureConfig, heartbeat: bytes, inbox: mmap) -> Callable[[Line], None]:
    """The function that a runner runs."""

    def body(line: Line) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # The output of kernels is dropped.
        try:
            device = GpuDevice(bench, heartbeat)
            device.beat()
        except (CudaError, NoDevice) as error:
            line.send(Broken(reason=last_line(error)))
            return
        runner = _Runner(device, config, inbox)
        line.send(Started(uuid=device.uuid))
        while True:
            told, number = line.wait()
            line.send(runner.answer(told, number))

    return body


class _Runner:
    def __init__(self, device: GpuDevice, config: MeasureConfig, inbox: mmap) -> None:
        self._device, self._config, self._inbox = device, config, inbox
        self._warm: dict[int, tuple[Measuring, int]] = {}

    def answer(self, told: bytes, number: float) -> Sampled | Warmed | Sample | Fault:
        """Carries out a request and returns the report. Raises nothing that a candidate can cause."""
        try:
            if told == BEAT:
                return Sample(secs=self._device.beat())
            if told == TRIAL:
                return self._trial()
            if told in (WARM, WARM_BRIEFLY):
                return self._make_warm(int(number), briefly=told == WARM_BRIEFLY)
            measuring, calls = self._warm[int(number)]
            return Sample(secs=measuring.warmed_sample(calls))
        except WrongOutput as error:
            return Fault(kind=FailureKind.WRONG_OUTPUT, detail=last_line(error))
        except CudaError as error:
            if error.of_device:
                return Fault(kind=FailureKind.DEVICE_ERROR, detail=last_line(error), spent=error.spent)
            return Fault(kind=FailureKind.RUN_ERROR, detail=last_line(error), spent=error.spent)
        except Exception as error:  # noqa: BLE001 - a program that makes no sense
            return Fault(kind=FailureKind.RUN_ERROR, detail=last_line(error), spent=True)

    def _given(self) -> tuple[DeviceProgram, float]:
        """(the program in the inbox, loaded; the incumbent's seconds)."""
        size, incumbent_secs = REQUEST.unpack(self._inbox[: REQUEST.size])
        program = decode(self._inbox[REQUEST.size : REQUEST.size + size])
        return DeviceProgram(self._device, program), incumbent_secs

    def _trial(self) -> Sampled:
        running, incumbent_secs = self._given()
        measuring = Measuring(self._device.bench, running)
        try:
            sampled = measuring.search(
                self._config,
                None if math.isnan(incumbent_secs) else incumbent_secs,
                self._config.run_timeout_secs * _RUN_SHARE,
            )
        except Exception:
            with suppress(CudaError):  # The context may be dead; the first error is the one to report.
                running.close()
            raise
        running.close()
        return Sampled(
            run_secs=sampled.secs,
            calls=sampled.calls,
            stop=sampled.stop,
            check=measuring.verdict(),
            check_secs=measuring.check_secs,
            clock_hz=self._device.clock.hz(),
        )

    def _make_warm(self, number: int, *, briefly: bool) -> Warmed:
        running, _ = self._given()
        measuring = Measuring(self._device.bench, running)
        sets = list(self._device.bench.reference_outputs)
        calls, secs = measuring.warm(self._config, measuring.check(sets[:1] if briefly else sets))
        self._warm[number] = measuring, calls
        return Warmed(calls=calls, secs=secs, check=measuring.verdict(), clock_hz=self._device.clock.hz())
