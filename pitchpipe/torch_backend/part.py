"""A partition at run time: compiled, if its library is there, right and faster; else what PyTorch would do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pitchpipe.deploy.artifact import Runs, cache_dir, lacks_linker, open_library
from pitchpipe.deploy.building import BuildSpec, failure, make
from pitchpipe.deploy.identity import write_json
from pitchpipe.errors import PitchpipeError
from pitchpipe.target_kind import kind_of
from pitchpipe.torch_backend.beside import in_native_code, process_ends
from pitchpipe.torch_backend.paired_benchmark import Outcome, PairedBenchmark, Verdict, known, turn_of, verdict_file
from pitchpipe.torch_backend.report import PartitionReport
from pitchpipe.torch_backend.tensors import OutOfRange
from pitchpipe.torch_backend.warning import warn_once

Run = Callable[..., Any]


class Trials:
    """Whether a program is being tried at the moment, and until when; shared by it and its partitions."""

    until: float | None = None
    """Of the monotonic clock; None: it runs for its caller, who is not to wait."""
    _went_on = False

    def begin(self, until: float | None) -> None:
        """A trial of the program."""
        self.until, self._went_on = until, False

    def may_go_on(self) -> bool:
        """Whether a partition's benchmark may, asked by one that then does. One in a trial does, however late: a run of all
        that comes before it can take longer than a trial may, and it would never be decided."""
        late = self.until is None or time.monotonic() >= self.until
        if late and self._went_on:
            return False
        self._went_on = True
        return True


class Part:
    """Called in place of a partition's submodule, and runs as that one does until it is decided what runs it. No module
    itself: with a hundred weights, going through a module's call takes as long as the compiled code's launch on a GPU.

    First `build`, in a thread that may wait; then, while the program is tried, a paired benchmark in which its calls take
    part.
    """

    def __init__(
        self,
        eager: Any,
        spec: BuildSpec | None,
        report: PartitionReport,
        trials: Trials,
        *,
        is_weight: Sequence[bool],
        bounds: Mapping[int, tuple[int, int]],
        results: Sequence[Any],
        graphs: bool,
        training: bool,
        alone: bool,
        otherwise: str,
    ) -> None:
        """spec: None where the partition is not to be compiled by us; `otherwise`, eager or inductor, runs it then.

        bounds: place of an argument that holds indices -> the least and the largest that is right; with another one in it
        PyTorch runs the partition, and raises. graphs: on a GPU, a run is one CUDA graph. training: weights change with each
        call. alone: it is all of its graph, which is tried as a whole.
        """
        self._eager = eager
        self.spec, self.report, self._trials = spec, report, trials
        self._is_weight, self._bounds, self._results, self._graphs = is_weight, bounds, results, graphs
        self._stepping, self._alone, self._otherwise = training, alone, otherwise
        (output,) = eager.graph.find_nodes(op="output")
        self._one = not isinstance(output.args[0], (tuple, list))
        self.runs = Runs()
        """Of the library; those in which it is compared and timed do not count."""
        self._run: Run | None = None
        self._runner: Any = None
        self._benchmark = PairedBenchmark()
        self._deciding = threading.Lock()

    def __call__(self, *tensors: Any) -> Any:
        if self._run is None and self._trials.until is not None:
            self._try(tensors)
        return (self._run or self._eager)(*tensors)

    @property
    def compiled(self) -> bool:
        """Whether it runs compiled code of ours. Until that is decided: whether it may."""
        return self.spec is not None if self._run is None else self._runner is not None

    @property
    def decided(self) -> bool:
        return self._run is not None

    @property
    def key(self) -> str | None:
        """Of what is compiled and how it is run; None where nothing is."""
        if self.spec is None:
            return None
        return f"{self.spec.key} graphs" if self._graphs else self.spec.key

    def forget_weights(self) -> None:
        """The weights are laid out again at the next call, as after a step of an optimiser."""
        if self._runner is not None:
            self._runner.forget()

    def build(self) -> None:
        """Builds the library, or takes it from the cache, and opens it. Takes seconds; raises nothing."""
        if self.spec is None:
            if self._otherwise != "inductor":
                self._run = self._by_eager(self.report.reason)
            return
        verdict = known(self._verdict_file())
        if verdict is not None and not verdict.use:
            self._run = self._by_eager(verdict.reason, verdict)
            return
        try:
            runner = self._opened()
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            self._fail("a part of the model runs in eager mode", error)
            return
        self._runner = runner
        if verdict is not None or self._alone:
            self._use(verdict)

    def _use(self, verdict: Verdict | None) -> None:
        self._tell("pitchpipe", "" if verdict is None else verdict.reason, verdict)
        self._run = self._guarded

    def _fail(self, what: str, error: Exception) -> None:
        assert self.spec is not None
        self._runner = None
        if not process_ends():
            warn_once(self.spec.key, f"{what}: {error}")
        self._run = self._by_eager(str(error))

    def _verdict_file(self) -> Any:
        return verdict_file(cache_dir(), "partition", self.key, self._stepping)

    def _try(self, tensors: Sequence[Any]) -> None:
        """Goes on with the paired benchmark while there is time, unless another thread or process does."""
        until = self._trials.until
        if until is None or not self._deciding.acquire(blocking=False):
            return
        try:
            if self._run is None and self.spec is None:
                self._run = self._inductor(tensors)
            elif self._run is None and self._runner is not None and self._trials.may_go_on():
                self._go_on(tensors, until)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail("a part of the model runs in eager mode", error)
        finally:
            self._deciding.release()

    def _go_on(self, tensors: Sequence[Any], until: float) -> None:
        def ours() -> Outcome:
            if self._stepping:
                self._runner.forget()
            return Outcome(tensors=self._runner(*tensors))

        def theirs() -> Outcome:
            found = self._eager(*tensors)
            return Outcome(tensors=(found,) if self._one else tuple(found))

        file = self._verdict_file()
        with turn_of(file) as mine, torch.no_grad():
            verdict = known(file)
            if verdict is None and mine:
                verdict = self._benchmark.go_on(ours, theirs, until=until)
                if verdict is not None:
                    write_json(file, verdict)
        if verdict is not None and verdict.use:
            self._use(verdict)
        elif verdict is not None:
            self._runner = None
            self._run = self._by_eager(verdict.reason, verdict)

    def _opened(self) -> Any:
        assert self.spec is not None
        folder = self.spec.folder(cache_dir())
        if (failed := failure(folder)) is not None:
            raise PitchpipeError(failed.detail)
        if lacks_linker(self.spec.target) and not folder.exists():
            raise PitchpipeError("no linker was found, and the cache holds no library")
        made = make(self.spec, cache_dir())
        with in_native_code():
            manifest, library = open_library(made, self.spec.target)
            self.runs.tuned = manifest.tuned
            if kind_of(self.spec.target).has_streams:
                from pitchpipe.torch_backend.run_on_gpu import GpuRunner

                return GpuRunner(
                    manifest, library, self._is_weight, self._results, bounds=self._bounds, graphs=self._graphs
                )
            from pitchpipe.torch_backend.run import Runner

            return Runner(manifest, library, self._is_weight, self._results, bounds=self._bounds)

    def _guarded(self, *tensors: Any) -> Any:
        runner = self._runner
        if runner is None:
            return self._eager(*tensors)
        try:
            found = runner(*tensors)
        except OutOfRange:
            return self._eager(*tensors)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail("a part of the model goes on in eager mode", error)
            return self._eager(*tensors)
        if self._trials.until is None:
            self.runs.done += 1
        return found[0] if self._one else found

    def _inductor(self, tensors: Sequence[Any]) -> Run:
        try:
            from torch._inductor.compile_fx import compile_fx

            compiled = compile_fx(self._eager, list(tensors))
            compiled(*tensors)
        except Exception as error:  # noqa: BLE001 - inductor needs a compiler, and has bugs of its own
            warn_once("inductor", f"inductor failed, running in eager mode: {error}")
            return self._by_eager(f"inductor failed: {error}")
        self._tell("inductor", self.report.reason, None)
        one = self._one

        def run(*tensors: Any) -> Any:
            found = compiled(*tensors)
            return found[0] if one and isinstance(found, (tuple, list)) else found

        return run

    def _by_eager(self, reason: str, verdict: Verdict | None = None) -> Run:
        self._tell("eager", reason, verdict)
        eager: Run = self._eager
        return eager

    def _tell(self, runs: str, reason: str, verdict: Verdict | None) -> None:
        self.report.runs, self.report.reason = runs, reason
        if verdict is not None:
            self.report.secs, self.report.eager_secs = verdict.secs, verdict.eager_secs
