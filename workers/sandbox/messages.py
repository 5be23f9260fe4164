"""The messages between the worker, its zygote, its task processes and their children, a type for each.

    worker -> zygote         Fork, Kill
    zygote -> worker         Ready or Fatal once, then Forked for each Fork
    worker -> task process   Open or MeasureRoofline once; after Open any number of Batch, each of which Cancel may end
    task process -> worker   Measured, Holds, Beat, Repeated, Phase, and End when a batch is over; Alive at least every
                             second; RooflineMeasured in answer to MeasureRoofline
    child -> task process    a candidate of a search on a CPU: Applied, Waiting, then Sampled to each request
                             a builder: Applied, Compiled
                             a process of a confirming run on a CPU: Waiting, then Warmed or Sampled, then Samples
                             a runner on a GPU: Started or Broken, then Sampled, Warmed or Sample to each request
                             any of these four: Fault in place of any of their messages
                             the heartbeat: Sample to each request
                             the reference program: ReferenceComputed for each of its runs

On the wire each is a JSON object that names its type. A message that is not of a type that its reader expects, has a field
too many or too few, or a value of another type, is refused. A child may be hostile, so its messages only contain what it
found: which candidate they are about and what was requested, the reader knows. This module imports no compiler.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Base64Bytes, Field, TypeAdapter, ValidationError

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
"""The failure kinds that a child can report; timeouts are found by its parent."""


PhaseName = Literal["prepare", "build", "check", "time", "check and time", "build, check and time"]


class Fork(Wire):
    """Asks for a new task process; the socket that is sent with this message is its end of the channel."""

    message: Literal["fork"] = "fork"


class Kill(Wire):
    """Asks to kill a task process and its descendants."""

    message: Literal["kill"] = "kill"
    pid: int


class Ready(Wire):
    """The zygote is warmed up and can be forked."""

    message: Literal["ready"] = "ready"


class Fatal(Wire):
    """The zygote could not warm up, and ends."""

    message: Literal["fatal"] = "fatal"
    reason: str


class Forked(Wire):
    """The process id of the task process that was asked for."""

    message: Literal["forked"] = "forked"
    pid: int


class Open(Wire):
    """Gives a task process its workload."""

    message: Literal["open"] = "open"
    ir: str
    target: Target
    config: MeasureConfig
    """The config of the first batch, of which the seed of the inputs and the limits of the reference program are used."""
    parallel_builds: int
    confined: bool


class MeasureRoofline(Wire):
    """Asks the process to measure the device's roofline; it answers and ends."""

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
    """The usual beat of this device in seconds; None before the first."""
    noisy: bool = False
    """Whether its newest beat was too slow."""


class Cancel(Wire):
    """Ends the batch; candidates without a result get none."""

    message: Literal["cancel"] = "cancel"


class RooflineMeasured(Wire):
    """The device's roofline; None where it is not measured for its kind."""

    message: Literal["roofline_measured"] = "roofline_measured"
    roofline: Roofline | None


class Holds(Wire):
    """Bytes of the inputs and reference outputs that the task process holds, sent once they are known."""

    message: Literal["holds"] = "holds"
    held_bytes: int = Field(ge=0)


class Beat(Wire):
    """One timing of the reference workload."""

    message: Literal["beat"] = "beat"
    secs: Seconds


class Repeated(Wire):
    """Candidates are timed again, because a beat was too slow."""

    message: Literal["repeated"] = "repeated"


class Phase(Wire):
    """A part of the batch is over: its workload was prepared, or its candidates were built, checked or timed, or several of
    these in turns or beside each other."""

    message: Literal["phase"] = "phase"
    name: PhaseName
    began: float = Field(ge=0, lt=1e11)
    ended: float = Field(ge=0, lt=1e11)
    """Both in Unix seconds."""
    wait_secs: float = Field(default=0.0, ge=0, lt=1e11)
    """Of it, until other processes of the host let this one compute or time."""
    check_secs: float = Field(default=0.0, ge=0, lt=1e11)
    """Of it, the sum of the checks, where candidates are checked and timed in turns."""


