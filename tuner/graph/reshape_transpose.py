"""Chains of reshapes and permutations, which move elements or only name them anew.

A chain is followed on the factors of its source's extents: a reshape splits and joins neighbouring factors, a
permutation changes their order, extents of one do not count. In the end the order says what the chain is: a reshape, if
nothing moved; else one reshape, one permutation and, for extents of one and what is seen as one dimension in the end,
another reshape, however long it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Step = tuple[str, Sequence[int]]
"""("reshape", shape) or ("permute", axes)."""


@dataclass(frozen=True)
class _Factor:
    place: tuple[int, ...]
    """Sorts factors in the order of the source's memory; the parts of a split factor have one more number."""
    extent: int


@dataclass(frozen=True, kw_only=True)
class Movement:
    """What a chain does: reshape its source to `split`, permute by `axes`, reshape to the chain's last shape."""

    split: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def moves_nothing(self) -> bool:
        return list(self.axes) == sorted(self.axes)


def followed(source: Sequence[int], steps: Sequence[Step]) -> Movement | None:
    """The movement of a chain of steps on a tensor of shape `source`; None where a reshape joins what cannot be told
    apart in factors (as [4, 6] transposed and seen as [8, 3])."""
    if 0 in source:
        return None
    dims = [[_Factor((place,), extent)] if extent > 1 else [] for place, extent in enumerate(source)]
    for kind, wanted in steps:
        if kind == "permute":
            dims = [dims[axis] for axis in wanted]
            continue
        regrouped = _regrouped([factor for dim in dims for factor in dim], wanted)
        if regrouped is None:
            return None
        dims = regrouped
    joined = _joined(dims)
    places = sorted(joined, key=lambda run: run[0].place)
    return Movement(
        split=tuple(math.prod(factor.extent for factor in run) for run in places),
        axes=tuple(places.index(run) for run in joined),
    )


def _regrouped(factors: list[_Factor], shape: Sequence[int]) -> list[list[_Factor]] | None:
    left = list(factors)
    dims: list[list[_Factor]] = []
    for extent in shape:
        dim: list[_Factor] = []
        while extent > 1:
            if not left:
                return None
            factor = left.pop(0)
            if factor.extent > extent:
                if factor.extent % extent:
                    return None
                left.insert(0, _Factor((*factor.place, 1), factor.extent // extent))
                factor = _Factor((*factor.place, 0), extent)
            if extent % factor.extent:
                return None
            dim.append(factor)
            extent //= factor.extent
        dims.append(dim)
    return dims if not left else None


def _joined(dims: list[list[_Factor]]) -> list[list[_Factor]]:
    """The factors of each dimension in runs that follow each other in the source too."""
    order = sorted((factor for dim in dims for factor in dim), key=lambda factor: factor.place)
    rank = {factor.place: index for index, factor in enumerate(order)}
    runs: list[list[_Factor]] = []
    for dim in dims:
        for index, factor in enumerate(dim):
            if index and rank[factor.place] == rank[runs[-1][-1].place] + 1:
                runs[-1].append(factor)
            else:
                runs.append([factor])
    return runs
