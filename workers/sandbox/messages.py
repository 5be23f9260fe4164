"""What the worker, its zygote, its task processes and their children say to each other, a type for each message.

    worker -> zygote         Fork, Kill
    zygote -> worker         Ready or Fatal once, then Forked for each Fork
    worker -> task process   Open or MeasureRoofline once; after Open any number of Batch, each of which Cancel may end
    task process -> worker   Measured, Holds, Beat, Repeated, and End when a batch is over; Alive at least every second;
                             RooflineMeasured in answer to MeasureRoofline
    child -> task process    of a candidate on a CPU: Applied, Waiting, then Sampled, Warmed or Sample each time it is told
                             of a candidate's build for a GPU: Applied, Compiled
                             of the runner on a GPU: Started or Broken, then as on a CPU each time it is told
                             of these instead of any: Fault
                             of the heartbeat: Sample each time it is told
                             of a run for reference outputs: Referred

On the wire each is a JSON object that names its type. A message that is none of those that its reader expects, has a
field too many or too few, or a value of another type, is refused. A child's may be hostile: it only says what the child
found; which candidate it is about, and what it was told to do, its reader knows. This module imports no compiler.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from pitchpipe.wire._base import Seconds, Wire
from pitchpipe.wire.lease import Purpose
from pitchpipe.wire.measure import Candidate, CheckVerdict, FailureKind, MeasureConfig, Measurement, Stop
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import Target

_T = TypeVar("_T")
ChildsKind = Literal[
    FailureKind.INVALID_SCHEDULE,
    FailureKind.BUILD_ERROR,
    FailureKind.RUN_ERROR,
    FailureKind.WRONG_OUTPUT,
    FailureKind.DEVICE_ERROR,
]
"""What a child can tell of a failure; its limits of time are kept by whoever started it."""


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


class Applied(Wire):
    """The candidate's trace applies; it is built now."""

    message: Literal["applied"] = "applied"


class Waiting(Wire):
    """The candidate is built, and waits to be told to go."""

    message: Literal["waiting"] = "waiting"
    build_secs: float = Field(ge=0, lt=1e5)


class Compiled(Wire):
    """The candidate's program for a GPU lies in the memory that its builder shares."""

    message: Literal["compiled"] = "compiled"
    size_bytes: int = Field(gt=0)
    build_secs: float = Field(ge=0, lt=1e5)


class Started(Wire):
    """The runner has a context on the GPU."""

    message: Literal["started"] = "started"
    uuid: str


class Broken(Wire):
    """The runner cannot have one, and ends."""

    message: Literal["broken"] = "broken"
    reason: str


class Warmed(Wire):
    """The candidate was checked and is ready to give samples."""

    message: Literal["warmed"] = "warmed"
    calls: int = Field(ge=1)
    """That make one sample."""
    check: CheckVerdict
    clock_hz: float | None = Field(default=None, gt=0)
    """Of a GPU."""


class Sample(Wire):
    """One more sample of a candidate, or of the reference: seconds of one call."""

    message: Literal["sample"] = "sample"
    secs: Seconds


class Sampled(Wire):
    """The candidate was checked and timed."""

    message: Literal["sampled"] = "sampled"
    run_secs: tuple[Seconds, ...] = Field(min_length=1)
    calls: int = Field(ge=1)
    stop: Stop
    check: CheckVerdict
    clock_hz: float | None = Field(default=None, gt=0)
    """Of a GPU."""

    @property
    def median_secs(self) -> float:
        """What an incumbent is compared by: the upper one of an even number."""
        return sorted(self.run_secs)[len(self.run_secs) // 2]


class Fault(Wire):
    """The candidate has no time, and why."""

    message: Literal["fault"] = "fault"
    kind: ChildsKind
    detail: str
    spent: bool = False
    """The runner's context is of no use any more."""


class Referred(Wire):
    """The outputs of the unscheduled program lie in the memory that the child shares."""

    message: Literal["referred"] = "referred"
    finite: bool
    """Whether enough of them is finite to compare anything."""


ToZygote = Annotated[Fork | Kill, Field(discriminator="message")]
FromZygote = Annotated[Ready | Fatal | Forked, Field(discriminator="message")]
ToTask = Annotated[Open | MeasureRoofline | Batch | Cancel, Field(discriminator="message")]
FromTask = Annotated[
    Holds | Beat | Repeated | Measured | End | Alive | RooflineMeasured, Field(discriminator="message")
]
FromChild = Annotated[
    Applied | Waiting | Compiled | Started | Broken | Warmed | Sample | Sampled | Fault | Referred,
    Field(discriminator="message"),
]
TO_ZYGOTE: TypeAdapter[ToZygote] = TypeAdapter(ToZygote)
FROM_ZYGOTE: TypeAdapter[FromZygote] = TypeAdapter(FromZygote)
TO_TASK: TypeAdapter[ToTask] = TypeAdapter(ToTask)
FROM_TASK: TypeAdapter[FromTask] = TypeAdapter(FromTask)
FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(FromChild)


def encode(message: Wire) -> bytes:
    """One line of JSON, without its end."""
    return message.model_dump_json(by_alias=True).encode()


def decode(data: bytes, expected: TypeAdapter[_T]) -> _T:
    """A message of those that the reader expects. Raises ValueError for anything else."""
    return expected.validate_json(data, strict=True)


def complaint(error: ValueError) -> str:
    """What is wrong with a message, in a line; of several things the first."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
