"""What a chain of reshapes and permutations does to the order of elements: whether it moves any, and how.

A chain is followed on factors of its source's extents: a reshape splits and groups neighbouring factors, a permutation
changes their order, and extents of one are ignored. The order of the factors in the end says what the whole chain is,
however long it was: a reshape, if the order is unchanged; else a reshape, one permutation, and a last reshape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Step = tuple[str, Sequence[int]]
"""One step of a chain: ("reshape", shape) or ("permute", axes)."""


@dataclass(frozen=True)
class _Factor:
    place: tuple[int, ...]
    """Sorts factors in the order of the source's memory. The two parts of a split factor append 0 and 1 to its place."""
    extent: int


@dataclass(frozen=True, kw_only=True)
class Movement:
    """A chain in three steps: reshape its source to `split`, permute by `axes`, reshape to the chain's last shape."""

    split: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def moves_nothing(self) -> bool:
        return list(self.axes) == sorted(self.axes)


def followed(source: Sequence[int], steps: Sequence[Step]) -> Movement | None:
    """The movement of a chain of steps on a tensor of shape `source`.

    None where a reshape cuts across factors (as where [4, 6] is transposed and then reshaped to [8, 3]).
    """
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
    """The factors of each dimension, grouped into runs of factors that are neighbours in the source too."""
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
