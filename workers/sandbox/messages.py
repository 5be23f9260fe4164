"""What the worker, its zygote and its task processes say to each other, a type for each message.

    worker -> zygote         Fork, Kill
    zygote -> worker         Ready or Fatal once, then Forked for each Fork
    worker -> task process   Open or MeasureRoofline once; after Open any number of Batch, each of which Cancel may end
    task process -> worker   Measured, Holds, Beat, Repeated, and End when a batch is over; Alive at least every second;
                             RooflineMeasured in answer to MeasureRoofline

On the wire each is a JSON object that names its type. A message that is none of those that its reader expects, or has a
field too many or too few, is refused. This module imports no compiler.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from pitchpipe.wire._base import Seconds, Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import Target

_T = TypeVar("_T")


class Fork(Wire):
    """A new task process, please; the socket that comes with this message is its end of the channel."""

    message: Literal["fork"] = "fork"


class Kill(Wire):
    """SIGKILL for a task process and whatever it left."""

    message: Literal["kill"] = "kill"
    pid: int


class Ready(Wire):
    """The zygote has imported and compiled what its forks need."""

    message: Literal["ready"] = "ready"


class Fatal(Wire):
    """The zygote cannot start, and ends."""

    message: Literal["fatal"] = "fatal"
    reason: str


class Forked(Wire):
    """The task process that was asked for."""

    message: Literal["forked"] = "forked"
    pid: int


class Open(Wire):
    """The workload that a task process is for."""

    message: Literal["open"] = "open"
    ir: str
    target: Target
    config: MeasureConfig
    """Of the first batch: seed and the limits of the reference run."""
    parallel_builds: int
    confined: bool


class MeasureRoofline(Wire):
    """The process is to measure the device, to answer, and to end."""

    message: Literal["measure_roofline"] = "measure_roofline"
    target: Target


class Batch(Wire):
    """Candidates to measure."""

    message: Literal["batch"] = "batch"
    candidates: tuple[Candidate, ...]
    config: MeasureConfig
    purpose: Purpose
    incumbent_secs: float | None
    usual_secs: float | None
    """What the reference usually takes here; None when it was never timed."""


class Cancel(Wire):
    """The batch's remaining candidates are not wanted."""

    message: Literal["cancel"] = "cancel"


class RooflineMeasured(Wire):
    """What the device can do at most; None where that is not measured for its kind."""

    message: Literal["roofline_measured"] = "roofline_measured"
    roofline: Roofline | None


class Holds(Wire):
    """Bytes of inputs and reference outputs that the task process keeps, once they are known."""

    message: Literal["holds"] = "holds"
    held_bytes: int = Field(ge=0)


class Beat(Wire):
    """The reference workload was timed."""

    message: Literal["beat"] = "beat"
    secs: Seconds


class Repeated(Wire):
    """Candidates are timed again, because the reference drifted."""

    message: Literal["repeated"] = "repeated"


class Measured(Wire):
    """The result of a candidate; one for each of a batch that is not cancelled."""

    message: Literal["measured"] = "measured"
    result: Measurement


class End(Wire):
    """The batch is over."""

    message: Literal["end"] = "end"


class Alive(Wire):
    """The task process is at work."""

    message: Literal["alive"] = "alive"


ToZygote = Annotated[Fork | Kill, Field(discriminator="message")]
FromZygote = Annotated[Ready | Fatal | Forked, Field(discriminator="message")]
ToTask = Annotated[Open | MeasureRoofline | Batch | Cancel, Field(discriminator="message")]
FromTask = Annotated[
    Holds | Beat | Repeated | Measured | End | Alive | RooflineMeasured, Field(discriminator="message")
]
TO_ZYGOTE: TypeAdapter[ToZygote] = TypeAdapter(ToZygote)
FROM_ZYGOTE: TypeAdapter[FromZygote] = TypeAdapter(FromZygote)
TO_TASK: TypeAdapter[ToTask] = TypeAdapter(ToTask)
FROM_TASK: TypeAdapter[FromTask] = TypeAdapter(FromTask)


def encode(message: Wire) -> bytes:
    """One line of JSON, without its end."""
    return message.model_dump_json(by_alias=True).encode()


def decode(data: bytes, expected: TypeAdapter[_T]) -> _T:
    """A message of those that the reader expects. Raises ValueError for anything else."""
    return expected.validate_json(data)
