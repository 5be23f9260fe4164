"""The replay set: many candidates of many workloads, each measured once, so that searches can be replayed without hardware.

    python benchmarks/replay_set.py --work build/replay_set                   # everything; goes on where it was stopped
    python benchmarks/replay_set.py --work build/replay_set --phase prepare   # choose and draw: needs no quiet machine
    python benchmarks/replay_set.py --work build/replay_set --phase measure --minutes 35
    python benchmarks/replay_set.py --work build/replay_set --phase pack --output benchmarks/results/replay_set.parquet

Three phases; what they find lies in --work, a file or two for each workload, and what is there is not done again. *Prepare*
splits the networks of replay_networks.py into tasks, keeps those whose default schedule takes about 10 us to 5 ms by their
FLOPs and bytes, and draws their candidates (replay_draws.py). *Measure* has each candidate built, checked and timed once, as
a worker does in a search, in the sandbox of a worker. It goes round the workloads in slices, so that whenever `--minutes`
end, all have equally many.
*Pack* writes one Parquet file, which docs/replay-set.md describes.

A timing here is as in a search but shorter, and a candidate gets its full number of samples if it is within twice the
fastest of its workload so far (in a search: 1.1 times), since a model learns from those as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment import environment, parser
from replay_draws import Drawn, draw, kind_of, tasks_of, worth_having
from replay_networks import NETWORKS, QUICK

from pitchpipe.errors import InvalidTrace
from pitchpipe.wire.measure import Candidate, MeasureConfig, Measurement, Timed
from pitchpipe.wire.target import Target
from pitchpipe.wire.task import Task
from workers.device import detect_target, fingerprint, toolchain
from workers.sandbox.sandbox import Sandbox

CANDIDATES, QUICK_CANDIDATES = 256, 24
"""Of a workload."""
TURNS, QUICK_TURNS = (2, 1), (1,)
"""Workloads that a network brings in each turn, besides those that it shares with networks before it."""
FEWEST = 6
"""Candidates of the smallest design space that is worth a replay."""
SHORTEST_SECS, LONGEST_SECS = 5e-6, 3e-3
"""Of a good schedule, so that default ones take about 10 us to 5 ms."""
FLOPS_PER_SEC, BYTES_PER_SEC = 240e9, 30e9
"""What two cores of a server reach."""
SLICE, QUICK_SLICE = 64, 12
"""Candidates of a workload that are measured in a row: to begin with another one takes half a second."""
SEED = 1
CONFIG = MeasureConfig(
    build_timeout_secs=10, run_timeout_secs=5, min_samples=3, max_samples=12, max_secs=0.03, slow_factor=2.0
)


def tell(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


# -- prepare


def prepare(work: Path, names: Sequence[str], turns: Sequence[int], candidates: int, target: Target) -> None:
    """Writes WORKLOAD.json for every workload of the set, then networks.json: which network has which.

    The networks bring so many workloads in each turn: in the first turn their costliest, in later ones those whose kind the
    set has fewest of.
    """
    import torch

    tasks: dict[str, list[Task]] = {}
    for name in names:
        torch.manual_seed(SEED)
        tasks[name] = [task for task in tasks_of(*NETWORKS[name](), target) if is_sized(task)]
        tell(f"{name}: {len(tasks[name])} tasks of these sizes")
    taken: set[str] = set()
    kinds: Counter[str] = Counter()
    for turn, most in enumerate(turns):
        for name in names:
            new = 0
            for task in worth_having(tasks[name], kinds if turn else None):
                digest = task.workload.digest
                if digest not in taken and new < most and is_drawn(task, path_of(work, digest), candidates):
                    taken.add(digest)
                    kinds[kind_of(task)] += 1
                    new += 1
    has = {
        name: [one.workload.digest for one in found if one.workload.digest in taken] for name, found in tasks.items()
    }
    write(work / "networks.json", has)
    tell(f"{len(taken)} workloads of {len(names)} networks")


def is_sized(task: Task) -> bool:
    """Whether a good schedule takes about as long as those of the set should, on two cores, by FLOPs and bytes alone: so the
    choice of workloads does not depend on the machine that makes the set."""
    return SHORTEST_SECS <= max(task.flops / FLOPS_PER_SEC, task.bytes / BYTES_PER_SEC) <= LONGEST_SECS


def is_drawn(task: Task, path: Path, candidates: int) -> bool:
    """Whether the workload has enough candidates, which lie at `path` then."""
    if path.exists():
        return True
    began = time.monotonic()
    try:
        drawn = draw(task, candidates, SEED)
    except InvalidTrace as error:
        tell(f"{task.name}: not searched: {error}")
        return False
    tell(f"{task.name}: {len(drawn)} candidates in {time.monotonic() - began:.0f} s")
    if len(drawn) < FEWEST:
        return False
    write(path, {"task": task.model_dump(mode="json"), "candidates": [one.as_json() for one in drawn]})
    return True


def path_of(work: Path, digest: str) -> Path:
    return work / f"{digest[:24]}.json"


def write(path: Path, value: Any) -> None:
    """JSON that is there whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.rename(path)


# -- measure


