"""Compiled against what PyTorch does by itself, on the program's own tensors: right first, then faster, or not used.

Both sides take turns of a few runs (ABBA), each turn after a run that is not counted: the other side's threads spin for a
while after their work. The verdict is kept in the cache, so that a machine pays for it once per graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import filelock
import torch

from pitchpipe.identity import machine_key, read_json, write_json
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest

BUDGET_SECS = 1.0
LEAST_ROUNDS = 3
MOST_ROUNDS = 15
WAIT_SECS = 30.0
"""Longest wait for another process's verdict."""
TURN_SECS, TURN_RUNS = 0.02, 8
"""A turn ends after so many seconds or runs, whichever comes first."""
MARGIN = 0.98
"""Of PyTorch's time. What is not faster by more than timing here can tell is not worth the crossing."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Largest |a - r| / (|r| + s), r PyTorch's result and s its root mean square."""
CANCELLED = 0.05
"""Least |r| + s, as a share of the largest s of all results: a gradient that is zero but for rounding, as of a bias before a
norm, is as large as the rounding of its terms."""

NUDGE = 2.0**-20
"""Relative change of an argument, eight times what float32 can tell: as much as another order of a sum's terms makes."""
AS_FAR = 4.0
"""Times what the nudge makes of a result, a result of ours may be off: one random change stands for all of its size."""
FARTHEST = 0.2
"""... but never more than this."""


class Verdict(Wire):
    """What a duel found."""

    use: bool
    """Whether the compiled side is to run."""
    reason: str
    secs: float | None = None
    """Median seconds of a compiled run; None when the results were wrong."""
    eager_secs: float | None = None


def duel(
    ours: Callable[[], Sequence[Any]],
    theirs: Callable[[], Sequence[Any]],
    *,
    compare: bool = True,
    nudged: Callable[[], Sequence[Any]] | None = None,
) -> Verdict:
    """Runs both sides; `compare` their results unless they are random. `nudged` gives PyTorch's results for arguments
    that differ in their last digits, and is asked only where the results differ."""
    if compare:
        found, expected = ours(), theirs()
        wrong = difference(found, expected)
        if wrong is not None and nudged is not None:
            wrong = difference(found, expected, nudged())
        if wrong is not None:
            return Verdict(use=False, reason=wrong)
    mine: list[float] = []
    others: list[float] = []
    started = time.perf_counter()
    for round_ in range(MOST_ROUNDS):
        for turn in (0, 1) if round_ % 2 == 0 else (1, 0):
            (mine, others)[turn].append(_turn((ours, theirs)[turn]))
        if round_ + 1 >= LEAST_ROUNDS and time.perf_counter() - started > BUDGET_SECS:
            break
    ratio = statistics.median(a / b for a, b in zip(mine, others, strict=True))
    secs, eager_secs = statistics.median(mine), statistics.median(others)
    if ratio <= MARGIN:
        return Verdict(use=True, reason=f"{1 / ratio:.2f} times as fast as eager", secs=secs, eager_secs=eager_secs)
    return Verdict(use=False, reason=f"eager takes {1 / ratio:.2f} of its time", secs=secs, eager_secs=eager_secs)


def _turn(call: Callable[[], Any]) -> float:
    """Median seconds of a run."""
    call()
    found: list[float] = []
    while len(found) < TURN_RUNS and sum(found) < TURN_SECS:
        _wait()
        before = time.perf_counter()
        call()
        _wait()
        found.append(time.perf_counter() - before)
    return statistics.median(found)


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def difference(found: Sequence[Any], expected: Sequence[Any], nudged: Sequence[Any] | None = None) -> str | None:
    """How results differ by more than rounding; None when they do not.

    With `nudged` a result may be as far off as it, times AS_FAR: a gradient through many norms and rectifiers magnifies
    the last digits, whoever computes it.
    """
    pairs = [(at, a, r) for at, (a, r) in enumerate(zip(found, expected, strict=True)) if isinstance(r, torch.Tensor)]
    rounded = []
    for at, a, r in pairs:
        if (a.shape, a.dtype, a.device) != (r.shape, r.dtype, r.device):
            return f"result {at} is {a.dtype}{list(a.shape)}, eager's {r.dtype}{list(r.shape)}"
        if not r.dtype.is_floating_point:
            if not torch.equal(a, r):
                return f"result {at} differs from eager's"
            continue
        usable = torch.isfinite(r)
        if not torch.equal(torch.isfinite(a), usable):
            return f"result {at} has other infinities than eager's"
        if usable.any():
            rounded.append((at, a.detach()[usable].double(), r.detach()[usable].double(), TOLERANCE[r.dtype], usable))
    sizes = [float(r.square().mean().sqrt()) for _, _, r, _, _ in rounded]
    for (at, a, r, tolerance, usable), size in zip(rounded, sizes, strict=True):
        scale = (r.abs() + size).clamp_min(CANCELLED * max(sizes) or 1e-3)
        error = float(((a - r).abs() / scale).max())
        if error > tolerance and nudged is not None:
            own = ((nudged[at].detach()[usable].double() - r).abs() / scale).max()
            tolerance = max(tolerance, min(AS_FAR * float(own), FARTHEST))
        if error > tolerance:
            return f"result {at} is {error:.2g} off eager's"
    return None


def verdict_file(cache: Path, *key: object) -> Path:
    """Where the verdict on something is kept, for this machine, these versions and this number of threads."""
    named = json_digest([*key, machine_key(), torch.__version__, torch.get_num_threads()])
    return cache / "verdicts" / f"{named}.json"


def known(path: Path) -> Verdict | None:
    """The kept verdict."""
    return read_json(path, Verdict)


def settled(path: Path, decide: Callable[[], Verdict]) -> Verdict:
    """The kept verdict, else what `decide` finds, which is kept. Of several processes one decides and the others wait:
    they would time each other."""
    if (found := known(path)) is not None:
        return found
    lock = filelock.FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=WAIT_SECS)
    except (OSError, filelock.Timeout):  # a cache that cannot be written is none
        return decide()
    try:
        found = known(path)
        if found is None:
            found = decide()
            write_json(path, found)
        return found
    finally:
        lock.release()
