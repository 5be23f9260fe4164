"""What a kind of target is: everything that Pitchpipe does in one way for a CPU and in another for a GPU.

`TargetKind` is the interface; its implementations are found by the target's `kind` in the entry-point group
"pitchpipe.target_kinds" (tuner/target_kinds/, a folder each). Nothing else asks whether a target is `llvm` or `cuda`, or
whether a device is a `cpu` or a `cuda`.

Importing an implementation loads no compiler: its methods import what they need when they are called. Those under
"anywhere" need none; those under "with a compiler" run in a process that has TVM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pitchpipe.errors import InvalidTarget
from pitchpipe.processes import plugins
from pitchpipe.wire.roofline import Roofline
from pitchpipe.wire.target import DeviceFingerprint, DeviceKind, KindName, Target
from pitchpipe.wire.task import Workload

GROUP = "pitchpipe.target_kinds"
HOST: KindName = "llvm"
"""The kind of the processor that runs this process: it is always there, and reference programs run on it."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a schedule for one target may run on another, why, and how far apart they are."""

    fits: bool
    reason: str
    distance: tuple[float, ...] = ()
    """Compared as a tuple; less is nearer: vector width (octaves), cores (octaves), features not made use of."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a compiled model does at one point of a run: it computes a kernel, or calls its runtime."""

    name: str
    """Of the kernel, or of the runtime's function."""
    kernel: bool
    secs: float
    """Median over runs."""


class Executable(Protocol):
    """A compiled model on a device."""

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Copies, transforms and keeps the weights (arrays by parameter name).

        Raises InvalidInput for one that is missing or misshapen; the model then keeps the weights it had.
        """

    def __call__(self, *arrays: Any, stream: int | None = None) -> Any:
        """Runs the model; one array, or a tuple of arrays where the model has several outputs. Raises InvalidInput.

        stream: where the device has streams, the handle of the one that the run goes to.
        """

    def run_secs(self, *arrays: Any, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs, without moving inputs or outputs."""

    def timed(self, *arrays: Any) -> Callable[[int], list[float]]:
        """A function that runs the model so many times on these arrays and tells the seconds of each run."""

    def steps(self, *arrays: Any, repeats: int) -> list[Step]:
        """What a run does, in its order, with the seconds of each step inside the running model."""


