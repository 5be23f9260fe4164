"""Graph preparation for a GPU."""

from __future__ import annotations

from tuner.graph.prepare import ALWAYS, Rewrites
from tuner.graph.simplify import simplify

REWRITES = Rewrites(always=ALWAYS, products=(), layout=(simplify,))
