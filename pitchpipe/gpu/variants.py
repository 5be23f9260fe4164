"""Variants of a model, each a part of one program's launches, timed in turns as CUDA graphs.

A sample is the mean of as many runs in a row as fill SAMPLE_SECS, between two events; a round takes one of each variant,
forward and backward in turn, so that a drift of the device's speed affects all alike. Inputs and weights are drawn: times of
kernels follow from shapes. Real weights stay where they are.

Which of two variants is faster is claimed from samples of several fresh processes (`in_fresh_processes`), since processes
with the same code differ by where their memory lies (ADR 0014).
"""

from __future__ import annotations

import json
import math
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pitchpipe.arrays import numpy_dtype
from pitchpipe.errors import StepDied
from pitchpipe.gpu.arrays import Spec
from pitchpipe.gpu.driver import Driver, driver
from pitchpipe.gpu.encoding import decode, encode
from pitchpipe.gpu.executable import GpuModel
from pitchpipe.gpu.loaded import Replay
from pitchpipe.gpu.program import Program
from pitchpipe.processes.launch import run

SAMPLE_SECS = 2e-3
PROCESS_SECS = 120.0
"""Longest life of a fresh process: the driver's start, a pass of the weights' transforms, and some dozen samples."""
_MOST_RUNS = 1000
_DRAWN = 1 << 16
"""Numbers that are drawn; larger tensors repeat them."""
_SAID = "pitchpipe: timed "

Lists = Sequence[Sequence[int]]
"""Of each variant the indices of its launches in the program's `run`."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A tensor that is drawn: a Spec that can be written down."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, spec: Spec) -> Drawn:
        return cls(name=spec.name, dtype=spec.dtype, shape=tuple(spec.shape))


class Variants:
    """A program with drawn weights and inputs on the first GPU. Not thread-safe."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Spec],
        params: Sequence[Spec],
        *,
        using: Callable[[], Driver] = driver,
    ) -> None:
        """Raises NoDevice, CudaError."""
        self._model = GpuModel(program, inputs, params, using=using)
        self._model.bind({spec.name: _drawn(spec) for spec in params})
        self._inputs = [_drawn(spec) for spec in inputs]

    def secs(self, lists: Lists, rounds: int) -> list[list[float]]:
        """Seconds of a run, `rounds` samples of each variant, taken in turns."""
        with self._model.variants(lists, *self._inputs) as replay:
            return _in_turns(replay, len(lists), rounds)


def _in_turns(replay: Replay, count: int, rounds: int) -> list[list[float]]:
    runs = []
    for number in range(count):
        first = replay(number, 1)  # Code is loaded, and the clock rises, with the first work after a pause.
        runs.append(max(1, min(_MOST_RUNS, math.ceil(SAMPLE_SECS / max(first, 1e-9)))))
    for number in range(count):
        runs[number] = max(1, min(_MOST_RUNS, math.ceil(SAMPLE_SECS / max(replay(number, runs[number]), 1e-9))))
    samples: list[list[float]] = [[] for _ in range(count)]
    for turn in range(rounds):
        for number in range(count) if turn % 2 == 0 else reversed(range(count)):
            samples[number].append(replay(number, runs[number]))
    return samples


def _drawn(spec: Spec) -> Any:
    """Small positive numbers, or whole numbers of which every table has that many rows."""
    import numpy as np

    dtype, count = numpy_dtype(spec.dtype), math.prod(spec.shape)
    rng = np.random.default_rng(0)
    some = min(count, _DRAWN)
    values = rng.random(some) * 0.1 if dtype.kind not in "biu" else rng.integers(0, 2, some)
    return np.resize(values.astype(dtype), spec.shape)


def in_fresh_processes(
    program: Program, inputs: Sequence[Spec], params: Sequence[Spec], lists: Lists, *, processes: int, rounds: int
) -> list[list[float]]:
    """Samples of each variant, `rounds` of each of so many processes, one after another: sample i is of process i modulo
    `processes`. Raises StepDied when one of them fails, TimeoutError.
    """
    with tempfile.TemporaryDirectory(prefix="pitchpipe-variants-") as scratch:
        folder = Path(scratch)
        (folder / "program").write_bytes(encode(program))
        told = {
            "inputs": [asdict(Drawn.of(spec)) for spec in inputs],
            "params": [asdict(Drawn.of(spec)) for spec in params],
            "lists": [list(one) for one in lists],
            "rounds": rounds,
        }
        (folder / "order.json").write_text(json.dumps(told))
        found = [_of_one(folder) for _ in range(processes)]
    return [
        [of[number][turn] for turn in range(rounds) for of in found]
        for number in range(len(lists))
    ]  # fmt: skip


def _of_one(folder: Path) -> list[list[float]]:
    ended = run(f"{__name__}:main", str(folder), timeout_secs=PROCESS_SECS)
    last = (ended.stdout.decode(errors="replace").strip().splitlines() or [""])[-1]
    if ended.returncode != 0 or not last.startswith(_SAID):
        words = ended.stderr.decode(errors="replace").strip()[-500:]
        raise StepDied(f"a process that times variants of a model ended with {ended.returncode}: {words}")
    found: list[list[float]] = json.loads(last.removeprefix(_SAID))
    return found


def main(folder: str) -> None:
    """The child."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order: Mapping[str, Any] = json.loads((Path(folder) / "order.json").read_text())
    program = decode((Path(folder) / "program").read_bytes())
    inputs, params = (
        [Drawn(**{**one, "shape": tuple(one["shape"])}) for one in order[of]] for of in ("inputs", "params")
    )
    print(_SAID + json.dumps(Variants(program, inputs, params).secs(order["lists"], order["rounds"])), flush=True)
