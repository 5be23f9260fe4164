"""Builders of templates, through the real nursery: confined, without a GPU, with nothing but the assembler beside them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from mmap import mmap

import pytest

from pitchpipe.gpu.encoding import decode
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.measure import Candidate, FailureKind, MeasureConfig
from tests.compiler.gpu_programs import HOPPER
from tests.compiler.half_workloads import dense
from tuner.measure.candidate import Bench
from tuner.measure.device_compiler import DeviceCompiler
from tuner.templates import compiler
from workers.sandbox.builders import Builders
from workers.sandbox.gpu.children import MAX_PROGRAM_BYTES, builder_body, start_assembler
from workers.sandbox.nursery import Ended, Limits, Line, Nursery

CONFIG = MeasureConfig(build_timeout_secs=120)


class Host:
    """A task process as builders see it."""

    def __init__(self) -> None:
        self.nursery = Nursery()
        self.slots = [mmap(-1, MAX_PROGRAM_BYTES) for _ in range(2)]
        self.compiler = DeviceCompiler("sm_90a")
        self.bench: Bench | None = None

    def builder_body(self, candidate: Candidate, slot: mmap) -> Callable[[Line], None]:
        assert self.bench is not None
        return builder_body(self.bench, candidate, self.compiler, slot)

    def before_building(self, candidate: Candidate) -> None:
        start_assembler(candidate, self.compiler)

    def builder_limits(self, config: MeasureConfig) -> Limits:
        return Limits(memory_bytes=config.memory_limit_bytes, cpu_secs=config.build_timeout_secs)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    compiler.warm_up("sm_90a")
    made = Host()
    yield made
    made.nursery.close()


def test_a_confined_builder_makes_programs_of_templates_beside_traces(host: Host) -> None:
    workload = dense(64, 96, 128)
    points = [one.text for one in kind_of(HOPPER).templates(workload, HOPPER)[:2]]
    trace = kind_of(HOPPER).default_trace(workload, HOPPER)
    wrong = points[0].replace('-1"', '-0"')
    assert wrong != points[0]
    candidates = [Candidate.of(workload.digest, text) for text in (*points, trace, wrong)]
    failures: list[tuple[Candidate, FailureKind, str]] = []
    host.bench = Bench(workload.ir, HOPPER, 0)
    builders = Builders(host, candidates, CONFIG, lambda *failure: failures.append(failure))
    while builders.pending:
        builders.spawn()
        for child, event in host.nursery.events(0.5):
            builders.absorb(child, event)
    assert [(one.trace, kind) for one, kind, _ in failures] == [(wrong, FailureKind.INVALID_SCHEDULE)]
    programs = {built.candidate.trace: decode(built.program) for built in builders.ready}
    assert set(programs) == {*points, trace}
    assert all(launch.programmatic for text in points for launch in programs[text].run)


def test_a_builder_may_start_nothing_once_its_assembler_waits(host: Host) -> None:
    point = kind_of(HOPPER).templates(dense(64, 96, 128), HOPPER)[0].text
    candidate = Candidate.of("0" * 64, point)

    def body(_: Line) -> None:
        os.write(1, b"alive")
        subprocess.run(["/bin/true"], check=True)
        os._exit(0)

    limits = host.builder_limits(CONFIG)
    child = host.nursery.spawn(body, limits, deadline_secs=60, first=partial(host.before_building, candidate))
    events = []
    while not any(isinstance(event, Ended) for event in events):
        events += [event for found, event in host.nursery.events(1.0) if found is child]
    (ended,) = events
    assert isinstance(ended, Ended)
    assert ended.signal is not None
    assert "alive" in ended.output
