"""The points of the templates of contractions for a workload, the best first.

An analytic estimate of the time (estimate.py), which experience of other workloads corrects (experience.py), ranks them. It
only ranks: times are measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pitchpipe.wire.target import Target
from tuner.templates.contraction import Contraction
from tuner.templates.estimate import estimate_secs
from tuner.templates.experience import factors
from tuner.templates.points import Points, points_of
from tuner.templates.text import checked

LISTED = 4096
"""Points of a space that are offered, the best ones: a search tries some hundreds."""
ALIKE = 0.04
"""What each better point of the same tile and parts adds to an estimate, as a share of it, so that the first ones differ."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A point of a template's space."""

    text: str
    estimate_secs: float


def contraction_space(found: Contraction, target: Target) -> list[Ranked]:
    """The best points of all templates of contractions for a contraction, the best by the estimate first."""
    spaces = points_of(found, target)
    if not spaces:
        return []
    secs = np.concatenate([expected_secs(found, target, points) for points in spaces])
    places = [(points, number) for points in spaces for number in range(len(points))]
    best = [(float(secs[at]), *places[at]) for at in map(int, np.argsort(secs, kind="stable")[:LISTED])]
    return [
        Ranked(text=checked(points.template, points.at(number)).text, estimate_secs=one)
        for one, points, number in _varied(best)
    ]


def expected_secs(found: Contraction, target: Target, points: Points) -> NDArray[np.float64]:
    """The estimate of each point's time, corrected where there is experience of such points."""
    estimates = estimate_secs(found, points)
    return estimates * factors(found, target, points, estimates)


def _varied(ranked: list[tuple[float, Points, int]]) -> list[tuple[float, Points, int]]:
    """Ranked points, in an order in which those of one template, tile, parts and cluster do not all come together."""
    seen: dict[tuple[str | int, ...], int] = {}
    placed = []
    for number, (secs, points, at) in enumerate(ranked):
        sides = (int(points[name][at]) for name in ("rows", "columns", "parts", "cluster"))
        tile: tuple[str | int, ...] = (points.template, *sides)
        seen[tile] = seen.get(tile, 0) + 1
        placed.append((secs * (1 + ALIKE) ** (seen[tile] - 1), number))
    return [ranked[number] for _, number in sorted(placed)]
