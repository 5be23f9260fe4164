from __future__ import annotations

import socket
import struct
import subprocess
import sys

import pytest
from pydantic import TypeAdapter

from pitchpipe.wire._base import Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import BASELINE_TRACE, Candidate, Failed, FailureKind, MeasureConfig, Timed
from pitchpipe.wire.roofline import MemoryLevel, Roofline
from pitchpipe.wire.target import Target
from tuner.tuning.testing import PASSED
from workers.sandbox import messages
from workers.sandbox.channel import Channel, Closed
from workers.sandbox.messages import FROM_TASK, FROM_ZYGOTE, TO_TASK, TO_ZYGOTE, decode, encode

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
