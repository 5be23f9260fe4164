"""Running a program on its caller's arguments with nothing left behind: what is compared and timed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from pitchpipe.torch_backend import paired_benchmark
from pitchpipe.torch_backend.paired_benchmark import Outcome


class Shared(Exception):
    """A program cannot be rehearsed: it writes into memory that two of its arguments have in common."""


class Rehearsal:
    """Runs a program's forward, and its backward where there is one, from the same random state each time.

    What it writes into is a copy, of which the outcome has the last state: buffers of a norm in training mode, arguments
    that are changed in place. Gradients are of the arguments that want them, for the same gradients of the results.
    """

    def __init__(
        self, arguments: Sequence[Any], mutated: Collection[int], *, stepping: bool, computed: str | None = None
    ) -> None:
        """mutated: places of the arguments that the program writes into. computed: of outcomes. Raises Shared."""
        self._mutated, self._stepping, self._computed = frozenset(mutated), stepping, computed
        self._arguments = [one.detach() if isinstance(one, torch.Tensor) else one for one in arguments]
        self._wants = [isinstance(one, torch.Tensor) and one.requires_grad and stepping for one in arguments]
        self._tangents: list[Any] | None = None
        memory = [_address(one) for one in self._arguments]
        if any(memory[at] is not None and memory.count(memory[at]) > 1 for at in self._mutated):
            raise Shared("it writes into memory that two of its arguments share")

    def __call__(self, run: Callable[..., Any]) -> Outcome:
        _seed()
        given, leaves = self._given()
        results = list(run(*given))
        facts = [_fact(one, given, results[:at]) for at, one in enumerate(results)]
        gradients = self._gradients(results, leaves) if self._stepping else []
        written = [given[at] for at in sorted(self._mutated) if isinstance(given[at], torch.Tensor)]
        found = [one.detach() if isinstance(one, torch.Tensor) else one for one in (*results, *gradients, *written)]
        return Outcome(tensors=found, facts=facts, computed=self._computed)

    def nudged(self) -> Rehearsal:
        """The same with arguments that differ by rounding, and the same gradients of its results."""
        found = copy.copy(self)
        found._arguments = [
            one * (1 + paired_benchmark.NUDGE * torch.randn_like(one))
            if isinstance(one, torch.Tensor) and one.is_floating_point()
            else one
            for one in self._arguments
        ]
        return found

    def _given(self) -> tuple[list[Any], list[Any]]:
        """Arguments to run with, and those whose gradients are asked for."""
        given, leaves = [], []
        for at, (one, wants) in enumerate(zip(self._arguments, self._wants, strict=True)):
            if wants:
                one = one.detach().requires_grad_()
                leaves.append(one)
            if at in self._mutated and isinstance(one, torch.Tensor):
                one = one.clone()  # of a leaf, no leaf: it may be written into
            given.append(one)
        return given, leaves

    def _gradients(self, results: Sequence[Any], leaves: Sequence[Any]) -> Sequence[Any]:
        differentiable = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
        if self._tangents is None:
            self._tangents = [torch.randn_like(one) for one in differentiable]
        if not (differentiable and leaves):
            return []
        found: Sequence[Any] = torch.autograd.grad(differentiable, leaves, self._tangents, allow_unused=True)
        return found


def _seed() -> None:
    """The random state that every run begins with.

    Where there is no accelerator, torch.manual_seed would keep a call for each kind of them, with the text of this stack:
    milliseconds, several times those of a small program, and memory that is never given back.
    """
    seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
    seed(0)


def _address(one: Any) -> int | None:
    if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
        return None
    return one.untyped_storage().data_ptr() or None


def _fact(one: Any, given: Sequence[Any], before: Sequence[Any]) -> str:
    """What a caller could tell about a result besides its values. before: the results that come before it."""
    if not isinstance(one, torch.Tensor):
        return repr(one)
    strides = [s if extent > 1 else 1 for s, extent in zip(one.stride(), one.shape, strict=True)] if one.numel() else []
    address = _address(one)
    shared = ""
    for what, others in (("argument", given), ("result", before)):
        places = [at for at, other in enumerate(others) if address is not None and _address(other) == address]
        shared += f", in the memory of {what} {places[0]}" if places else ""
    return f"of strides {strides}, {'with' if one.requires_grad else 'without'} gradient{shared}"
