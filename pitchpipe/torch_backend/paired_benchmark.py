"""Paired benchmarks: compiled against what PyTorch does by itself, on the program's own tensors. Right first, then faster.

Both sides take turns of a few runs (ABBA), each turn after a run that is not counted: the other side's threads spin for a
while after their work. The verdict is kept in the cache, so that a machine pays for it once per graph. A benchmark that
takes longer than a call of the program has time for goes on in later calls.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch

from pitchpipe.deploy.identity import machine_key, read_json
from pitchpipe.model import comparison
from pitchpipe.torch_backend.own_code import own_code
from pitchpipe.torch_operators.ties import TiesByPlace
from pitchpipe.wire._base import Wire
from pitchpipe.wire.ids import json_digest

BUDGET_SECS = 1.0
LEAST_ROUNDS = 3
MOST_ROUNDS = 15
TURN_SECS, TURN_RUNS = 0.02, 8
"""A turn ends after so many seconds or runs, whichever comes first."""
MARGIN = 0.98
"""Of PyTorch's time. What is not faster by more than timing here can tell is not worth the crossing."""
"""By type; see comparison.py for the error that is meant."""

NUDGE = 2.0**-20
"""Relative change of an argument, eight times what float32 can tell: as much as another order of a sum's terms makes."""
AS_FAR = 4.0
"""Times what the nudge makes of a result, a result of ours may be off: one random change stands for all of its size."""
FARTHEST = 0.2
"""... but never more than this."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gave."""

    tensors: Sequence[Any]
    """Results, and whatever else is to be equal: gradients, what was written into arguments."""
    facts: Sequence[str] = ()
    """What is to be equal about them besides their values, such as strides."""
    computed: str | None = None
    """The least precise floating-point type of the program (`comparison.tolerance`)."""


class Verdict(Wire):
    """What a paired benchmark found."""

    use: bool
    """Whether the compiled side is to run."""
    reason: str
    secs: float | None = None
    """Median seconds of a compiled run; None when the results were wrong."""
    eager_secs: float | None = None
    ratio: float | None = None
    """Median of PyTorch's time over ours, turn by turn."""


