"""What is tuned, and how it is called: a torch module with its own arguments, or a function of arrays.

Either knows its graph and weights, what ran it before, and how to open a compiled build in its place.
"""

from __future__ import annotations

import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from pitchpipe.arrays import numpy_dtype
from pitchpipe.deploy.artifact import CompiledModel, open_artifact
from pitchpipe.deploy.evidence import Evidence, gather
from pitchpipe.deploy.verify import ASKED_NOT_TO
from pitchpipe.errors import InvalidInput
from pitchpipe.model.comparison import drawn
from pitchpipe.model.interleaved import interleaved
from pitchpipe.model.local import LocalModel, local_model
from pitchpipe.model.reference import CannotRun, FileSource
from pitchpipe.model.reference.peer import Peer
from pitchpipe.target_kind import HOST
from pitchpipe.wire.comparison import Comparison, not_compared
from pitchpipe.wire.target import Target

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional arguments and keywords."""
WORTHWHILE = 0.98
"""Share of the time of what ran before. What is not faster by more than a timing can tell is not worth another build."""
Side = Callable[[int], list[float]]
"""Of an interleaved timing: the seconds of each of so many runs."""


class Build(Protocol):
    """A compiled build."""

    @property
    def is_current(self) -> bool:
        """Whether it computes what the model computes now."""

    def __call__(self, given: Any, /) -> Any:
        """The model's result; `given` is what `Subject.taken_apart` gives. Raises whatever the runtime does."""


class Subject(ABC):
    """A model with one set of shapes."""

    model: LocalModel
    target_name: str = "auto"
    """The device that it is for, as `target` names it."""
    compare: bool = True
    """Whether its framework is asked."""

    @cached_property
    def evidence(self) -> Evidence | Comparison:
        """What its framework computes, asked once."""
        return gather(self.model, {}) if self.compare else not_compared(ASKED_NOT_TO)

    def exported(self) -> LocalModel:
        """The model as it is now."""
        return self.model

    @property
    @abstractmethod
    def before(self) -> Callable[..., Any] | None:
        """What ran it until now; None of a file."""

    @abstractmethod
    def taken_apart(self, call: Call) -> Any | None:
        """What builds are called with; None for a call that they cannot run."""

    @abstractmethod
    def open(self, folder: Path, target: Target) -> Build:
        """The build of an artifact that has passed its proof run, compared with what runs otherwise."""

    @abstractmethod
    def side(self, build: Build) -> Side:
        """Runs a build that `open` gave on the examples."""

    @abstractmethod
    def peer(self, target: Target, stack: ExitStack) -> tuple[str, Side | None]:
        """What the model is compared with, or why there is nothing. What it needs ends with the stack."""

    def timed(self, builds: Sequence[Build], target: Target) -> tuple[list[float], str, float | None]:
        """Median seconds of each build, timed in turns with the peer; who that is, or why there is none; and its seconds."""
        sides = [self.side(build) for build in builds]
        with ExitStack() as stack:
            name, peer = self.peer(target, stack)
            try:
                found = interleaved(sides if peer is None else [*sides, peer])
            except CannotRun as error:
                name, found = str(error), interleaved(sides)
        return found[: len(builds)], name, found[-1] if len(found) > len(builds) else None


class ModuleSubject(Subject):
    """A torch module."""

    def __init__(self, module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], precision: str) -> None:
        from pitchpipe.tuning import modules

        self._modules = modules
        self.calls = modules.ModuleCalls(module, arguments, keywords)
        self.target_name = self.calls.target_name
        self._precision = precision
        self.model = self.exported()

    def exported(self) -> LocalModel:
        calls = self.calls
        return local_model(
            calls.module, calls.arguments, keywords=calls.keywords, numbers=True, precision=self._precision
        )

    @property
    def before(self) -> Callable[..., Any]:
        found: Callable[..., Any] = self.calls.module
        return found

    def taken_apart(self, call: Call) -> Any | None:
        leaves = self.calls.flat(*call)
        return leaves if leaves is not None and self.calls.fits(leaves) else None

    def open(self, folder: Path, target: Target) -> Build:
        build = self._modules.ModuleBuild(self.calls, self.model, folder, target)
        if wrong := self._modules.difference(self.calls, build):
            raise InvalidInput(f"called with tensors it differs from the module: {wrong}")
        return build

    def side(self, build: Build) -> Side:
        example = self.calls.example
        return self.calls.timed(lambda: build(example))

    def peer(self, target: Target, stack: ExitStack) -> tuple[str, Side | None]:  # noqa: ARG002
        return self._modules.name(), self.calls.timed(self.calls.run_module)


