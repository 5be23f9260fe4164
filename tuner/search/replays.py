"""Candidates are replayed before they are issued, on kinds of targets where many would not be built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pitchpipe.errors import InvalidTrace
from pitchpipe.target_kind import kind_of
from pitchpipe.wire.target import Target
from tuner.schedule.trace import encode_trace
from tuner.search.candidates import Individual


class Replays:
    """The traces of individuals as they are issued, each made and replayed once."""

    def __init__(self, mod: Any, target: Target, parallel: Callable[..., Iterable[Any]]) -> None:
        self.mod, self.target, self.parallel = mod, target, parallel
        self.kind = kind_of(target)
        self.known: dict[str, str | None] = {}
        self.refused: list[str] = []
        """Errors of individuals that would not be built."""

    def prepare(self, individuals: Sequence[Individual]) -> None:
        """Replays individuals in parallel, where that takes long, before `trace` asks for them one by one."""
        if not self.kind.replays_candidates:
            return
        new = [individual for individual in individuals if individual.key not in self.known]
        for individual, outcome in zip(new, self.parallel(self._replayed, new), strict=True):
            self._keep(individual, *outcome)

    def trace(self, individual: Individual) -> str | None:
        """The trace to issue; None where it may not be issued or would not be built."""
        if individual.key not in self.known:
            self._keep(individual, *self._replayed(individual))
        return self.known[individual.key]

    def _keep(self, individual: Individual, trace: str | None, error: str | None) -> None:
        self.known[individual.key] = trace
        self.refused += [] if error is None else [error]

    def _replayed(self, individual: Individual) -> tuple[str | None, str | None]:
        try:
            trace = encode_trace(individual.schedule.trace)
        except InvalidTrace:
            return None, None
        if not self.kind.replays_candidates:
            return trace, None
        try:
            self.kind.replayed(self.mod, trace, self.target)
        except Exception as error:  # noqa: BLE001 - TVM raises whatever its C++ side met; such a draw is no candidate
            return None, f"{type(error).__name__}: {error}"[:300]
        return trace, None
