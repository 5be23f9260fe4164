"""Which part of a sequence fails: the smallest that a few tries find.

`fails` is asked of lists in the order of the sequence. Nothing is assumed of it but that the whole sequence fails. A
prefix of a model's nodes is compared in every value that nodes behind it read, so where it is right and the prefix with
one more node is not, that node is the first whose output differs while its inputs agree; a search by halves finds such a
place whatever happens elsewhere, as it keeps a prefix that is right and one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

DROPPED_ONE_BY_ONE = 24
"""Longest list of which every element is left out in turn: each costs a build."""


def reduce(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """A sublist that fails, in order, whose last element completes a failing prefix. `items` is known to fail.

    Costs about 2 log2(n) calls, and up to DROPPED_ONE_BY_ONE more.
    """
    kept = list(items)
    kept = kept[: bisected(0, len(kept), lambda count: fails(kept[:count]))]
    if len(kept) < 2 or fails(kept[-1:]):
        return kept[-1:]
    # From the other end: the shortest suffix that fails.
    kept = kept[len(kept) - bisected(0, len(kept), lambda count: fails(kept[len(kept) - count :])) :]
    if len(kept) > DROPPED_ONE_BY_ONE:
        return kept
    at = 0
    while at < len(kept) - 1:
        without = kept[:at] + kept[at + 1 :]
        if fails(without):
            kept = without
        else:
            at += 1
    return kept


def bisected(right: int, wrong: int, fails: Callable[[int], bool]) -> int:
    """A number above `right`, `wrong` at most, that fails where one less does not. `right` is known not to fail, `wrong` is
    known to."""
    while wrong - right > 1:
        middle = (right + wrong) // 2
        if fails(middle):
            wrong = middle
        else:
            right = middle
    return wrong
