"""A partition at run time: compiled, if its library is there, right and faster; else what PyTorch would do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pitchpipe.artifact import cache_dir, linker, open_library
from pitchpipe.building import Recipe, failure, make
from pitchpipe.errors import PitchpipeError
from pitchpipe.torch_backend.duel import Verdict, duel, known, settled, verdict_file
from pitchpipe.torch_backend.report import PartitionReport
from pitchpipe.torch_backend.warning import warn_once

Run = Callable[..., Any]


class Part(torch.nn.Module):  # type: ignore[misc]
    """Takes the place of a partition's submodule. What runs it is decided at its first call."""

    def __init__(
        self,
        eager: Any,
        recipe: Recipe | None,
        report: PartitionReport,
        *,
        is_weight: Sequence[bool],
        results: Sequence[Any],
        device: Any,
        training: bool,
        alone: bool,
        otherwise: str,
    ) -> None:
        """recipe: None where the partition is not to be compiled by us; `otherwise`, eager or inductor, runs it then.

        training: weights change with every call. alone: it is all of its graph, which is tried as a whole.
        """
        super().__init__()
        self._eager = [eager]  # in a list: not a submodule
        self.recipe, self.report = recipe, report
        self._is_weight, self._results, self._device = is_weight, results, device
        self._stepping, self._alone, self._otherwise = training, alone, otherwise
        (output,) = eager.graph.find_nodes(op="output")
        self._one = not isinstance(output.args[0], (tuple, list))
        self._run: Run | None = None
        self._runner: Any = None
        self._deciding = threading.RLock()

    def forward(self, *tensors: Any) -> Any:
        if self._run is None:
            with self._deciding:
                if self._run is None:
                    self._run = self._decided(tensors)
        return self._run(*tensors)

    @property
    def compiled(self) -> bool:
        """Whether it runs compiled code of ours. Before the first call: whether it may."""
        return self.recipe is not None if self._run is None else self._runner is not None

    def forget_weights(self) -> None:
        """The weights are laid out again at the next call, as after a step of an optimiser."""
        if self._runner is not None:
            self._runner.forget()

    def _decided(self, tensors: Sequence[Any]) -> Run:
        if self.recipe is None:
            return self._inductor(tensors) if self._otherwise == "inductor" else self._by_eager(self.report.reason)
        file = verdict_file(cache_dir(), "partition", self.recipe.key, self._stepping)
        verdict = known(file)
        if verdict is not None and not verdict.use:
            return self._by_eager(verdict.reason, verdict)
        try:
            self._runner = self._opened()
            if verdict is None and not self._alone:
                verdict = settled(file, lambda: self._tried(tensors))
            if verdict is not None and not verdict.use:
                self._runner = None
                return self._by_eager(verdict.reason, verdict)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
            self._runner = None
            warn_once(self.recipe.key, f"a part of the model runs in eager mode: {error}")
            return self._by_eager(str(error))
        self._tell("pitchpipe", "" if verdict is None else verdict.reason, verdict)
        return self._guarded

    def _opened(self) -> Any:
        assert self.recipe is not None
        folder = self.recipe.folder(cache_dir())
        if (failed := failure(folder)) is not None:
            raise PitchpipeError(failed.detail)
        if linker() is None and not folder.exists():
            raise PitchpipeError("no linker was found, and the cache holds no library")
        from pitchpipe.torch_backend.run import Runner

        manifest, library = open_library(make(self.recipe, cache_dir()), self.recipe.target)
        return Runner(manifest, library, self._device, self._is_weight, self._results, self.recipe.cuda_graphs)

    def _tried(self, tensors: Sequence[Any]) -> Verdict:
        def ours() -> Sequence[Any]:
            if self._stepping:
                self._runner.forget()
            found: Sequence[Any] = self._runner(*tensors)
            return found

        def theirs() -> Sequence[Any]:
            found = self._eager[0](*tensors)
            return (found,) if self._one else tuple(found)

        with torch.no_grad():
            return duel(ours, theirs)

    def _guarded(self, *tensors: Any) -> Any:
        try:
            found = self._runner(*tensors)
        except Exception as error:  # noqa: BLE001 - as above
            assert self.recipe is not None
            warn_once(self.recipe.key, f"a part of the model goes on in eager mode: {error}")
            self._runner = None
            self._run = self._by_eager(str(error))
            return self._run(*tensors)
        return found[0] if self._one else found

    def _inductor(self, tensors: Sequence[Any]) -> Run:
        try:
            from torch._inductor.compile_fx import compile_fx

            compiled = compile_fx(self._eager[0], list(tensors))
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
        eager: Run = self._eager[0]
        return eager

    def _tell(self, runs: str, reason: str, verdict: Verdict | None) -> None:
        self.report.runs, self.report.reason = runs, reason
        if verdict is not None:
            self.report.secs, self.report.eager_secs = verdict.secs, verdict.eager_secs