class PairedBenchmark:
    """One paired benchmark, in as many pieces as calls of the program have time for. Not thread-safe."""

    def __init__(self) -> None:
        self._compared = False
        self._secs: tuple[list[float], list[float]] = ([], [])
        """Of turns: ours, PyTorch's."""
        self._spent_secs = self._longest_secs = 0.0

    def go_on(
        self,
        ours: Callable[[], Outcome],
        theirs: Callable[[], Outcome],
        *,
        nudged: Callable[[], Outcome] | None = None,
        until: float = float("inf"),
    ) -> Verdict | None:
        """Compares, then times, until there is a verdict or it is `until` (of the monotonic clock): None then.

        A piece is at least a comparison or a turn. `nudged` gives PyTorch's results for arguments that differ in their
        last digits, and is asked only where the results differ.
        """
        first = True
        while first or time.monotonic() + self._longest_secs < until:
            if not self._compared:
                wrong = compared(ours, theirs, nudged)
                if wrong is not None:
                    return Verdict(use=False, reason=wrong)
                self._compared = True
            elif (verdict := self._verdict()) is not None:
                return verdict
            else:
                self._turn(ours, theirs)
            first = False
        return self._verdict()

    def _turn(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        """The next one in the order ABBA."""
        mine, others = self._secs
        round_ = min(len(mine), len(others))
        leads = round_ % 2
        side = leads if len(mine) == len(others) else 1 - leads
        before = time.monotonic()
        self._secs[side].append(_turn((ours, theirs)[side]))
        took_secs = time.monotonic() - before
        self._spent_secs += took_secs
        self._longest_secs = max(self._longest_secs, took_secs)

    def _verdict(self) -> Verdict | None:
        mine, others = self._secs
        rounds = len(mine)
        if rounds != len(others) or rounds < LEAST_ROUNDS:
            return None
        if rounds < MOST_ROUNDS and self._spent_secs <= BUDGET_SECS:
            return None
        ratio = statistics.median(a / b for a, b in zip(mine, others, strict=True))
        secs, eager_secs = statistics.median(mine), statistics.median(others)
        use = ratio <= MARGIN
        reason = f"{1 / ratio:.2f} times as fast as eager" if use else f"eager takes {1 / ratio:.2f} of its time"
        return Verdict(use=use, reason=reason, secs=secs, eager_secs=eager_secs, ratio=1 / ratio)


def compared(
    ours: Callable[[], Outcome], theirs: Callable[[], Outcome], nudged: Callable[[], Outcome] | None = None
) -> str | None:
    """How the results of both sides differ, by one run of each; None when they do not.

    Where they differ, they are compared again with equal elements in one order, which PyTorch leaves open (`TiesByPlace`).
    """
    found, expected = ours(), theirs()
    wrong = difference(found.tensors, expected.tensors, computed=found.computed)
    if wrong is not None:
        with TiesByPlace():
            expected = theirs()
            wrong = difference(found.tensors, expected.tensors, computed=found.computed)
            if wrong is not None and nudged is not None:
                wrong = difference(found.tensors, expected.tensors, nudged().tensors, computed=found.computed)
    if wrong is None and found.facts != expected.facts:
        at = next(i for i, (a, r) in enumerate(zip(found.facts, expected.facts, strict=True)) if a != r)
        wrong = f"result {at} is {found.facts[at]}, eager's {expected.facts[at]}"
    return wrong


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


def difference(
    found: Sequence[Any],
    expected: Sequence[Any],
    nudged: Sequence[Any] | None = None,
    *,
    computed: str | None = None,
) -> str | None:
    """How results differ by more than rounding; None when they do not. `computed` is as for `comparison.tolerance`.

    With `nudged` a result may be as far off as it, times AS_FAR: a gradient through many norms and rectifiers magnifies
    the last digits, whoever computes it.
    """
    if len(found) != len(expected):
        return f"there are {len(found)} results, not {len(expected)}"
    pairs = [(at, a, r) for at, (a, r) in enumerate(zip(found, expected, strict=True)) if isinstance(r, torch.Tensor)]
    rounded = []
    for at, a, r in pairs:
        if not isinstance(a, torch.Tensor) or (a.shape, a.dtype, a.device) != (r.shape, r.dtype, r.device):
            return f"result {at} is {_type_of(a)}, eager's {_type_of(r)}"
        if r.dtype.is_complex:
            a, r = _parts(a), _parts(r)
        if not r.dtype.is_floating_point:
            if not torch.equal(a, r):
                return f"result {at} differs from eager's"
            continue
        usable = torch.isfinite(r)
        if not (torch.equal(torch.isfinite(a), usable) and torch.equal(_special(a, usable), _special(r, usable))):
            return f"result {at} has other infinities than eager's"
        if usable.any():
            limit = comparison.tolerance(str(r.dtype).removeprefix("torch."), computed)
            rounded.append((at, a.detach()[usable].double(), r.detach()[usable].double(), limit, usable))
    sizes = [float(r.square().mean().sqrt()) for _, _, r, _, _ in rounded]
    for (at, a, r, limit, usable), size in zip(rounded, sizes, strict=True):
        scale = (r.abs() + size).clamp_min(comparison.CANCELLED * max(sizes) or comparison.NO_SIZE)
        error = float(((a - r).abs() / scale).max())
        if error > limit and nudged is not None:
            other = _parts(nudged[at]) if nudged[at].dtype.is_complex else nudged[at]
            own = ((other.detach()[usable].double() - r).abs() / scale).max()
            limit = max(limit, min(AS_FAR * float(own), FARTHEST))
        if error > limit:
            return f"result {at} is {error:.2g} off eager's"
    return None


def _parts(one: Any) -> Any:
    """The real and the imaginary parts of complex numbers."""
    return torch.view_as_real(one.detach().resolve_conj())


def _special(one: Any, usable: Any) -> Any:
    """1 where there is no number, infinities as the largest numbers, 0 elsewhere."""
    return torch.where(usable, 0.0, one.detach()).nan_to_num(1.0)


def _type_of(one: Any) -> str:
    return f"{one.dtype}{list(one.shape)}" if isinstance(one, torch.Tensor) else type(one).__name__


def verdict_file(cache: Path, *key: object) -> Path:
    """Where the verdict on something is kept, for this machine, these versions, this code and this number of threads."""
    named = json_digest([*key, machine_key(), torch.__version__, torch.get_num_threads(), own_code()])
    return cache / "verdicts" / f"{named}.json"


def known(path: Path) -> Verdict | None:
    """The verdict that was kept in the file; None without one."""
    return read_json(path, Verdict)


@contextlib.contextmanager
def turn_of(path: Path) -> Iterator[bool]:
    """Whether this process may go on with the benchmark whose verdict belongs into the file. Of several processes one
    does: they would time each other. Nobody waits; where the cache cannot be written everybody may."""
    lock = filelock.FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
