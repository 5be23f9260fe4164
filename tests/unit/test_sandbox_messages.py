from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys

import pytest
from pydantic import TypeAdapter, ValidationError

from pitchpipe.wire._base import Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind, MeasureConfig, Stop, Timed
from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.target import Target
from tuner.tuning.testing import PASSED
from workers.sandbox import messages
from workers.sandbox.channel import Channel, Closed
from workers.sandbox.messages import FROM_CHILD, FROM_TASK, FROM_ZYGOTE, TO_TASK, TO_ZYGOTE, complaint, decode, encode

TARGET = Target.parse({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
CANDIDATE = Candidate.of("0" * 64, BASELINE_TRACE, predicted=0.1)
TIMED = Timed(candidate="1" * 64, run_secs=(1e-7 / 3, 0.1 + 0.2), check=PASSED, build_secs=1 / 3)
CONFIG = MeasureConfig(seed=7)
EXPECTED: list[tuple[TypeAdapter[object], tuple[Wire, ...]]] = [
    (TO_ZYGOTE, (messages.Fork(), messages.Kill(pid=4))),
    (FROM_ZYGOTE, (messages.Ready(), messages.Fatal(reason="no\nwords"), messages.Forked(pid=4))),
    (
        TO_TASK,
        (
            messages.Open(ir="{}", target=TARGET, config=CONFIG, parallel_builds=2, confined=True),
            messages.MeasureRoofline(target=TARGET),
            messages.Batch(
                candidates=(CANDIDATE,), config=CONFIG, purpose=Purpose.SEARCH, incumbent_secs=1 / 7, usual_secs=None
            ),
            messages.Cancel(),
        ),
    ),
    (
        FROM_TASK,
        (
            messages.Holds(held_bytes=1 << 33),
            messages.Beat(secs=1 / 3),
            messages.Repeated(),
            messages.Phase(name="check and time", began=1.7e9 + 1 / 3, ended=1.7e9 + 0.5),
            messages.Measured(result=TIMED),
            messages.Measured(result=Failed(candidate="1" * 64, kind=FailureKind.RUN_ERROR, detail="\x00\ud7ff")),
            messages.End(),
            messages.Alive(),
            messages.RooflineMeasured(
                roofline=Roofline(
                    threads=2, flops_per_sec=1e11, levels=(MemoryLevel(name="L1d", inside_bytes=0, bytes_per_sec=1e12),)
                )
            ),
        ),
    ),
    (
        FROM_CHILD,
        (
            messages.Applied(),
            messages.Waiting(build_secs=1 / 3),
            messages.Compiled(size_bytes=1 << 20, build_secs=0.0),
            messages.Started(uuid="GPU-1"),
            messages.Broken(reason="no such device"),
            messages.Warmed(calls=3, secs=1e-3, check=PASSED, clock_hz=1.98e9),
            messages.Sample(secs=1e-7 / 3),
            messages.Sampled(run_secs=(1e-7 / 3, 0.1 + 0.2), calls=1, stop=Stop.SLOW, check=PASSED),
            messages.Fault(kind=FailureKind.WRONG_OUTPUT, detail="\x00\n", spent=True),
            messages.ReferenceComputed(finite=False),
        ),
    ),
]
CASES = [(adapter, message) for adapter, sent in EXPECTED for message in sent]


@pytest.mark.parametrize(("adapter", "message"), CASES, ids=[type(message).__name__ for _, message in CASES])
def test_a_message_arrives_as_it_was_sent_on_one_line(adapter: TypeAdapter[object], message: Wire) -> None:
    data = encode(message)
    assert b"\n" not in data
    assert decode(data, adapter) == message


def test_every_message_is_among_those_that_are_tried_here() -> None:
    defined = {
        kind for kind in vars(messages).values() if isinstance(kind, type) and kind.__module__ == messages.__name__
    }
    assert defined == {type(message) for _, message in CASES}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"message": "open"}',
        b'{"message": "fork"}',
        b'{"message": "beat", "secs": "NaN"}',
        b'{"message": "beat", "secs": 0.1, "more": 1}',
        b'{"message": "measured", "result": {"outcome": "timed", "candidate": "x"}}',
        b"\xff",
    ],
)
def test_what_is_no_message_of_a_task_process_ends_the_channel(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!I", len(data)) + data)
        with pytest.raises(Closed, match="makes no sense"):
            Channel(ours, FROM_TASK).receive(1.0)


SAMPLED = {
    "message": "sampled",
    "run_secs": [1e-3],
    "calls": 1,
    "stop": "precise",
    "check": {"passed": True, "max_abs_error": 0.0, "tolerance": 1.0, "input_sets": 3},
}


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ({"message": "applied", "candidate": CANDIDATE.model_dump()}, "applied.candidate"),
        ({"message": "sample"}, "sample.secs"),
        ({"message": "sample", "secs": "0.1"}, "sample.secs"),
        ({"message": "sample", "secs": True}, "sample.secs"),
        ({"message": "sample", "secs": 0.0}, "sample.secs"),
        ({"message": "sample", "secs": float("nan")}, "sample.secs"),
        ({"message": "sample", "secs": 1e300}, "sample.secs"),
        ({"message": "waiting", "build_secs": float("inf")}, "waiting.build_secs"),
        ({"message": "compiled", "size_bytes": 1.0, "build_secs": 0.1}, "compiled.size_bytes"),
        ({"message": "compiled", "size_bytes": 0, "build_secs": 0.1}, "compiled.size_bytes"),
        (SAMPLED | {"run_secs": []}, "sampled.run_secs"),
        (SAMPLED | {"run_secs": 1e-3}, "sampled.run_secs"),
        (SAMPLED | {"run_secs": [1e-3, None]}, "sampled.run_secs.1"),
        (SAMPLED | {"calls": 0}, "sampled.calls"),
        (SAMPLED | {"stop": "won"}, "sampled.stop"),
        (SAMPLED | {"check": None}, "sampled.check"),
        (SAMPLED | {"build_secs": 0.1}, "sampled.build_secs"),
        ({name: value for name, value in SAMPLED.items() if name != "calls"}, "sampled.calls"),
        ({"message": "fault", "kind": "worker_lost", "detail": ""}, "fault.kind"),
        ({"message": "fault", "kind": "run_timeout", "detail": ""}, "fault.kind"),
        ({"message": "fault", "kind": "run_error", "detail": ["x"]}, "fault.detail"),
        ({"message": "measured", "result": TIMED.model_dump(mode="json")}, "measured"),
        ({}, "message"),
        ([], ""),
        (None, ""),
    ],
)
def test_a_report_is_refused_for_any_field_that_is_not_its_own(report: object, why: str) -> None:
    with pytest.raises(ValidationError) as refused:
        decode(json.dumps(report).encode(), FROM_CHILD)
    told = complaint(refused.value)
    assert why in told
    assert "\n" not in told


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"message": "applied"} {}'])
def test_a_report_is_refused_if_it_is_no_json(data: bytes) -> None:
    with pytest.raises(ValidationError):
        decode(data, FROM_CHILD)


def test_a_sampled_report_is_what_the_refused_ones_were_made_of() -> None:
    decode(json.dumps(SAMPLED).encode(), FROM_CHILD)


def test_messages_come_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        data = b"".join(
            struct.pack("!I", len(text)) + text for text in (encode(messages.Beat(secs=0.5)), encode(messages.End()))
        )
        channel = Channel(ours, FROM_TASK)
        theirs.sendall(data[:-3])
        assert channel.receive(1.0) == messages.Beat(secs=0.5)
        assert channel.receive(0.0) is None
        theirs.sendall(data[-3:])
        assert channel.receive(1.0) == messages.End()


def test_they_need_no_compiler() -> None:
    code = (
        "import sys; import workers.sandbox.messages; print('tvm' in sys.modules or 'tuner.tvm_compat' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == "False"
