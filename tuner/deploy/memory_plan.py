"""Where intermediate results lie in one block of scratch memory, planned before anything runs.

Two buffers may share memory when no launch from the first to the last that touches one lies among those of the other. The
plan is greedy best fit: the largest buffer first, each at the place where the least memory is left over around it, among
those that are placed already and live at the same time. Nothing is computed in place: a launch's arguments are all live
during it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pitchpipe.gpu.program import ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A buffer's bytes, and the first and the last launch that touch it, both of them included."""

    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both live during some launch."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Offsets in bytes, in the order of the lifetimes, and the bytes that all of them need."""

    offsets: tuple[int, ...]
    size_bytes: int


def plan(lifetimes: Sequence[Lifetime]) -> Plan:
    """Offsets at multiples of ALIGNMENT such that buffers that live at the same time do not overlap."""
    sizes = [-(-one.size_bytes // ALIGNMENT) * ALIGNMENT for one in lifetimes]
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for at in sorted(range(len(lifetimes)), key=lambda at: (-sizes[at], lifetimes[at].first, at)):
        beside = sorted((offsets[i], offsets[i] + sizes[i]) for i in placed if lifetimes[i].overlaps(lifetimes[at]))
        offsets[at] = _best(beside, sizes[at])
        placed.append(at)
    return Plan(offsets=tuple(offsets), size_bytes=max((offsets[at] + sizes[at] for at in placed), default=0))


def _best(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap between intervals, sorted, that is large enough; behind all of them if there is none."""
    best, least, end = -1, 0, 0
    for start, stop in taken:
        gap = start - end
        if gap >= size and (best < 0 or gap < least):
            best, least = end, gap
        end = max(end, stop)
    return end if best < 0 else best