@dataclass(kw_only=True)
class Entry:
    """A workload of the set, and what is known of it."""

    task: Task
    candidates: list[Drawn]
    log: Path
    """Measurements, a line each."""
    results: dict[str, dict[str, Any]]
    """By candidate's digest: seconds, lower, upper, stop, failure, build_secs, ratio."""

    @property
    def left(self) -> list[Drawn]:
        return [one for one in self.candidates if one.digest not in self.results]

    @property
    def fastest_secs(self) -> float | None:
        return min((found["seconds"] for found in self.results.values() if found["seconds"] is not None), default=None)


def entries(work: Path) -> list[Entry]:
    """All workloads of the set, once it is prepared."""
    listed = [digest for has in json.loads((work / "networks.json").read_text()).values() for digest in has]
    found = []
    for digest in dict.fromkeys(listed):
        path = path_of(work, digest)
        stored, log = json.loads(path.read_text()), path.with_suffix(".jsonl")
        found.append(
            Entry(
                task=Task.model_validate(stored["task"]),
                candidates=[Drawn.of_json(one) for one in stored["candidates"]],
                log=log,
                results={line["candidate"]: line for line in lines(log)},
            )
        )
    return found


def lines(log: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log: a run that was stopped may have left half of one."""
    for line in log.read_text().splitlines() if log.exists() else []:
        with suppress(ValueError):
            yield json.loads(line)


def measure(work: Path, target: Target, minutes: float, slice_: int) -> None:
    """Measures what is left, a slice of each workload in turn, for so many minutes at most."""
    began = time.monotonic()
    ends = began + 60 * minutes
    todo = entries(work)
    environment_path = work / "environment.json"
    if not environment_path.exists():
        found = environment(minutes=minutes)
        device, tools = fingerprint(), toolchain(target)
        write(environment_path, {**found, "device_class": device.device_class, "toolchain": tools.key})
    total, done = sum(len(one.left) for one in todo), 0
    tell(f"{total} candidates of {len(todo)} workloads are left")
    with Sandbox(target) as sandbox:
        while time.monotonic() < ends and any(one.left for one in todo):
            fewest = min(len(one.results) for one in todo if one.left)
            for one in todo:
                if time.monotonic() >= ends:
                    break
                if one.left and len(one.results) < fewest + slice_:
                    done += measure_slice(sandbox, one, one.left[:slice_], ends)
                    rate = done / (time.monotonic() - began)
                    tell(f"{done} of {total}, {rate:.1f}/s, {one.task.name}: {len(one.results)} measured")


def measure_slice(sandbox: Sandbox, entry: Entry, chosen: Sequence[Drawn], ends: float) -> int:
    """Measures these candidates and writes each result as it comes; how many there were."""
    candidates = [Candidate(digest=one.digest, trace=one.trace) for one in chosen]
    count = 0
    text = entry.log.read_text() if entry.log.exists() else ""
    with entry.log.open("a") as log:
        log.write("" if not text or text.endswith("\n") else "\n")
        for result in sandbox.measure(
            entry.task.workload,
            candidates,
            CONFIG,
            incumbent_secs=entry.fastest_secs,
            cancelled=lambda: time.monotonic() >= ends,
        ):
            line = as_line(result)
            if line is None:
                continue
            log.write(json.dumps(line) + "\n")
            log.flush()
            entry.results[result.candidate] = line
            count += 1
    return count


def as_line(result: Measurement) -> dict[str, Any] | None:
    """A measurement as it is kept; None for a failure that is not the candidate's own."""
    if isinstance(result, Timed):
        return {
            "candidate": result.candidate,
            "seconds": result.secs,
            "lower": result.secs_low,
            "upper": result.secs_high,
            "samples": len(result.run_secs),
            "stop": None if result.rule is None else result.rule.stop.value,
            "ratio": result.reference_ratio,
            "build_secs": result.build_secs,
            "failure": None,
        }
    if result.kind.retryable:
        return None
    return {"candidate": result.candidate, "seconds": None, "lower": None, "upper": None, "failure": result.kind.value}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--work", type=Path, help="folder for what is found; default: build/replay_set[_quick]")
    arguments.add_argument("--phase", choices=["prepare", "measure", "pack"], help="only this one")
    arguments.add_argument("--minutes", type=float, default=35.0, help="ceiling of the measuring phase")
    arguments.add_argument("--output", type=Path, help="the packed file; default: replay_set.parquet in --work")
    options = arguments.parse_args()
    quick, target = options.quick, detect_target("llvm")
    options.work = options.work or Path("build/replay_set_quick" if quick else "build/replay_set")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.phase in (None, "prepare"):
        names = QUICK if quick else tuple(NETWORKS)
        turns, candidates = (QUICK_TURNS, QUICK_CANDIDATES) if quick else (TURNS, CANDIDATES)
        prepare(options.work, names, turns, candidates, target)
    if options.phase in (None, "measure"):
        measure(options.work, target, options.minutes, QUICK_SLICE if quick else SLICE)
    if options.phase in (None, "pack"):
        from replay_file import pack

        output = options.output or options.work / "replay_set.parquet"
        networks = json.loads((options.work / "networks.json").read_text())
        told = pack(
            output, entries(options.work), networks, json.loads((options.work / "environment.json").read_text())
        )
        print(json.dumps(told) if options.json else "\n".join(f"{key} {value}" for key, value in told.items()))


if __name__ == "__main__":
    main()