class TargetKind(ABC):
    """A kind of target. Stateless: one object a process, shared by all threads."""

    name: ClassVar[KindName]
    """`kind` of its targets."""
    device: ClassVar[DeviceKind]
    """What TVM, PyTorch and fingerprints call its devices."""
    title: ClassVar[str]
    """In a sentence, with its article."""
    runs_unscheduled: ClassVar[bool]
    """Whether a tensor function without any schedule can run on it: then that is the baseline of a workload."""
    multiplies_tf32: ClassVar[bool]
    """Whether its devices have units that multiply float32 by TF32: then that is a part of workloads' identity."""
    has_streams: ClassVar[bool]
    """Whether work is queued on streams, so that a result is there only once its stream was waited for."""
    times_in_turns: ClassVar[bool] = False
    """Whether several workers can measure on one device at once, of which one times at a time while others build."""
    confirming_secs: ClassVar[float]
    """Seconds that the confirming run of one task is expected to take of a device until the first has ended; calls of an
    unscheduled baseline come on top."""
    artifact: ClassVar[str]
    """Name of the file of a compiled model in the folder of its artifact."""
    needs_linker: ClassVar[bool]
    """Whether a compiled model is a shared library, which a linker makes."""
    needs_compiler: ClassVar[bool]
    """Whether a compiled model that was made elsewhere needs the compiler's own runtime where it runs."""

    # -- anywhere

    @abstractmethod
    def fit(self, asking: Target, stored: Target) -> Fit:
        """Whether what was confirmed for `stored` can run on `asking`, both of this kind and not equal."""

    @abstractmethod
    def describe(self, target: Target) -> str:
        """The target in a few words."""

    # -- on a machine that may have such a device

    @abstractmethod
    def detect(self, ordinal: int = 0) -> Target | None:
        """The target of a device of the kind that this process may see, counted from 0; None without that many.

        Raises MeasurementFailed for a device that is too old, and when what is asked, in a child, does not start.
        """

    @abstractmethod
    def hold(self, ordinal: int) -> None:
        """Makes a device of the kind the only one that this process and its children see, before any uses one.

        Raises MeasurementFailed where there is no such device.
        """

    @abstractmethod
    def fingerprint(self) -> DeviceFingerprint:
        """Of this machine's first device of the kind. Raises MeasurementFailed without one."""

    @abstractmethod
    def device_identity(self) -> list[str]:
        """Texts that identify this machine's devices of the kind and their driver, read from a few files.

        When they change, the proof run of a compiled model is made again.
        """

    @abstractmethod
    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """What `pitchpipe doctor` looks at: a subject, and a function that tells what is found or raises."""

    @abstractmethod
    def load(self, path: Path, target: Target) -> Any:
        """What `save` wrote. Raises IntegrityError for a file that holds none."""

    @abstractmethod
    def executable(
        self,
        compiled: Any,
        inputs: Sequence[Any],
        params: Sequence[Any],
        target: Target,
        *,
        graphs: bool = True,
        ordinal: int | None = None,
    ) -> Executable:
        """A compiled model (`compile`, `load`) on this machine, to bind weights and run.

        inputs, params: name, shape and NumPy dtype name of each. graphs: launches are recorded once and replayed together,
        where the device can. ordinal: of the device where arrays of the host are computed with. Raises NoDevice where
        there is no such device.
        """

    # -- with a compiler

    @abstractmethod
    def compile(self, module: Any, target: Target) -> Any:
        """A module that `tuner.deploy.finish` made, compiled; threads may compile several at once.

        Raises UnsupportedOperator for what cannot run on such devices, PitchpipeError when the compiler refuses.
        """

    def compile_side_by_side(self, module: Any, target: Target, ready: Mapping[str, tuple[Any, bytes]]) -> Any:
        """As `compile`, on all cores where that helps, to be saved and not to be run. May fork, so at most one thread of
        the process calls it.

        ready: functions of the module by name, with their object code; used for those that are the same in it.
        """
        return self.compile(module, target)

    @abstractmethod
    def save(self, compiled: Any, path: Path) -> None:
        """Writes what was compiled into a file. Raises PitchpipeError when it cannot be linked, OSError."""

    @abstractmethod
    def tvm_target(self, target: Target) -> Any:
        """TVM's target. Raises InvalidTarget for one that the compiler does not know."""

    @abstractmethod
    def codegen(self) -> str:
        """Name and version of what makes machine code, for `Toolchain.codegen`."""

    @abstractmethod
    def load_intrinsics(self) -> None:
        """Registers the tensor intrinsics that schedules may name."""

    def pass_config(self) -> dict[str, Any]:
        """Of TVM's pass context, for everything that is compiled."""
        return {}

    def before_codegen(self, module: Any) -> Any:
        """The scheduled module as the code generator gets it."""
        return module

    @abstractmethod
    def rewrites(self) -> Any:
        """Passes of graph preparation: a `tuner.graph.prepare.Rewrites`."""

    @abstractmethod
    def design_spaces(self) -> Sequence[Callable[[Any, Target], list[Any]]]:
        """Design spaces beside MetaSchedule's: (module, target) -> sketches, the best first."""

    has_templates: ClassVar[bool] = False
    """Whether a template (tuner/templates/) may compute a workload."""

    def templates(self, workload: Workload, target: Target) -> Sequence[Any]:
        """The points of templates for the workload: `tuner.templates.space.Ranked`, the best by their estimate first."""
        return ()

    tunes_inside: ClassVar[bool] = False
    """Whether a compiled model is a list of launches, in which another schedule of a workload takes the place of one: then
    the best few of each task are tried inside the whole model."""

    replays_candidates: ClassVar[bool] = False
    """Whether `replayed` finds faults often enough to be asked before a candidate is issued."""

    ranked_after: ClassVar[int] = 0
    """Candidates of a task that are measured before a cost model ranks others. Until then a search takes analytic seeds and
    children of the fastest, and no random points."""

    def replayed(self, module: Any, trace: str, target: Target) -> None:  # noqa: B027 - most kinds build what applies
        """Applies a candidate's trace to the workload's module as a worker does, and looks at what can be seen without
        machine code. Raises PitchpipeError, or whatever the compiler raises, where it would not be built.
        """

    def vector_unit(self, target: Target, element_bits: int) -> Any:
        """A `tuner.space.processor.VectorUnit` where candidates are to fill the vectors of one, else None."""
        return None

    @abstractmethod
    def baseline_trace(self, workload: Workload, target: Target) -> str:
        """The trace of the baseline, which tuned schedules are compared with. Raises InvalidTrace if there is none."""

    @abstractmethod
    def default_trace(self, workload: Workload, target: Target) -> str:
        """The trace of the default schedule, which a task without trials gets; the baseline's where none better is known."""

    def default_traces(self, workload: Workload, target: Target) -> Iterator[str]:
        """The trace of the default schedule, and of those that are tried in its place where it computes something else."""
        yield self.default_trace(workload, target)

    checks_on_device: ClassVar[bool] = False
    """Whether forks that check default schedules open a device: then they are not confined, and few at a time, since each
    holds some of its memory."""

    @abstractmethod
    def prepare_checks(self, target: Target) -> bool:
        """Whether this machine runs the target's code, so that default schedules can be checked. Then everything that the
        forks need is imported, and no thread is started.
        """

    @abstractmethod
    def check_defaults(self, asked: Sequence[Any], target: Target) -> bytes:
        """In a fork: chooses a schedule for workloads without a trial (`tuner.deploy.default_check.Named`), and checks it.

        An encoded `tuner.deploy.default_check.Answer` for each, one behind another.
        """

    @abstractmethod
    def default_schedule(self, module: Any, target: Target) -> Any:
        """A module of one tensor function, `main`, with its default schedule."""

    @abstractmethod
    def reference_program(self, module: Any, tvm_target: Any) -> tuple[Any, Any]:
        """The program whose outputs a candidate's are compared with, and TVM's target to compile it for: it runs on this
        host, and computes what the unscheduled workload does, every sum in its order.
        """

    @abstractmethod
    def code(self, module: Any, scheduled: Any, target: Target) -> Iterator[tuple[str, str]]:
        """What a trial compiles of a workload's module and of it with a schedule, as text, without the device.

        (Name of a form, text): `lowered` first, then what is generated from it, in the order in which one is made of
        another. Raises whatever the compiler does.
        """

    def roofline(self, target: Target) -> Roofline | None:
        """What the device can do at most; None where that is not measured.

        Starts threads: only in a fork that ends afterwards.
        """
        return None