class ArraySubject(Subject):
    """A file, an ONNX model in memory, TorchScript, or a function of JAX: a function of arrays, and of tensors."""

    def __init__(
        self,
        model: Any,
        examples: Sequence[Any] | None,
        fallback: Callable[..., Any] | None,
        *,
        trust: bool,
        precision: str,
    ) -> None:
        self.model = local_model(model, examples, trust=trust, precision=precision)
        self._before = fallback or (model if callable(model) else None)
        self._examples = tuple(examples or ())

    @property
    def before(self) -> Callable[..., Any] | None:
        return self._before

    def taken_apart(self, call: Call) -> Any | None:
        arrays, keywords = call
        return None if keywords else arrays

    def open(self, folder: Path, target: Target) -> Build:
        return _ArrayBuild(open_artifact(folder, target, self.model.weights))

    def side(self, build: Build) -> Side:
        assert isinstance(build, _ArrayBuild)
        inputs, compiled = self._inputs(build.compiled), build.compiled
        return lambda runs: compiled.run_secs(*inputs, repeats=runs)

    def peer(self, target: Target, stack: ExitStack) -> tuple[str, Side | None]:
        if self._before is not None and self._examples:
            return "what ran it before", _wall_secs(self._before, self._examples)
        if (
            not isinstance(self.model.source, FileSource)
            or target.kind != HOST
            or isinstance(self.evidence, Comparison)
        ):
            return "none was asked for", None
        asked = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pitchpipe-tune-"))) / "peer"
        self.model.source.ask(asked, {}, most=1)
        try:
            peer = stack.enter_context(Peer(asked, self.evidence.expected.inputs[0]))
        except CannotRun as error:
            return str(error), None
        return peer.name, peer.secs

    def _inputs(self, compiled: CompiledModel) -> Sequence[Any]:
        if isinstance(self.evidence, Evidence):
            return self.evidence.expected.inputs[0]
        import numpy as np

        rng = np.random.default_rng(0)
        return [drawn(spec.shape, numpy_dtype(spec.dtype), rng) for spec in compiled.inputs]


class _ArrayBuild:
    """A compiled model that gives tensors where it is given tensors."""

    def __init__(self, compiled: CompiledModel) -> None:
        self.compiled = compiled

    @property
    def is_current(self) -> bool:
        return True  # it has weights of its own, which nobody changes

    def __call__(self, arrays: Sequence[Any], /) -> Any:
        """Raises InvalidInput for arrays that it was not built for."""
        found = self.compiled(*arrays)
        torch = sys.modules.get("torch")
        if torch is None or not any(isinstance(array, torch.Tensor) for array in arrays):
            return found
        from pitchpipe.torch_operators.arrays import to_tensor

        several = found if isinstance(found, tuple) else (found,)
        tensors = tuple(one if isinstance(one, torch.Tensor) else to_tensor(one) for one in several)
        return tensors if isinstance(found, tuple) else tensors[0]


def _wall_secs(function: Callable[..., Any], arrays: Sequence[Any]) -> Side:
    def once() -> float:
        started = time.perf_counter()
        found = function(*arrays)
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if hasattr(one, "block_until_ready"):  # JAX gives results before they are there
                one.block_until_ready()
        return time.perf_counter() - started

    return lambda runs: [once() for _ in range(runs)]
