"""Calls in CUDA graphs, timed in turn, and how far their results are from right ones. torch is passed in: it is needed only
where there is a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rounds import orders, time_of

REPLAYS = 5
"""Of a graph in a row, in each of its turns."""


def captured(torch: Any, calls: Sequence[Callable[[], Any]]) -> Any:
    """A CUDA graph of all calls, whose results stay: none is written where another was."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    del results
    return graph


def timed(torch: Any, graphs: Mapping[str, Any], calls: int, rounds: int) -> dict[str, float]:
    """Seconds of one call in each graph, the median of rounds."""
    names, samples = list(graphs), {name: list[list[float]]() for name in graphs}
    for order in orders(len(names), rounds):
        for name in (names[at] for at in order):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graphs[name].replay()
            begin.record()
            for _ in range(REPLAYS):
                graphs[name].replay()
            end.record()
            end.synchronize()
            samples[name].append([begin.elapsed_time(end) * 1e-3 / (REPLAYS * calls)])
    return {name: time_of(found).value for name, found in samples.items()}


def error_of(torch: Any, found: Any, expected: Any) -> float:
    """Largest |a_i - r_i| / (|r_i| + s), s the root mean square of r; infinite for another shape. For positions: whether
    any differs."""
    if found.shape != expected.shape:
        return math.inf
    if not found.is_floating_point():
        return float((found != expected).any())
    a, r = found.double(), expected.double()
    error = ((a - r).abs() / (r.abs() + r.square().mean().sqrt())).max()
    return float(error) if bool(torch.isfinite(error)) else math.inf