@lru_cache(maxsize=4096)
def fit(asking: Target, stored: Target) -> Fit:
    """Whether what was confirmed for `stored` can run on `asking`; the reason completes "confirmed for X: ..."."""
    if asking.key == stored.key:
        return Fit(fits=True, reason="same target", distance=(0.0, 0.0, 0.0))
    theirs, ours = kind_of(stored), kind_of(asking)
    if ours is not theirs:
        return Fit(fits=False, reason=f"{theirs.title} schedule does not run on {ours.title} device")
    return ours.fit(asking, stored)


def describe(target: Target) -> str:
    """The target in a few words."""
    return kind_of(target).describe(target)


def kind_of(target: Target) -> TargetKind:
    """The kind of a target."""
    return kind_named(target.kind)


@cache
def kind_named(name: str) -> TargetKind:
    """The kind whose targets have this `kind`. Raises InvalidTarget for a name that none has."""
    if name not in (known := plugins.names(GROUP)):
        raise InvalidTarget(f"kind {name!r} is none of {', '.join(known)}")
    made: TargetKind = plugins.load(GROUP, name)()
    return made


@cache
def kinds() -> tuple[TargetKind, ...]:
    """Every kind, accelerators before the host: a machine that has both is tuned and served for the first."""
    return tuple(kind_named(name) for name in sorted(plugins.names(GROUP), key=lambda name: name == HOST))


def named_device(text: str) -> tuple[TargetKind, int]:
    """The kind and the ordinal of a device as users and PyTorch name it: `cpu`, `llvm`, `cuda` or `cuda:1`.

    Raises InvalidTarget for anything else.
    """
    name, colon, number = text.partition(":")
    found = next((kind for kind in kinds() if name in (kind.name, kind.device)), None)
    if found is None or (colon and not (number.isascii() and number.isdigit() and len(number) < 4)):
        names = ", ".join(sorted({name for kind in kinds() for name in (kind.name, kind.device)}))
        raise InvalidTarget(f"{text!r} is no target: auto, {names}, one of these and a number (cuda:1), or JSON")
    return found, int(number or 0)


def ordinal_named(target: Target | str) -> int | None:
    """Of the device, where it is named with a number (`cuda:1`); None where any of its kind will do.

    Raises InvalidTarget for a name that is none.
    """
    if isinstance(target, Target) or target == "auto" or target.lstrip().startswith("{") or ":" not in target:
        return None
    return named_device(target)[1]


def hold_device(text: str) -> str:
    """Makes a device that was named with a number the only one that this process and its children see, and returns what it
    is called from then on: `cuda:1` becomes `cuda`. Everything else is returned as it is.

    Raises InvalidTarget for a name that is none, MeasurementFailed where there is no such device.
    """
    if text == "auto" or text.lstrip().startswith("{"):
        return text
    kind, ordinal = named_device(text)
    if ordinal:
        kind.hold(ordinal)
    return kind.name


def kind_of_device(device: str) -> TargetKind:
    """The kind for a device's type, as PyTorch names it. Raises InvalidTarget for one that there is none for."""
    for kind in kinds():
        if kind.device == device:
            return kind
    raise InvalidTarget(f"no kind of target is for devices of type {device!r}")
