"""Models, jobs, events, tokens: what users see."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from pitchpipe.errors import InvalidInput
from pitchpipe.wire._base import Digest, Instant, Wire
from pitchpipe.wire.comparison import Comparison
from pitchpipe.wire.record import Earlier
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import TaskKind


class ModelFormat(StrEnum):
    """What a model is written in; pitchpipe/frontends.py says how each is read."""

    ONNX = "onnx"
    """ONNX protobuf; weights may be left out (see pitchpipe/model/strip.py)."""
    RELAX = "relax"
    """TVM JSON of a Relax module, as the SDK makes from a torch.export program."""
    TVMSCRIPT = "tvmscript"
    """The same as TVMScript text is code; only accepted by the SDK and the CLI, which turn it into `relax`."""
    METASCHEDULE = "metaschedule"
    """MetaSchedule's pair of JSON files in one document: its workloads become tasks, its traces their seeds."""
    PT2 = "pt2"
    """A torch.export archive; loading one can run code, so it needs an explicit trust flag and is converted locally."""
    TORCHSCRIPT = "torchscript"
    """A torch.jit archive; as PT2, and it needs example inputs, since it does not tell their shapes."""
    STABLEHLO = "stablehlo"
    """StableHLO as JAX exports it; holds weights as constants, so it is converted locally, which takes them out."""
    TFLITE = "tflite"
    """A TFLite flatbuffer; as STABLEHLO."""


class ModelView(Wire):
    """A stored model."""

    id: str
    name: str
    format: ModelFormat
    digest: Digest
    size_bytes: int = Field(ge=0)
    created_at: Instant
    checked: bool = Field(
        default=False, description="it was read and can be tuned; false: not looked at yet, a job on it waits for that"
    )
    comparison: Comparison | None = Field(
        default=None, description="with the framework that it came from, as a client told it; absent: nobody told"
    )


class Budget(Wire):
    """How much a job may spend; at least one bound."""

    trials: int | None = Field(default=None, ge=0, le=10_000_000)
    seconds: float | None = Field(default=None, gt=0, le=1e7, description="wall seconds from the job's start")
    until_gain: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="no more trials once another minute of them is expected to save less than this share of a run",
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.trials is None and self.seconds is None:
            raise ValueError("a budget needs trials, seconds or both")
        return self

    def holds(self, other: Budget) -> bool:
        """Whether it ends a job no sooner than the other one, in any of its bounds."""
        for mine, theirs in ((self.trials, other.trials), (self.seconds, other.seconds)):
            if mine is not None and (theirs is None or mine < theirs):
                return False
        return (self.until_gain or 0.0) <= (other.until_gain or 0.0)

    def plus(self, trials: int = 0, seconds: float = 0.0) -> Budget:
        """A budget with so much more. Raises InvalidInput where that is nothing, or more of what has no bound."""
        if trials < 0 or seconds < 0 or not (trials or seconds):
            raise InvalidInput("an extension is a number of trials, a number of seconds, or both")
        for more, bound, name in ((trials, self.trials, "trials"), (seconds, self.seconds, "seconds")):
            if more and bound is None:
                raise InvalidInput(f"the budget has no bound of {name} that could be raised")
        try:
            return Budget(
                trials=None if self.trials is None else self.trials + trials,
                seconds=None if self.seconds is None else self.seconds + seconds,
                until_gain=self.until_gain,
            )
        except ValueError as error:
            raise InvalidInput("no budget may be that large") from error


class JobState(StrEnum):
    """Lifecycle: queued -> ingesting -> tuning -> confirming -> done; any but done -> failed or cancelled."""

    QUEUED = "queued"
    INGESTING = "ingesting"
    TUNING = "tuning"
    CONFIRMING = "confirming"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


class JobOrigin(StrEnum):
    """Who wanted a job. All but a user's work only while no user's job does; see wire/miss.py and wire/upgrade.py."""

    USER = "user"
    """Somebody submitted it."""
    TRANSFER = "transfer"
    """The first trials of what deployments missed: schedules of similar workloads, re-fitted."""
    MISSES = "misses"
    """A search for what deployments missed."""
    UPGRADE = "upgrade"
    """Replays what is served from another toolchain, driver or device class; searches for nothing. See wire/upgrade.py."""
    RETUNE = "retune"
    """A search for what an upgrade left worse than it had been."""

    @property
    def idle(self) -> bool:
        return self is not JobOrigin.USER


class JobRequest(Wire):
    """What a job is to tune, for which targets, and what it may spend."""

    model: str = Field(description="model id")
    targets: tuple[Target, ...] = Field(min_length=1, max_length=8)
    budget: Budget
    seed: int = Field(default=0, ge=0, lt=2**31)


class Replay(StrEnum):
    """What became of schedules that were found with another toolchain, driver or device class."""

    DUE = "due"
    """They have not been replayed yet."""
    KEPT = "kept"
    """What was served still wins."""
    CHANGED = "changed"
    """Another schedule wins."""
    LOST = "lost"
    """The baseline wins."""
    FAILED = "failed"
    """The baseline wins, since none of them could be built, checked and timed."""
    UNDECIDED = "undecided"
    """No confirming run came to a verdict."""