class Measured(Wire):
    """The result of a candidate; a batch that is not cancelled has one for each."""

    message: Literal["measured"] = "measured"
    result: Measurement


class End(Wire):
    """The batch is over."""

    message: Literal["end"] = "end"


class Alive(Wire):
    """The task process lives; sent at least every second during a batch."""

    message: Literal["alive"] = "alive"


class Applied(Wire):
    """The candidate's trace was applied; compilation begins."""

    message: Literal["applied"] = "applied"


class Waiting(Wire):
    """The candidate is compiled, or its code is loaded, and it waits for its turn."""

    message: Literal["waiting"] = "waiting"
    build_secs: float = Field(ge=0, lt=1e5)
    """Seconds of that."""
    program: Base64Bytes = b""
    """Of a search: the machine code, for a confirming run; empty where it is too large to be sent."""


class Compiled(Wire):
    """The builder has written the candidate's program into the shared memory."""

    message: Literal["compiled"] = "compiled"
    size_bytes: int = Field(gt=0)
    build_secs: float = Field(ge=0, lt=1e5)


class Started(Wire):
    """The runner has a context on the GPU."""

    message: Literal["started"] = "started"
    uuid: str


class Broken(Wire):
    """The runner cannot make a context, and ends."""

    message: Literal["broken"] = "broken"
    reason: str


class Warmed(Wire):
    """The candidate was checked and is ready to give samples."""

    message: Literal["warmed"] = "warmed"
    calls: int = Field(ge=1)
    """Number of calls in one sample."""
    secs: Seconds
    """One of these calls, while it was warming up."""
    check: CheckVerdict
    clock_hz: float | None = Field(default=None, gt=0)
    """Clock rate of the GPU; None on a CPU or where it is not known."""


class Sample(Wire):
    """One sample of a candidate, as seconds of one call, or a beat."""

    message: Literal["sample"] = "sample"
    secs: Seconds


class Sampled(Wire):
    """The candidate was checked and timed."""

    message: Literal["sampled"] = "sampled"
    run_secs: tuple[Seconds, ...] = Field(min_length=1)
    calls: int = Field(ge=1)
    stop: Stop
    check: CheckVerdict
    check_secs: float = Field(default=0.0, ge=0, lt=1e5)
    """Seconds of running and comparing for the check."""
    clock_hz: float | None = Field(default=None, gt=0)
    """Clock rate of the GPU; None on a CPU or where it is not known."""

    @property
    def median_secs(self) -> float:
        """The median sample, of an even number the upper one, which is compared with the incumbent."""
        return sorted(self.run_secs)[len(self.run_secs) // 2]


class Fault(Wire):
    """The candidate failed."""

    message: Literal["fault"] = "fault"
    kind: ChildsKind
    detail: str
    spent: bool = False
    """Whether the runner's context cannot be used any more."""


class ReferenceComputed(Wire):
    """The child has written the outputs of the reference program into the shared memory."""

    message: Literal["reference_computed"] = "reference_computed"
    finite: bool
    """Whether enough of them are finite for a comparison."""


ToZygote = Annotated[Fork | Kill, Field(discriminator="message")]
FromZygote = Annotated[Ready | Fatal | Forked, Field(discriminator="message")]
ToTask = Annotated[Open | MeasureRoofline | Batch | Cancel, Field(discriminator="message")]
FromTask = Annotated[
    Holds | Beat | Repeated | Phase | Measured | End | Alive | RooflineMeasured, Field(discriminator="message")
]
FromChild = Annotated[
    Applied | Waiting | Compiled | Started | Broken | Warmed | Sample | Sampled | Fault | ReferenceComputed,
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
    """The first error of an invalid message, in one line."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