class TaskView(Wire):
    """A task of a job, as far as it is known."""

    workload: Digest
    target: Target
    name: str
    kind: TaskKind
    weight: int
    flops: float
    bytes: float
    trials: int = Field(ge=0, description="trials this job spent on it")
    failed_trials: int = Field(ge=0)
    reused: bool = Field(description="a stored best was served and no trial spent")
    untuned_secs: float | None = None
    tuned_secs: float | None = None
    bound_secs: float | None = Field(
        default=None, description="no schedule is faster on the devices of the target; absent while that is not known"
    )
    flops_per_sec: float | None = Field(
        default=None, description="flops over tuned_secs; above the device's peak where an algorithm needs fewer"
    )
    bytes_per_sec: float | None = Field(default=None, description="bytes over tuned_secs")
    bound_share: float | None = Field(default=None, description="bound_secs over tuned_secs; 1 cannot be improved")
    replay: Replay | None = Field(
        default=None,
        description="what became of schedules from another toolchain, driver or device class; absent where none were",
    )
    earlier: Earlier | None = Field(default=None, description="what was served of them when the job began")
    earlier_baseline_secs: float | None = Field(default=None, description="what the baseline took there")


class Progress(Wire):
    """How far a job is: what it has spent, what it has reached, and what is forecast."""

    trials: int = Field(default=0, ge=0)
    failed_trials: int = Field(default=0, ge=0)
    reused_tasks: int = Field(default=0, ge=0)
    best_secs: float | None = Field(
        default=None,
        description="sum over tasks of weight x best median so far; absent while some task has neither a time nor a bound",
    )
    estimated_tasks: int = Field(
        default=0,
        ge=0,
        description="tasks of that sum without a time so far; they count with a multiple of their bound, that of the others",
    )
    gain: float | None = Field(
        default=None,
        description="share of the time with default schedules that the best so far saves; of tasks with both",
    )
    forecast_secs: float | None = Field(
        default=None, ge=0, description="best_secs as it is expected when the budget is spent; tuner/tuning/forecast.py"
    )
    forecast_low_secs: float | None = Field(default=None, ge=0, description="lower end of its interval")
    forecast_high_secs: float | None = Field(default=None, ge=0, description="upper end")
    minute_gain: float | None = Field(
        default=None, description="share of best_secs that another minute of trials is expected to save"
    )
    eta_secs: float | None = Field(default=None, ge=0)
    eta_low_secs: float | None = Field(default=None, ge=0)
    eta_high_secs: float | None = Field(default=None, ge=0)


class JobView(Wire):
    """A job as it is now."""

    id: str
    model: str
    model_name: str
    comparison: Comparison | None = Field(default=None, description="of the model, as in ModelView")
    targets: tuple[Target, ...]
    budget: Budget
    seed: int
    state: JobState
    origin: JobOrigin = JobOrigin.USER
    paused: bool = Field(
        default=False, description="nothing of it is searched for or leased, and its clock stands, until it is resumed"
    )
    error: str | None = None
    error_code: str | None = Field(default=None, description="problem type of the error")
    progress: Progress
    tasks: tuple[TaskView, ...] = ()
    created_at: Instant
    started_at: Instant | None = None
    finished_at: Instant | None = None


class EventKind(StrEnum):
    """What an entry of a job's event stream tells of."""

    STATE = "state"
    """The job changed state, was paused or resumed, or its budget was raised; data: state, error, and then also paused or
    budget."""
    TASKS = "tasks"
    """The model was split; data: number of tasks and how many were reused."""
    PROGRESS = "progress"
    """A batch was reported; data: Progress."""


class JobEvent(Wire):
    """One entry of a job's event stream; `seq` is the SSE id and starts at 1."""

    seq: int = Field(ge=1)
    kind: EventKind
    data: dict[str, object]
    at: Instant


class Scope(StrEnum):
    """What a token may do. All but the last are of one project."""

    USER = "user"
    """Models, jobs, records and schedules of its project."""
    WORKER = "worker"
    """Register a worker, lease, report, read workloads."""
    ADMIN = "admin"
    """All of it, plus the tokens of its project."""
    OPERATOR = "operator"
    """The tokens of all projects, and so which projects there are; nothing inside a project."""


class TokenRequest(Wire):
    """What a new token may do, and where."""

    project: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern=r"^[a-z0-9][a-z0-9-]*$",
        description="project name; an operator has none, every other scope needs one",
    )
    scope: Scope
    label: str = Field(default="", max_length=128)


class TokenView(Wire):
    """A token without its text."""

    id: str
    project: str | None = Field(default=None, description="project name; null of an operator")
    scope: Scope
    label: str
    created_at: Instant
    revoked_at: Instant | None = None


class TokenCreated(TokenView):
    """A new token. Its text is nowhere else."""

    token: str = Field(description="shown once; only its digest is stored")


class SessionLink(Wire):
    """A link to the dashboard that signs one browser in."""

    path: str = Field(description="of the service's address")
    valid_secs: float = Field(gt=0, description="in which it can be opened, once")
